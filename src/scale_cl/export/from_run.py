"""The trained learner of a run, restored from the newest good checkpoint in the run's directory."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch

from scale_cl import files
from scale_cl.engine.weightless import check_before_making
from scale_cl.errors import CheckpointError, ConfigError, DataError
from scale_cl.export.export_task import Subject, subject_of
from scale_cl.learners import Learner, State, registry
from scale_cl.streams import Stream
from scale_cl.training import checkpoint, checkpointing
from scale_cl.training.checkpoint import Checkpoint
from scale_cl.training.config import Config
from scale_cl.training.learner_run import learner_run
from scale_cl.training.run import build_learner, build_stream
from scale_cl.training.run_directory import RunDirectory


@dataclass(frozen=True, eq=False)
class Trained:
    """A learner on the CPU, the classes and inputs of its stream, and how far its training got."""

    learner: Learner
    classes: dict[str, tuple[str, ...]]  # class names per task of the stream
    preprocess: str | None  # how an image file becomes an input, for the user's own images
    unfinished: str | None  # a note if a task is partly trained
    in_midst: tuple[str, ...]  # tasks that are partly trained

    @property
    def unseen(self) -> list[str]:
        """Tasks of the stream that the run has not reached."""
        return [name for name in self.classes if name not in self.learner.tasks]

    def subject(self, task: str) -> Subject:
        """One task, ready for export."""
        return replace(subject_of(self.learner, task, self.classes.get(task)), preprocess=self.preprocess)


def learner_of_run(directory: Path, *, seed: int | None = None, root: Path | None = None) -> Trained:
    """The learner of one seed; `root` is the data root of the stream, which defines inputs and classes."""
    if not files.is_folder(directory):
        raise CheckpointError(f"{directory} does not exist; name a run's directory, or a file that save() wrote")
    run = RunDirectory(directory)

    def trained(path: Path, found: Checkpoint) -> Trained:
        config = Config.from_dict(found.config, path)
        stream = _stream(path, found, config, run, root)
        return _trained(_learner(found, config, stream), config, stream, found)

    return checkpoint.newest_good(run.checkpoints_of(_seed(run, seed)), trained)


def _seed(run: RunDirectory, seed: int | None) -> int:
    """The seed to use: the given one, or the only one that has checkpoints."""
    directory, there = run.path, run.seeds
    seeds = ", ".join(map(str, there))
    if not there:
        raise CheckpointError(
            f"{directory} holds no checkpoint: a finished run keeps none, unless it is run with --set "
            "run.keep_state=true"
        )
    if seed is None and len(there) > 1:
        raise ConfigError(f"{directory} has several seeds ({seeds}); say which one with --seed S")
    if seed is not None and seed not in there:
        raise CheckpointError(f"{directory} holds no checkpoint of seed {seed}; there are some of seed {seeds}")
    return there[0] if seed is None else seed


def _trained(learner: Learner, config: Config, stream: Stream, found: Checkpoint) -> Trained:
    own, classes = config.own_data, {task.name: task.classes for task in stream.tasks}
    preprocess = None if own is None else own.preprocess(stream.spec.shape)
    number, step = found.position
    if step == 0:  # no task is partly trained
        return Trained(learner, classes, preprocess, None, ())
    stages = learner_run(learner, stream).stages
    if number >= len(stages):
        raise CheckpointError(f"a checkpoint of {stream.name} is damaged: it is {step} steps past the last task")
    stage = stages[number]
    in_midst = tuple(classes)[number : stage.tested]
    steps = learner.epochs * -(-stage.samples // config.run.batch_size)
    what = f"task {stage.name}" if stage.name in classes else f"training on {stage.name}"
    far = f"{step} of {steps} steps" + (", not closed yet" if step >= steps else "")
    return Trained(learner, classes, preprocess, f"{what} is not finished: {far}", in_midst)


def _stream(path: Path, found: Checkpoint, config: Config, run: RunDirectory, root: Path | None) -> Stream:
    """The stream that the checkpoint's learner was trained on."""
    if run.unfinished:  # its note says where the data was
        request = run.request()
        config, root = replace(config, base=request.config.base), root or request.data
    stream = build_stream(config, found.model.seed, root)
    if found.data != checkpointing.fingerprint(stream):
        raise DataError(f"{path} was made with other data than {stream.name} has now")
    return stream


def _learner(found: Checkpoint, config: Config, stream: Stream) -> Learner:
    make = partial(build_learner, config, stream, found.model.seed, torch.device("cpu"))
    kind = registry.entry(config.learner_name).kind
    check_before_making(make, found.state, kind=kind, backbone=config.learner.backbone)
    learner = make()
    tensors = dict(found.state["tensors"])
    if "rng" in tensors:  # a GPU generator's state does not fit a CPU one; nothing is drawn here
        tensors["rng"] = learner.state_dict()["tensors"]["rng"]
    learner.load_state_dict(State(tensors=tensors, meta=found.state["meta"]))
    return learner
