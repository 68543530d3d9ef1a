"""Plan the runs that an experiment still needs: config, folder, estimated time, and the command that repeats it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from scale_cl.errors import ConfigError
from scale_cl.experiments.definitions import CPU_MILLISECONDS, EXPERIMENTS, IMAGES_SEARCHED_ON, Case, Experiment
from scale_cl.experiments.result_index import Finished, Found, has_diverged, identity, must_stay, scan
from scale_cl.files import first_free
from scale_cl.learners import registry as learners
from scale_cl.learners.presets import DEFAULT_PRESET
from scale_cl.plugins import is_reference, shown
from scale_cl.settings import field_names
from scale_cl.streams import catalog as streams
from scale_cl.training.config import Config, require_stream, resolve
from scale_cl.training.run_directory import RunDirectory

HIDDEN = ".runs"
_UNKNOWN_LEARNER = (5.0, 200, 1000)  # milliseconds per step, as CPU_MILLISECONDS
_KINDS = {  # index into these by stream: MLP, small images (1, for all others), large images
    **dict.fromkeys(("digits", "split-digits", "pmnist"), 0),
    **dict.fromkeys(("sminiimagenet", "stinyimagenet", "scub200", "core50-nc", "core50-ni", "core50-ni10"), 2),
}
_GPU_SPEEDUP = (0.7, 20, 60)  # of an H200 with one seed against that core; small steps wait for the host


@dataclass(frozen=True)
class Request:
    """What the user asked for; None: as the experiment defines it."""

    out: Path
    streams: tuple[str, ...] | None = None
    learners: tuple[str, ...] | None = None
    seeds: tuple[int, ...] | None = None
    cases: tuple[Case, ...] | None = None  # a grid given by the user, for `search`
    tasks: int | None = None
    device: str = "auto"
    threads: int = 1
    assignments: tuple[str, ...] = ()
    preset: str | None = None
    strict: bool = True  # False (several experiments at once): skip what does not fit an experiment


@dataclass(frozen=True)
class PlannedRun:
    """One run: its config, and the folder that its result goes to."""

    experiment: str
    config: Config
    out: Path  # of the whole experiment
    folder: Path
    alone: bool = False
    features: bool = False
    name: str = ""  # of the learner and the settings of its case, as `variant` has it

    @property
    def title(self) -> str:
        """`scale memory=100 on scifar100, seeds 0 to 4`."""
        seeds = self.config.seeds
        many = f"seed {seeds[0]}" if len(seeds) == 1 else f"seeds {seeds[0]} to {seeds[-1]}"
        return f"{self.name or self.config.learner_name} on {stream_and_order(self.config)}, {many}"


@dataclass(frozen=True)
class ExperimentCell:
    """One cell of an experiment's table: a learner with its settings on a stream, in a class order, over all seeds."""

    experiment: str
    config: Config  # of its first seed
    case: Case
    seeds: tuple[int, ...]
    done: dict[int, Found]  # results that existed before
    elsewhere: tuple[int, ...]  # seeds that an earlier experiment of the plan runs
    runs: tuple[PlannedRun, ...]
    found: Path | None = None  # the file of the search that its settings are from

    @property
    def name(self) -> str:
        """`scale memory=100`."""
        return variant(self.config.learner_name, self.case)

    @property
    def key(self) -> str:
        """The identity of its runs."""
        return key_of(self.config)


@dataclass
class ExperimentPlan:
    """The cells of all requested experiments."""

    cells: list[ExperimentCell] = field(default_factory=list)

    @property
    def runs(self) -> list[PlannedRun]:
        """All runs still to be done, in order."""
        return [run for cell in self.cells for run in cell.runs]

    def experiment(self, name: str) -> list[ExperimentCell]:
        """The cells of one experiment."""
        return [cell for cell in self.cells if cell.experiment == name]


