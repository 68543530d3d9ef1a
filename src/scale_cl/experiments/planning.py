"""From an experiment to the runs that are still to be done: one config and one folder each."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from scale_cl.errors import ConfigError
from scale_cl.experiments import estimate
from scale_cl.experiments.definitions import Case, Experiment
from scale_cl.experiments.identity import identity
from scale_cl.experiments.result_index import Finished, Found, must_stay, scan
from scale_cl.learners import registry as learners
from scale_cl.settings import field_names
from scale_cl.streams import catalog as streams
from scale_cl.training.config import Config, require_known, resolve

HIDDEN = ".runs"


@dataclass(frozen=True)
class Request:
    """What the user asked for; None where the experiment's own definition holds."""

    out: Path
    streams: tuple[str, ...] | None = None
    learners: tuple[str, ...] | None = None
    seeds: tuple[int, ...] | None = None
    cases: tuple[Case, ...] | None = None  # a grid of one's own, for `search`
    tasks: int | None = None
    device: str = "auto"
    threads: int = 1
    assignments: tuple[str, ...] = ()
    preset: str | None = None
    strict: bool = True  # False: what does not fit an experiment is left out of it (several experiments at once)


@dataclass(frozen=True)
class PlannedRun:
    """One run: everything about it is in its config; what it makes goes into its folder."""

    experiment: str
    config: Config
    out: Path  # of the whole experiment
    folder: Path
    alone: bool = False
    features: bool = False

    @property
    def title(self) -> str:
        """`scale memory=100 on scifar100, seeds 0 to 4`."""
        seeds = self.config.seeds
        many = f"seed {seeds[0]}" if len(seeds) == 1 else f"seeds {seeds[0]} to {seeds[-1]}"
        return f"{self.folder.parent.name} on {self.config.stream.name}, {many}"


@dataclass(frozen=True)
class Cell:
    """One entry of an experiment's table: a learner with its settings on a stream, over all seeds."""

    experiment: str
    config: Config  # of its first seed
    case: Case
    seeds: tuple[int, ...]
    done: dict[int, Found]  # what was there before
    elsewhere: tuple[int, ...]  # seeds that an earlier experiment of the same plan runs
    runs: tuple[PlannedRun, ...]

    @property
    def name(self) -> str:
        """`scale memory=100`."""
        return variant(self.config.learner_name, self.case)

    @property
    def key(self) -> str:
        """Identity of its runs."""
        return key_of(self.config)


@dataclass
class Plan:
    """All cells of the experiments asked for."""

    cells: list[Cell] = field(default_factory=list)

    @property
    def runs(self) -> list[PlannedRun]:
        """What is to be done, in order."""
        return [run for cell in self.cells for run in cell.runs]

    def experiment(self, name: str) -> list[Cell]:
        """The cells of one experiment."""
        return [cell for cell in self.cells if cell.experiment == name]


def plan(experiments: dict[str, Experiment], request: Request, *, gpu: bool) -> Plan:
    """Plan experiments; what lies finished below `request.out`, or is planned already, is not planned again."""
    made = Plan()
    beside = scan(request.out)
    coming: dict[str, set[int]] = {}
    taken: set[Path] = set()
    for name, experiment in experiments.items():
        # A time is only good for the experiment that asked for it, and on its device.
        there = scan(request.out / name, alone="cuda" if gpu else "cpu") if experiment.alone else beside
        planned = {} if experiment.alone else coming
        for config, case in _configs(name, experiment, request):
            cell = _cell(name, experiment, config, case, request, there, planned, taken, gpu=gpu)
            made.cells.append(cell)
    if not made.cells:
        raise ConfigError(f"nothing to do: none of {', '.join(experiments)} fits the streams and learners asked for")
    return made


def variant(learner: str, case: Case) -> str:
    """`scale memory=100`: a learner and what is particular about it."""
    return " ".join([learner, *(f"{name}={_text(value)}" for name, value in case.items())])


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)


