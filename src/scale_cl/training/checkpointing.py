"""When checkpoints are written, how many stay, and going on from the newest good one."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import torch

from scale_cl.errors import CheckpointError, Interrupted
from scale_cl.learners import State
from scale_cl.streams import Stream
from scale_cl.training import checkpoint
from scale_cl.training.checkpoint import Checkpoint, Position
from scale_cl.training.device_to_host import HostCopy
from scale_cl.training.learner_run import LearnerRun

if TYPE_CHECKING:
    from scale_cl.training.loop import Runners

FOLDER = "checkpoints"
_NO_MATTER = {"seed", "seeds", "processes", "keep_state", "on_divergence"}  # what does not change a seed's bits
_WRITERS = 4  # threads that write beside training: most of writing is waiting for the disk
_log = logging.getLogger("scale_cl")


class Checkpointer:
    """Writes the lanes of a training run to `directory/checkpoints/seed-S` and brings them back."""

    def __init__(
        self,
        directory: Path,
        *,
        every: int = 0,
        seconds: float = 0.0,
        kept: int = 2,
        resume: bool = False,
        stop: Callable[[], bool] | None = None,
        beside: bool | None = None,
    ) -> None:
        """Write at the end of every task, and within tasks after `every` steps or `seconds` (0: not).

        Args:
            directory: where the run writes.
            every: steps from one checkpoint to the next.
            seconds: time from one checkpoint to the next.
            kept: how many of a seed stay; the one before serves if the newest turns out damaged.
            resume: go on from what is there; without it, a directory with checkpoints is refused.
            stop: asked after every step or block of them; once it says yes, a checkpoint and `Interrupted` follow.
            beside: write while training goes on, in a thread (None: where training is on a GPU, as the host has time
                there). What cannot be written is then known at the next `save`, or at the end.
        """
        self.directory, self._every, self._seconds, self._kept = directory, every, seconds, kept
        self._resume, self._stop = resume, stop
        self._config: Mapping[str, Any] = {}
        self._data: dict[int, str] = {}
        self._began = self._last = time.monotonic()
        self._beside = beside
        self._writer: ThreadPoolExecutor | None = None
        self._writing: list[Future[None]] = []

    def __enter__(self) -> Self:
        """Training begins."""
        return self

    def __exit__(self, kind: type[BaseException] | None, *_error: object) -> None:
        """Training is over: what is being written is finished; if that fails it is told, unless an error is already."""
        try:
            with contextlib.nullcontext() if kind is None else contextlib.suppress(CheckpointError):
                self._written()
        finally:
            if self._writer is not None:
                self._writer.shutdown()
                self._writer = None

    def folder(self, seed: int) -> Path:
        """Where the checkpoints of one seed are."""
        return seed_folder(self.directory, seed)

    def restore(self, lanes: Sequence[LearnerRun], streams: Sequence[Stream], config: Mapping[str, Any]) -> None:
        """Set each lane to its newest good checkpoint, if it has any; called once, before training."""
        self._config = config
        for lane, stream in zip(lanes, streams, strict=True):
            self._data[stream.seed] = fingerprint(stream)
            paths = checkpoint.found(self.folder(stream.seed))
            if paths and not self._resume:
                raise CheckpointError(f"{paths[0].parent} holds checkpoints already; go on from them, or remove them")
            self._restore_newest(lane, paths)

    def due(self, done: int) -> bool:
        """After a step, the `done`-th of the run: whether it is time to `save`."""
        if self._stop is not None and self._stop():
            return True
        if self._every and done % self._every == 0:
            return True
        return bool(self._seconds) and time.monotonic() - self._last >= self._seconds

    def next_due(self, done: int) -> int:
        """After `done` steps of the run: the step after which it is next to be asked whether it is time to `save`."""
        return done - done % self._every + self._every if self._every else sys.maxsize

    def save(self, lanes: Sequence[LearnerRun], runners: Runners) -> None:
        """Write all lanes, each over what is too old of it; raises Interrupted if the run is to stop."""
        self._written()
        if self._beside is None:
            self._beside = bool(lanes) and all(lane.learner.device.type == "cuda" for lane in lanes)
        if self._beside:
            self._writer = self._writer or ThreadPoolExecutor(_WRITERS)
            taken = runners.in_turn(lanes, self._taken)
            self._writing = [self._writer.submit(self._write, one) for one in taken]
        else:
            runners.each(lanes, lambda lane: self._write(self._taken(lane)))
        self._last = time.monotonic()
        if self._stop is not None and self._stop():
            self._written()
            raise Interrupted(f"stopped as asked; go on with: scale-cl resume {self.directory}")

    def _taken(self, lane: LearnerRun) -> _Taken:
        """The lane as it is now, of which training changes nothing any more."""
        packed = ready = None
        with lane.on_device():
            lane.learner.check_finite()
            state = lane.learner.state_dict()
            if lane.learner.device.type == "cuda":
                packed = HostCopy(state["tensors"], next(lane.learner.net.parameters()).device)
                state["tensors"] = {}
                ready = torch.cuda.Event()
                ready.record()
        now = Checkpoint(
            stream=lane.stream.name,
            learner=lane.learner.name,
            seed=lane.stream.seed,
            config=dict(self._config),
            data=self._data[lane.stream.seed],
            position=Position(lane.stage, lane.done),
            matrix=[list(row) for row in lane.matrix],
            seconds_train=lane.seconds_train,
            seconds_eval=lane.seconds_eval,
            seconds_wall=time.monotonic() - self._began,
            state=state,
        )
        return _Taken(now, packed, ready)

    def _written(self) -> None:
        """Wait for what is being written; CheckpointError if any of it could not be."""
        writing, self._writing = self._writing, []
        wait(writing)
        for one in writing:
            one.result()

    def _write(self, taken: _Taken) -> None:
        now = taken.complete()
        folder = self.folder(now.seed)
        try:
            checkpoint.write(folder, now)
            checkpoint.keep_newest(folder, self._kept)
        except OSError as error:
            raise CheckpointError(
                f"a checkpoint cannot be written to {self.directory}: {error.strerror or error}; the last good one "
                f"stays, and once the disk is well `scale-cl resume {self.directory}` goes on from it"
            ) from error

    def _restore_newest(self, lane: LearnerRun, paths: list[Path]) -> None:
        refused = ""
        for path in paths:
            try:
                found = checkpoint.read(path)
                self._check(path, found, lane)
                with lane.on_device():
                    lane.learner.load_state_dict(found.state)
            except checkpoint.NewerCheckpointError:
                raise  # to go on from an older one would be to overwrite it
            except CheckpointError as error:
                refused = str(error)
                _log.warning("scale-cl: warning: checkpoint refused, trying the one before: %s", refused)
                continue
            lane.stage, lane.done = found.position
            lane.matrix = found.matrix
            lane.seconds_train, lane.seconds_eval = found.seconds_train, found.seconds_eval
            self._began = min(self._began, time.monotonic() - found.seconds_wall)
            return
        if paths:
            raise CheckpointError(
                f"no checkpoint of {len(paths)} in {paths[0].parent} can be used, the last because: {refused}; "
                "remove the folder to begin this seed anew"
            )

    def _check(self, path: Path, found: Checkpoint, lane: LearnerRun) -> None:
        """Refuse what is whole but not of this run."""
        stream = lane.stream
        mine = (stream.name, lane.learner.name, stream.seed)
        theirs = (found.stream, found.learner, found.seed)
        if theirs != mine:
            raise CheckpointError(f"{path} is foreign: it is of {_words(theirs)}, expected {_words(mine)}")
        if _decisive(found.config) != _decisive(self._config):
            raise CheckpointError(f"{path} is foreign: it was made with another config")
        if found.data != self._data[stream.seed]:
            raise CheckpointError(f"{path} was made with other data than the stream has now")
        drawn, here = found.state["tensors"].get("rng"), torch.Generator(lane.learner.device).get_state()
        if drawn is not None and drawn.shape != here.shape:
            raise CheckpointError(
                f"{path} was made on another kind of device than {lane.learner.device}, where its random numbers "
                "cannot go on: resume it where it ran"
            )
        if len(found.matrix) != len(stream) or found.position.stage > len(lane.stages):
            raise CheckpointError(f"{path} is damaged: it has {len(found.matrix)} tasks, the stream has {len(stream)}")


@dataclass(frozen=True)
class _Taken:
    """A checkpoint whose tensors may still be on their way."""

    checkpoint: Checkpoint
    packed: HostCopy | None = None  # its tensors, where they are on a device
    ready: torch.cuda.Event | None = None  # when the device has them together

    def complete(self) -> Checkpoint:
        """With all tensors on the host; waits for the device."""
        if self.ready is not None:
            self.ready.synchronize()
        if self.packed is None:
            return self.checkpoint
        state: State = {"tensors": self.packed.unpacked(), "meta": self.checkpoint.state["meta"]}
        return replace(self.checkpoint, state=state)


def seed_folder(directory: Path, seed: int) -> Path:
    """Where a run keeps the checkpoints of one seed."""
    return directory / FOLDER / f"seed-{seed}"


def seconds_spent(directory: Path, seeds: Sequence[int]) -> float:
    """How long the run in `directory` has taken so far, by its newest good checkpoint; 0 if there is none."""
    spent = [0.0]
    for seed in seeds:
        for path in checkpoint.found(seed_folder(directory, seed)):
            with contextlib.suppress(CheckpointError):
                spent.append(checkpoint.read(path).seconds_wall)
                break
    return max(spent)


def remove_all(directory: Path) -> None:
    """Remove the checkpoints of all seeds, with the samples of the memory in them."""
    shutil.rmtree(directory / FOLDER, ignore_errors=True)


def remove_unless_any(directory: Path) -> bool:
    """Remove an empty set of folders; whether there is any checkpoint."""
    if any(checkpoint.found(folder) for folder in sorted((directory / FOLDER).glob("seed-*"))):
        return True
    remove_all(directory)
    return False


def fingerprint(stream: Stream) -> str:
    """A checksum of the tasks: their names, the order of arrival, the labels and the permutations.

    All that a stream draws is drawn when it is built, from its seed, so a position in it needs no random state.
    """
    sums = hashlib.sha256(json.dumps([stream.name, stream.scenario, stream.seed, list(stream.spec.shape)]).encode())
    for k, task in enumerate(stream.tasks):
        sums.update(json.dumps([task.name, list(task.classes)]).encode())
        for part in (task.train, task.test, task.permutation, stream.train_labels[task.train]):
            sums.update(b"-" if part is None else part.cpu().numpy().tobytes())
        if k == 0:  # the pixels themselves: a sample of them, as all may be gigabytes
            sums.update(stream.arrays.x_train[task.train[:100]].cpu().numpy().tobytes())
    return sums.hexdigest()


def _decisive(config: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a config that a seed's bits follow from."""
    plain: dict[str, Any] = json.loads(json.dumps(dict(config)))
    run = plain.get("run")
    if isinstance(run, dict):
        plain["run"] = {k: v for k, v in run.items() if k not in _NO_MATTER and not k.startswith("checkpoint")}
    return plain


def _words(of: tuple[str, str, int]) -> str:
    return f"{of[1]} on {of[0]}, seed {of[2]}"