def plan(experiments: dict[str, Experiment], request: Request, *, gpu: bool) -> ExperimentPlan:
    """Plan experiments; runs finished below `request.out`, or planned already, are skipped."""
    made = ExperimentPlan()
    beside = scan(request.out)
    coming: dict[str, set[int]] = {}
    taken: set[Path] = set()
    for name, experiment in experiments.items():
        # A time counts only for the experiment that measured it, and on its device.
        there = scan(request.out / name, alone="cuda" if gpu else "cpu") if experiment.alone else beside
        planned = {} if experiment.alone else coming
        for config, case, found in _configs(name, experiment, request):
            cell = _cell(name, experiment, config, case, request, there, planned, taken, gpu=gpu)
            made.cells.append(replace(cell, found=found))
    if not made.cells:
        raise ConfigError(f"nothing to do: none of {', '.join(experiments)} fits the streams and learners asked for")
    return made


def stream_and_order(config: Config) -> str:
    """`scifar100`, or `scifar100 order 3`."""
    order = config.stream.class_order
    return f"{config.stream.name} order {order}" if isinstance(order, int) else config.stream.name


def variant(learner: str, case: Case) -> str:
    """`scale memory=100`: a learner and the settings of its case."""
    return " ".join([shown(learner), *(f"{name}={_text(value)}" for name, value in case.items())])


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)


def _configs(name: str, experiment: Experiment, request: Request) -> Iterable[tuple[Config, Case, Path | None]]:
    """The config of each cell, its case, and the file of the search that it has settings from."""
    chosen = request.learners or (*experiment.learners, *experiment.bounds)
    for learner in chosen:
        learners.OUTSIDE.give(learner)
        learners.config_class(learner)  # raises ConfigError for an unknown learner
    for stream in request.streams or experiment.streams:
        require_stream(stream, typed=True)
        if experiment.part == "search" and streams.entry(stream).search == 0:
            if request.strict:
                raise ConfigError(f"{stream} has no tasks kept for search: leave it out of `{name}`")
            continue
        for learner in chosen:
            own = _cases(name, experiment, learner, request)
            known = field_names(learners.config_class(learner))
            if not request.strict and not all(name in known for case in own for name in case):
                continue
            file = found_by_search(request.out / experiment.searched, stream, learner) if experiment.searched else None
            for case in own:
                for order in class_orders(experiment, stream):
                    yield _config(experiment, stream, learner, case, request, file, order), case, file


def _cases(name: str, experiment: Experiment, learner: str, request: Request) -> Sequence[Case]:
    if learner in experiment.bounds:
        return ({},)
    if request.cases or not experiment.grids:
        return request.cases or experiment.cases
    if learner not in experiment.grids and experiment.searched:  # another learner in a comparison
        return experiment.cases
    if learner not in experiment.grids and request.strict:
        raise ConfigError(f"`{name}` has no grid for {learner}; give one: --grid FIELD=A,B")
    return experiment.grids.get(learner, ())


def class_orders(experiment: Experiment, stream: str) -> tuple[int | None, ...]:
    """The class orders of an experiment on a stream; None: the stream's own, or its tasks all have the same classes."""
    return experiment.orders if experiment.orders and streams.entry(stream).classes_per_task else (None,)


def searched_on(stream: str) -> str:
    """The stream on whose search tasks settings are chosen for a stream: one for all colour images, or its own."""
    return IMAGES_SEARCHED_ON if streams.entry(stream).channels > 1 else stream


def found_by_search(folder: Path, stream: str, learner: str) -> Path | None:
    """The settings that a search has found for a learner on a stream, if its folder has them."""
    file = file_of_search(folder, searched_on(stream), learner)
    return file if file.is_file() else None


def file_of_search(folder: Path, stream: str, learner: str) -> Path:
    """Where the settings that a search has found for a learner on a stream are written."""
    return folder / f"{_file_name(f'{stream}-{learner}')}.yaml"


def _file_name(text: str) -> str:
    """A text without what means something in a path."""
    return re.sub(r"[^\w.=+-]", "_", text)[:150].lstrip(".")


