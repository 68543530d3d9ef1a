"""The trained learner of a run, made again from the newest good checkpoint in its directory, and its classes' names."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from scale_cl.errors import CheckpointError, ConfigError, DataError
from scale_cl.learners import Learner, State
from scale_cl.streams import Stream
from scale_cl.training import checkpoint, keeper, run_file
from scale_cl.training.checkpoint import Checkpoint
from scale_cl.training.seeds import build_learner, build_stream

_log = logging.getLogger("scale_cl")


@dataclass(frozen=True, eq=False)
class Trained:
    """A learner on the CPU, and the names of the classes of each task of its stream."""

    learner: Learner
    classes: dict[str, tuple[str, ...]]


def learner_of_run(directory: Path, *, seed: int | None = None, root: Path | None = None) -> Trained:
    """The learner of one seed; `root` is where the data lies, which says what inputs and classes are."""
    if not directory.is_dir():
        raise CheckpointError(f"{directory} does not exist; name a run's directory, or a file that save() wrote")
    folder = _folder(directory, seed)
    refused = ""
    for path in checkpoint.found(folder):
        try:
            found = checkpoint.read(path)
            stream = _stream(path, found, directory, root)
            return Trained(_learner(path, found, stream), {task.name: task.classes for task in stream.tasks})
        except CheckpointError as error:
            refused = str(error)
            _log.warning("scale-cl: warning: checkpoint refused, trying the one before: %s", refused)
    raise CheckpointError(f"no checkpoint in {folder} can be used, the last because: {refused}")


def _folder(directory: Path, seed: int | None) -> Path:
    there: dict[int, Path] = {}
    for folder in (directory / keeper.FOLDER).glob("seed-*"):
        number = folder.name.removeprefix("seed-")
        if number.isdecimal() and checkpoint.found(folder):
            there[int(number)] = folder
    seeds = ", ".join(map(str, sorted(there)))
    if not there:
        raise CheckpointError(
            f"{directory} holds no checkpoint: a finished run keeps none, unless it is run with --set "
            "run.keep_state=true"
        )
    if seed is None and len(there) > 1:
        raise ConfigError(f"{directory} has several seeds ({seeds}); say which one with --seed S")
    if seed is not None and seed not in there:
        raise CheckpointError(f"{directory} holds no checkpoint of seed {seed}; there are some of seed {seeds}")
    return there[min(there) if seed is None else seed]


def _stream(path: Path, found: Checkpoint, directory: Path, root: Path | None) -> Stream:
    """The stream that the checkpoint's learner was trained on."""
    config = run_file.config_of(found.config, path)
    if (directory / run_file.RUN_NAME).exists():  # not finished: it is noted where the data was
        asked = run_file.read(directory)
        config, root = replace(config, base=asked.config.base), root or asked.root
    stream = build_stream(config, found.seed, root)
    if found.data != keeper.fingerprint(stream):
        raise DataError(f"{path} was made with other data than {stream.name} has now")
    return stream


def _learner(path: Path, found: Checkpoint, stream: Stream) -> Learner:
    config = run_file.config_of(found.config, path)
    learner = build_learner(config, stream, found.seed, torch.device("cpu"))
    tensors = dict(found.state["tensors"])
    if "rng" in tensors:  # the draws of a GPU mean nothing here, and nothing will be drawn
        tensors["rng"] = learner.state_dict()["tensors"]["rng"]
    learner.load_state_dict(State(tensors=tensors, meta=found.state["meta"]))
    return learner
