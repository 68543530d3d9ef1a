"""The model that a run has kept: found, restored without its data, and taught more tasks."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from scale_cl import files, results
from scale_cl.engine.weightless import check_before_making
from scale_cl.errors import CheckpointError, ConfigError, OutputInUseError, ResultError
from scale_cl.learners import Learner, LearnerConfig, registry
from scale_cl.nets.custom_backbone import BackboneLike
from scale_cl.results import RunResult
from scale_cl.settings import as_dict, build, parse_assignment
from scale_cl.streams import InputSpec, catalog
from scale_cl.streams.images import recipe
from scale_cl.streams.user_streams import is_own
from scale_cl.training import checkpoint
from scale_cl.training.checkpoint import Checkpoint, Images, Model, Position
from scale_cl.training.checkpointing import on_this_device
from scale_cl.training.config import Config, RunSettings, resolve, streams_learnt
from scale_cl.training.events import Listener
from scale_cl.training.machine import compute
from scale_cl.training.memory_editing import stored_samples
from scale_cl.training.run import run
from scale_cl.training.run_directory import RunDirectory

KEEP = "--set run.keep_state=true"  # what keeps a model


@dataclass(frozen=True, eq=False)
class KeptModel:
    """The model of one seed of a run, with everything that is needed to use it without its data."""

    directory: Path
    path: Path  # of the checkpoint's JSON
    saved: Checkpoint

    @property
    def model(self) -> Model:
        """Classes, inputs, settings and state."""
        return self.saved.model

    @property
    def stored_samples(self) -> int:
        """How many training samples the file holds."""
        return stored_samples(self.saved.state)

    @property
    def preprocess(self) -> str | None:
        """How an image file becomes an input; None if the inputs are no image files."""
        return preprocess(self.model.spec, self.model.images)

    def learner(self, device: torch.device | str = "cpu", *, backbone: BackboneLike | None = None) -> Learner:
        """The trained learner."""
        model, config, device = self.model, self._settings, torch.device(device)
        how = compute(self._run_settings, device)
        given: dict[str, Any] = {"seed": model.seed, "device": device, "compute": how, "backbone": backbone}
        make = partial(registry.make, model.learner, model.spec, config, **given)
        kind, named = registry.entry(model.learner).kind, config.backbone if backbone is None else backbone
        check_before_making(make, model.state, kind=kind, backbone=named)
        learner = make()
        learner.load_state_dict(on_this_device(model.state, learner))
        return learner

    @property
    def learning(self) -> str | None:
        """The stream that the run has begun to learn after this model and not finished."""
        place = RunDirectory(self.directory)
        return place.request().config.stream.name if place.unfinished else None

    @property
    def unseen(self) -> list[str]:
        """Tasks of the stream that the run has not reached."""
        met = {task.name for task in self.model.tasks}
        return [task.name for one in self.saved.streams for task in one.tasks if task.name not in met]

    @property
    def in_midst(self) -> tuple[str, ...]:
        """Tasks that are partly trained."""
        number, step = self.saved.position
        if step == 0:
            return ()
        names = tuple(task.name for one in self.saved.streams for task in one.tasks)
        return names if self._shuffled else names[number : number + 1]

    @property
    def unfinished(self) -> str | None:
        """A note if a task is partly trained."""
        if not self.in_midst:
            return None
        samples = {task.name: task.samples for one in self.saved.streams for task in one.tasks}
        count = sum(samples[name] for name in self.in_midst)
        batch, epochs = self._run_settings.batch_size, int(getattr(self._settings, "epochs", 1))
        steps, step = epochs * -(-count // batch), self.saved.position.step
        what = "training on all tasks together" if self._shuffled else f"task {self.in_midst[0]}"
        return f"{what} is not finished: {step} of {steps} steps" + (", not closed yet" if step >= steps else "")

    @property
    def _settings(self) -> LearnerConfig:
        return build(registry.config_class(self.model.learner), self.model.settings, section="learner")

    @property
    def _run_settings(self) -> RunSettings:
        return build(RunSettings, self.saved.config.get("run", {}), section="run")

    @property
    def _shuffled(self) -> bool:
        return registry.entry(self.model.learner).kind.order == "shuffled"


def preprocess(spec: InputSpec, images: Images | None) -> str | None:
    """How an image file becomes an input; None if the inputs are no image files."""
    if images is None or len(spec.shape) != 3:
        return None
    channels, height, width = spec.shape
    return recipe((height, width), channels, resize=images == "resized")


def kept_model(directory: str | os.PathLike[str], *, seed: int | None = None, unfinished: bool = False) -> KeptModel:
    """The model of a run; while the run is being taught more, that of before.

    Args:
        directory: the run's.
        seed: which one; needed if there are several.
        unfinished: take the newest state of a run that is not finished, too.
    """
    place = RunDirectory(directory)
    if not files.is_folder(place.path):
        raise CheckpointError(f"{place.path} does not exist; name a run's directory, or a file that save() wrote")
    taught = place.unfinished and (place.path / results.RESULT_NAME).exists()  # or was stopped while it was
    if place.unfinished and not taught and not unfinished:
        raise CheckpointError(f"{place.path} is not finished: `scale-cl resume {place.path}` finishes it")
    folder = place.checkpoints_of(_seed(place, seed))
    if taught:
        tasks = len(results.read(place.path).seeds[0].tasks)
        path = folder / f"{checkpoint.name_of(Position(tasks, 0))}.json"
        if not path.exists():  # stored samples were deleted meanwhile
            raise CheckpointError(
                f"{place.path} is being taught: `scale-cl resume {place.path}` finishes its new model"
            )
        return KeptModel(place.path, path, checkpoint.read(path))
    return checkpoint.newest_good(folder, lambda path, saved: KeptModel(place.path, path, saved))


def _seed(place: RunDirectory, seed: int | None) -> int:
    """The seed to use: the given one, or the only one that has a model."""
    there = place.seeds
    seeds = ", ".join(map(str, there))
    if not there:
        if not place.unfinished and not (place.path / results.RESULT_NAME).exists():
            raise CheckpointError(f"{place.path} is not a run's directory: it has no {results.RESULT_NAME}")
        raise CheckpointError(f"{place.path} has kept no model; run it again with {KEEP}")
    if seed is None and len(there) > 1:
        raise ConfigError(f"{place.path} has several seeds ({seeds}); say which one with --seed S (seed=S in Python)")
    if seed is not None and seed not in there:
        raise CheckpointError(f"{place.path} has no model of seed {seed}; there are some of seed {seeds}")
    return there[0] if seed is None else seed


# ---- more tasks ------------------------------------------------------------------------------------------------------
def learn(
    directory: str | os.PathLike[str],
    stream: str,
    *,
    assignments: Iterable[str] = (),
    data: Path | None = None,
    force: bool = False,
    on_event: Listener | None = None,
    stop: Callable[[], bool] | None = None,
) -> RunResult:
    """Teach the model that a finished run has kept the tasks of one more stream; all its seeds learn.

        scale_cl.learn("runs/mine", "folder:next-month")

    The earlier tasks are still tested, where their data is still there, and the accuracy matrix grows. Until all is
    learnt, the model of before stays in use; after a stop or a crash, `learn` or `resume` goes on.

    Args:
        directory: the run's.
        stream: a name, `folder:PATH`, `csv:FILE`, or a function.
        assignments: other settings of `stream` and `run`, such as `run.batch_size=20`; by default they stay.
        data: where the data sets are.
        force: drop another stream that the run has begun to learn and not finished.
        on_event: called with every event, see `scale_cl.training.events`.
        stop: called after every step; once it returns true, the state is saved and `Interrupted` raised.
    """
    place = RunDirectory(directory)
    with opened(place):
        config = lesson(place, stream, assignments, force=force)
        return run(config, place, data=data, resume=True, on_event=on_event, stop=stop)


def opened(place: RunDirectory) -> AbstractContextManager[RunDirectory]:
    """The directory of a run that is there, claimed."""
    if place.path.is_file():
        raise CheckpointError(
            f"{place.path} is a file; only a run's directory can be taught, use load() and partial_fit"
        )
    if not files.is_folder(place.path):
        raise CheckpointError(f"{place.path} does not exist; name a run's directory")
    return place.claimed(force=True)


def lesson(place: RunDirectory, stream: str, assignments: Iterable[str] = (), *, force: bool = False) -> Config:
    """The config of a run in a claimed directory that is taught one more stream."""
    kept = kept_model(place.path, seed=place.seeds[0] if place.seeds else None)
    if place.seeds != sorted(one.seed for one in results.read(place.path).seeds):
        raise CheckpointError(f"{place.path} has lost the models of some seeds; run it again with {KEEP}")
    config = _lesson(kept, stream, list(assignments))
    if place.unfinished and place.request().config.as_dict() != config.as_dict():
        learning = place.request().config.stream.name
        if not force:
            raise OutputInUseError(
                f"{place.path} has begun to learn {learning} and not finished: `scale-cl resume {place.path}` goes on "
                "with it, --force drops it"
            )
        place.remove_note()
        for seed in place.seeds:
            checkpoint.keep_only(place.checkpoints_of(seed), [kept.path])
    return config


def _lesson(kept: KeptModel, stream: str, assignments: list[str]) -> Config:
    saved, model = kept.saved, kept.model
    if registry.entry(model.learner).kind.order == "shuffled":
        raise ConfigError(f"{model.learner} learns all tasks together, so it cannot be taught more of them")
    if not saved.streams or "stream" not in saved.config:
        raise CheckpointError(f"{kept.path} does not say what it has learnt, so it cannot be taught more; use load()")
    names = [parse_assignment(text)[0] for text in assignments]
    for name in names:
        if name.partition(".")[0] not in ("stream", "run"):
            raise ConfigError(f"--set {name}: only settings of stream and run can change; the learner stays as it is")
        if name in ("stream.name", "stream.scenario", "stream.boundaries", "run.seed", "run.seeds"):
            raise ConfigError(f"--set {name}: it stays as the model was made with it")
    before = streams_learnt(saved.config)
    stays = {k: v for k, v in as_dict(before[-1]).items() if k not in ("name", "tasks", "class_order", "part")}
    stays["scenario"] = _scenario(stream, model)
    recorded = {
        "learner": {"name": model.learner, **model.settings},
        "stream": stays,
        "run": {**saved.config.get("run", {}), "keep_state": True},
    }
    return replace(resolve(stream=stream, recorded=recorded, assignments=assignments), before=before)


def _scenario(stream: str, model: Model) -> str:
    """The setting that gives the stream the model's scenario; ConfigError for one of ours that cannot have it."""
    own = model.spec.scenario
    possible = catalog.ENTRIES[stream].scenarios if stream in catalog.ENTRIES else ()
    if possible and own not in possible:
        raise ConfigError(f"{stream} has the scenario {' or '.join(possible)}; the model was trained in scenario {own}")
    usual = "task" if is_own(stream) else possible[0] if possible else own
    return "default" if own == usual else own


def model_line(directory: Path) -> str:
    """Where the model of a finished run is, or how to keep it: the closing words of a run."""
    place = RunDirectory(directory)
    if not place.seeds:
        return f"no model was kept; {KEEP} keeps it"
    try:
        stored = sum(kept_model(directory, seed=seed).stored_samples for seed in place.seeds)
    except (CheckpointError, ResultError) as error:
        return f"the model cannot be read: {error}"
    holds = f"it holds {stored} training samples" if stored else "it holds no training samples"
    return f"the model is kept in {directory} ({holds}; `scale-cl info {directory}`)"