def _config(
    experiment: Experiment,
    stream: str,
    learner: str,
    case: Case,
    request: Request,
    file: Path | None = None,
    order: int | None = None,
) -> Config:
    points = EXPERIMENTS[experiment.searched].grids.get(learner, ()) if file is not None else ()
    chosen = {k for point in points for k in point}  # by the search: the file has them
    shared = {k: v for k, v in common(experiment, stream, learner).items() if k not in chosen}
    options: dict[str, object] = {f"learner.{k}": v for k, v in (shared | case).items()}
    options |= {"stream.part": experiment.part, "run.device": request.device, "run.threads": request.threads}
    if order is not None:
        options["stream.class_order"] = order
    if request.tasks is not None:
        entry = streams.entry(stream)
        there = entry.search if experiment.part == "search" else entry.continual
        if request.tasks > there and request.strict:
            raise ConfigError(f"tasks is {request.tasks}; the {experiment.part} part of {stream} has {there}")
        options["stream.tasks"] = min(request.tasks, there)
    given, preset = request.assignments, request.preset or experiment.preset
    return resolve(stream=stream, learner=learner, file=file, options=options, assignments=given, preset=preset)


def common(experiment: Experiment, stream: str, learner: str) -> Case:
    """The settings that an experiment gives all learners, as far as this one has them."""
    values = experiment.everywhere | (experiment.on_images if streams.entry(stream).channels > 1 else {})
    known = field_names(learners.config_class(learner))
    return {name: value for name, value in values.items() if name in known}


def _cell(
    name: str,
    experiment: Experiment,
    config: Config,
    case: Case,
    request: Request,
    there: Finished,
    coming: dict[str, set[int]],
    taken: set[Path],
    *,
    gpu: bool,
) -> ExperimentCell:
    order, key = config.stream.class_order, key_of(config)
    many = experiment.seeds_per_order if isinstance(order, int) and experiment.orders else experiment.seeds
    seeds = request.seeds if request.seeds is not None else tuple(experiment.first_seed + i for i in range(many))
    done = {seed: found for seed, found in there.of(key).items() if seed in seeds}
    planned = coming.setdefault(key, set())
    missing = [seed for seed in seeds if seed not in done and seed not in planned]
    elsewhere = tuple(seed for seed in seeds if seed in planned and seed not in done)
    planned.update(missing)
    tasks, stream, named = config.stream.tasks, config.stream.short_name, variant(config.learner_name, case)
    base = request.out / name / (HIDDEN if experiment.hidden else "")
    base /= f"{stream}{'' if tasks is None else f'-{tasks}-tasks'}{f'-order-{order}' if isinstance(order, int) else ''}"
    base /= _file_name(named.replace(" ", "-"))
    runs = []
    for group in groups(missing, together=gpu and not experiment.alone):
        where = base / (f"seed-{group[0]}" if len(group) == 1 else f"seeds-{group[0]}-{group[-1]}")
        if experiment.part == "search" and has_diverged(where, key):
            continue  # which is what there is to find out about a point
        folder = first_free(where, lambda path: path in taken or must_stay(path))
        taken.add(folder)
        own = _with_seeds(config, group)
        runs.append(PlannedRun(name, own, request.out, folder, experiment.alone, experiment.features, named))
    return ExperimentCell(name, _with_seeds(config, [seeds[0]]), case, tuple(seeds), done, elsewhere, tuple(runs))


def groups(seeds: Sequence[int], *, together: bool) -> list[list[int]]:
    """Seeds that share a run: consecutive ones if `together` (on a GPU, side by side), else one per run."""
    found: list[list[int]] = []
    for seed in sorted(seeds):
        if together and found and found[-1][-1] == seed - 1:
            found[-1].append(seed)
        else:
            found.append([seed])
    return found


def _with_seeds(config: Config, seeds: Sequence[int]) -> Config:
    return replace(config, run=replace(config.run, seed=seeds[0], seeds=len(seeds)))


def key_of(config: Config) -> str:
    """The identity of the runs of a config."""
    return identity(config.as_dict(), task_count(config))