def _configs(name: str, experiment: Experiment, request: Request) -> Iterable[tuple[Config, Case]]:
    chosen = request.learners or (*experiment.learners, *experiment.bounds)
    cases = request.cases or experiment.cases
    for learner in chosen:
        require_known("learner", learner, learners.names())
    for stream in request.streams or experiment.streams:
        require_known("stream", stream, streams.names())
        if experiment.part == "search" and streams.entry(stream).search == 0:
            if request.strict:
                raise ConfigError(f"{stream} has no tasks kept for search: leave it out of `{name}`")
            continue
        for learner in chosen:
            own: Sequence[Case] = ({},) if learner in experiment.bounds else cases
            if not request.strict and not _fits(learner, own):
                continue
            for case in own:
                yield _config(experiment, stream, learner, case, request), case


def _fits(learner: str, cases: Sequence[Case]) -> bool:
    known = field_names(learners.config_class(learner))
    return all(name in known for case in cases for name in case)


def _config(experiment: Experiment, stream: str, learner: str, case: Case, request: Request) -> Config:
    options: dict[str, object] = {f"learner.{name}": value for name, value in case.items()}
    options |= {"stream.part": experiment.part, "run.device": request.device, "run.threads": request.threads}
    if request.tasks is not None:
        entry = streams.entry(stream)
        there = entry.search if experiment.part == "search" else entry.continual
        if request.tasks > there and request.strict:
            raise ConfigError(f"tasks is {request.tasks}; the {experiment.part} part of {stream} has {there}")
        options["stream.tasks"] = min(request.tasks, there)
    return resolve(
        stream=stream, learner=learner, options=options, assignments=request.assignments, preset=request.preset
    )


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
) -> Cell:
    seeds = request.seeds if request.seeds is not None else tuple(range(experiment.seeds))
    key = key_of(config)
    done = {seed: found for seed, found in there.of(key).items() if seed in seeds}
    planned = coming.setdefault(key, set())
    missing = [seed for seed in seeds if seed not in done and seed not in planned]
    elsewhere = tuple(seed for seed in seeds if seed in planned and seed not in done)
    planned.update(missing)
    base = request.out / name / (HIDDEN if experiment.hidden else "") / _stream_folder(config)
    runs = []
    for group in groups(missing, together=gpu and not experiment.alone):
        where = base / _safe(variant(config.learner_name, case).replace(" ", "-")) / _seeds_folder(group)
        folder = _free(where, lambda path: path in taken or must_stay(path))
        taken.add(folder)
        own = _with_seeds(config, group)
        runs.append(PlannedRun(name, own, request.out, folder, experiment.alone, experiment.features))
    return Cell(name, _with_seeds(config, [seeds[0]]), case, tuple(seeds), done, elsewhere, tuple(runs))


def groups(seeds: Sequence[int], *, together: bool) -> list[list[int]]:
    """Seeds that share a run: on a GPU those that follow one another, side by side; on a CPU each has its own."""
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
    """Identity of the runs of a config."""
    return identity(config.as_dict(), estimate.tasks(config))


def _stream_folder(config: Config) -> str:
    tasks = config.stream.tasks
    return config.stream.name if tasks is None else f"{config.stream.name}-{tasks}-tasks"


def _seeds_folder(seeds: Sequence[int]) -> str:
    return f"seed-{seeds[0]}" if len(seeds) == 1 else f"seeds-{seeds[0]}-{seeds[-1]}"


def _safe(name: str) -> str:
    return re.sub(r"[^\w.=+-]", "_", name)[:150].lstrip(".")


def _free(folder: Path, is_taken: Callable[[Path], bool]) -> Path:
    """`folder`, or the first of its numbered siblings that holds nothing to be kept."""
    number, candidate = 1, folder
    while is_taken(candidate):
        number += 1
        candidate = folder.with_name(f"{folder.name}-{number}")
    return candidate


def total_seconds(runs: Sequence[PlannedRun], *, slots: int, gpu: bool) -> float:
    """Rough time of these runs; a seed beside others on a GPU costs about a third of one alone."""
    beside = sum(_seconds(run, gpu=gpu) for run in runs if not run.alone)
    alone = sum(_seconds(run, gpu=gpu) for run in runs if run.alone)
    return beside / max(1, slots) + alone


def _seconds(run: PlannedRun, *, gpu: bool) -> float:
    seeds = len(run.config.seeds)
    shared = 1 + (seeds - 1) / 3 if gpu else seeds
    return estimate.seconds(run.config, gpu=gpu) * shared