def total_seconds(groups: Iterable[Sequence[PlannedRun]], *, slots: int, gpu: bool) -> float:
    """Rough time of runs in groups; on a GPU each further seed of a group costs about a third of the first."""
    total = 0.0
    for group in groups:
        each = [estimated_seconds(run.config, gpu=gpu) for run in group for _ in run.config.seeds]
        seconds = max(each) + (sum(each) - max(each)) / 3 if gpu else sum(each)
        total += seconds if group[0].alone else seconds / max(1, slots)
    return total


def task_count(config: Config) -> int:
    """The number of tasks of a config of a catalogued stream."""
    entry = streams.entry(config.stream.name)
    there = {"continual": entry.continual, "search": entry.search, "all": entry.tasks}[config.stream.part]
    return min(config.stream.tasks or there, there)


def step_count(config: Config) -> int:
    """Training steps of one seed."""
    entry, tasks = streams.entry(config.stream.name), task_count(config)
    epochs = int(getattr(config.learner, "epochs", 1))
    train = round(config.stream.train_share * entry.train_of(config.stream.part))
    batch = config.run.batch_size
    if learners.entry(config.learner_name).kind.order == "shuffled":  # batches cross the boundaries of tasks
        return epochs * -(-tasks * train // batch)
    return epochs * tasks * -(-train // batch)


def estimated_seconds(config: Config, *, gpu: bool) -> float:
    """Rough time of one seed, alone on one core or GPU."""
    kind = _KINDS.get(config.stream.name, 1)
    milliseconds = CPU_MILLISECONDS.get(config.learner_name, _UNKNOWN_LEARNER)[kind]
    return step_count(config) * milliseconds / 1000 / (_GPU_SPEEDUP[kind] if gpu else 1)


def rerun_arguments(run: PlannedRun, root: Path | None) -> list[str]:
    """Arguments of `scale-cl` that repeat one run: `run`, or `reproduce` for a run that must run alone."""
    if run.alone:
        words = _reproduce_arguments(run)
    else:
        words = ["run", "--stream", run.config.stream.name, "--learner", run.config.learner_name]
        words += [*_preset(run.config), *_settings(run.config), "--out", str(run.folder)]
    return words if root is None else [*words, "--data", str(root)]


def rerun_command(run: PlannedRun, root: Path | None) -> str:
    """The shell command that repeats one run, or continues it if it has left a checkpoint."""
    unfinished = not run.alone and RunDirectory(run.folder).unfinished
    words = ["resume", str(run.folder), *_references(run.config)] if unfinished else rerun_arguments(run, root)
    return shlex.join(["scale-cl", *words])


def _reproduce_arguments(run: PlannedRun) -> list[str]:
    """Naming stream, learner and seeds is enough: what is finished is skipped."""
    config = run.config
    words = ["reproduce", run.experiment, "--streams", config.stream.name, "--learners", config.learner_name]
    words += ["--seeds", "".join(f"{seed}," for seed in config.seeds)]
    if config.stream.tasks is not None:
        words += ["--tasks", str(config.stream.tasks)]
    if config.run.device != "auto":
        words += ["--device", config.run.device]
    return [*words, *_preset(config), "--out", str(run.out)]


def _references(config: Config) -> list[str]:
    """Options that name stream, learner and backbone again where they are no names but references."""
    named = {"stream": config.stream.name, "learner": config.learner_name, "backbone": config.learner.backbone}
    return [word for option, name in named.items() if is_reference(name) for word in (f"--{option}", name)]


def _preset(config: Config) -> list[str]:
    return [] if config.preset == DEFAULT_PRESET else ["--preset", config.preset]


def _settings(config: Config) -> list[str]:
    """`--set` for every setting that differs from a plain run of the preset."""
    usual = resolve(stream=config.stream.name, learner=config.learner_name, preset=config.preset).as_dict()
    words = []
    for section, values in config.as_dict().items():
        for name, value in values.items():
            if value != usual[section][name]:
                words += ["--set", f"{section}.{name}={_setting_text(value)}"]
    return words


def _setting_text(value: object) -> str:
    if isinstance(value, list | tuple):
        return ",".join(_setting_text(member) for member in value)
    return "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
