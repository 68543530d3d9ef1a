"""When checkpoints are written and how many stay; learners restored from the newest good ones."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from scale_cl.errors import CheckpointError, Interrupted
from scale_cl.learners import Learner, State
from scale_cl.settings import as_dict
from scale_cl.streams import Stream
from scale_cl.streams.user_streams import is_own
from scale_cl.training import checkpoint
from scale_cl.training.checkpoint import (
    Checkpoint,
    Images,
    LearntStream,
    Model,
    Position,
    SavedTask,
    UnwrittenCheckpointError,
)
from scale_cl.training.learner_run import LearnerRun
from scale_cl.training.learnt_streams import learnt_streams
from scale_cl.training.parallel import Runners
from scale_cl.training.run_directory import RunDirectory

_IRRELEVANT = {"seed", "seeds", "processes", "keep_state", "on_divergence"}  # run settings that change no seed's bits
_WHERE_READ = {"keep", "workers"}  # stream settings that change no bits, as long as all samples can be read
_WRITERS = 4  # threads that write while training goes on: they mostly wait for the disk


class Checkpointer:
    """Writes checkpoints of learners to `directory/checkpoints/seed-S` and restores learners from them."""

    def __init__(
        self,
        directory: Path | Sequence[Path],
        *,
        every: int = 0,
        seconds: float = 0.0,
        kept: int = 2,
        resume: bool = False,
        stop: Callable[[], bool] | None = None,
        beside: bool | None = None,
        here: str | None = None,
    ) -> None:
        """Write at the end of every task, and within tasks every `every` steps or `seconds` seconds (0: never).

        Args:
            directory: where the run writes; one per learner if they are of several runs.
            every: steps from one checkpoint to the next.
            seconds: seconds from one checkpoint to the next.
            kept: how many checkpoints per seed stay; an earlier one serves if the newest is damaged.
            resume: continue from the checkpoints that are there; without it, a directory with checkpoints is refused.
            stop: called after every step or block of steps; once it returns true, the state is saved and
                `Interrupted` raised.
            beside: write in threads while training goes on (None: if training is on a GPU, where the host has time).
                A write that failed is then reported by the next `save`, or at the end.
            here: where a relative path of the stream begins, seen from `directory`; recorded.
        """
        self._directories = [directory] if isinstance(directory, Path) else list(directory)
        self._every, self._seconds, self._kept = every, seconds, kept
        self._resume, self._stop = resume, stop
        self._here = here
        self._known: dict[LearnerRun, _Known] = {}
        self._began = self._last = time.monotonic()
        self._beside = beside
        self._writer: ThreadPoolExecutor | None = None
        self._writing: list[Future[None]] = []

    def __enter__(self) -> Self:
        """Training begins."""
        return self

    def __exit__(self, kind: type[BaseException] | None, *_error: object) -> None:
        """Training is over: finish writing, and raise if that fails, unless there is an error already."""
        try:
            with contextlib.nullcontext() if kind is None else contextlib.suppress(CheckpointError):
                self._finish_writing()
        finally:
            if self._writer is not None:
                self._writer.shutdown()
                self._writer = None

    def restore(
        self, runs: Sequence[LearnerRun], streams: Sequence[Stream], configs: Sequence[Mapping[str, Any]]
    ) -> None:
        """Set each run to its newest good checkpoint, if it has any; called once, before training."""
        where = self._directories * len(runs) if len(self._directories) == 1 else self._directories
        for run, stream, config, directory in zip(runs, streams, configs, where, strict=True):
            folder = RunDirectory(directory).checkpoints_of(stream.seed)
            self._known[run] = _Known(folder, config, learnt_streams(stream, self._here))
            if not checkpoint.found(folder):
                continue
            if not self._resume:
                raise CheckpointError(f"{folder} holds checkpoints already; resume from them, or remove them")
            checkpoint.newest_good(folder, partial(self._restore, run))

    def due(self, done: int) -> bool:
        """Whether to `save` after `done` steps of the run."""
        if self._stop is not None and self._stop():
            return True
        if self._every and done % self._every == 0:
            return True
        return bool(self._seconds) and time.monotonic() - self._last >= self._seconds

    def next_due(self, done: int) -> int:
        """The next step at which to call `due`, after `done` steps."""
        return done - done % self._every + self._every if self._every else sys.maxsize

    def save(self, runs: Sequence[LearnerRun], runners: Runners) -> None:
        """Write a checkpoint of each run and remove old ones; raises Interrupted if training is to stop."""
        self._finish_writing()
        if self._beside is None:
            self._beside = bool(runs) and all(run.learner.device.type == "cuda" for run in runs)
        if self._beside:
            self._writer = self._writer or ThreadPoolExecutor(_WRITERS)
            taken = runners.in_turn(runs, self._snapshot)
            self._writing = [self._writer.submit(self._write, one) for one in taken]
        else:
            runners.each(runs, lambda run: self._write(self._snapshot(run)))
        self._last = time.monotonic()
        if self._stop is not None and self._stop():
            self._finish_writing()
            raise Interrupted(f"stopped as asked; go on with: scale-cl resume {self._directories[0]}")

    def _snapshot(self, run: LearnerRun) -> _Snapshot:
        """The run as it is now; training does not change it any more."""
        packed = ready = None
        known = self._known[run]
        run.flush_counts()
        with run.on_device():
            run.learner.check_finite()
            state = run.learner.state_dict()
            found = None if run.finder is None else run.finder.state_dict()
            if run.learner.device.type == "cuda":
                packed = HostCopy(state["tensors"], next(run.learner.net.parameters()).device)
                state["tensors"] = {}
                ready = torch.cuda.Event()
                ready.record()
        learner, classes = run.learner, {task.name: task.classes for task in run.stream.tasks}
        met = run.stream.tasks[min(run.stage, len(run.stream) - 1)].classes  # of tasks without borders, or found
        model = Model(
            learner=learner.name,
            settings=as_dict(learner.config),
            seed=run.stream.seed,
            spec=learner.spec,
            tasks=tuple(SavedTask(name, classes.get(name, met)) for name in learner.tasks),
            state=state,
            images=_images(known.config),
        )
        now = Checkpoint(
            model=model,
            stream=run.stream.name,
            data=known.streams[-1].data,
            streams=known.streams,
            config=dict(known.config),
            position=Position(run.stage, run.done),
            matrix=[list(row) for row in run.matrix],
            seconds_train=run.seconds_train,
            seconds_eval=run.seconds_eval,
            seconds_wall=time.monotonic() - self._began,
            evaluations=tuple(run.evaluations),
            predictions=(*run.predictions, *([] if run.prequential is None else run.prequential.unfinished())),
            skipped=run.skipped,
            boundaries=found,
        )
        return _Snapshot(known.folder, now, packed, ready)

    def _finish_writing(self) -> None:
        """Wait for the writers; CheckpointError if one of them failed."""
        writing, self._writing = self._writing, []
        wait(writing)
        for one in writing:
            one.result()

    def _write(self, snapshot: _Snapshot) -> None:
        now, folder = snapshot.complete(), snapshot.folder
        try:
            checkpoint.write(folder, now)
            kept = checkpoint.found(folder)[: self._kept]
            checkpoint.keep_only(folder, [*kept, folder / f"{checkpoint.name_of(_start(now.streams))}.json"])
        except OSError as error:
            raise UnwrittenCheckpointError(
                f"a checkpoint cannot be written to {folder.parents[1]}: {error.strerror or error}"
            ) from error

    def _restore(self, run: LearnerRun, path: Path, saved: Checkpoint) -> None:
        begins = self._begins_from(saved, run)
        self._check(path, saved, run, begins=begins)
        with run.on_device():
            run.learner.load_state_dict(on_this_device(saved.state, run.learner) if begins else saved.state)
            if run.finder is not None:
                run.finder.load_state_dict(saved.boundaries or {"tensors": {}, "meta": {}})
        run.stage, run.done = saved.position
        size = len(run.stream)
        run.matrix = [[None] * size for _ in range(size)]
        for row, known in zip(run.matrix, saved.matrix, strict=False):
            row[: len(known)] = known
        run.evaluations, run.predictions = list(saved.evaluations), list(saved.predictions)
        run.seconds_train, run.seconds_eval, run.skipped = saved.seconds_train, saved.seconds_eval, saved.skipped
        self._began = min(self._began, time.monotonic() - saved.seconds_wall)

    def _begins_from(self, saved: Checkpoint, run: LearnerRun) -> bool:
        """Whether it is the end of the streams before the last one, from which the run is taught the last one."""
        streams = self._known[run].streams
        return len(streams) > 1 and saved.streams == streams[:-1] and saved.position == _start(streams)

    def _check(self, path: Path, saved: Checkpoint, run: LearnerRun, *, begins: bool) -> None:
        """Refuse a checkpoint that is whole but not of this run."""
        stream, known = run.stream, self._known[run]
        mine = (stream.name, run.learner.name, stream.seed)
        theirs = (saved.stream, saved.model.learner, saved.model.seed)
        if theirs != mine:
            raise CheckpointError(f"{path} is foreign: it is of {_words(theirs)}, expected {_words(mine)}")
        if begins:
            if saved.config.get("learner") != json.loads(json.dumps(known.config.get("learner"))):
                raise CheckpointError(f"{path} is foreign: its learner has other settings")
            return
        if not same_settings(saved.config, known.config):
            raise CheckpointError(f"{path} is foreign: it was made with another config")
        if saved.data != known.streams[-1].data:
            raise CheckpointError(f"{path} was made with other data than the stream has now")
        drawn, here = saved.state["tensors"].get("rng"), torch.Generator(run.learner.device).get_state()
        if drawn is not None and drawn.shape != here.shape:
            raise CheckpointError(
                f"{path} was made on another kind of device than {run.learner.device}, where its random numbers "
                "cannot continue: resume it where it ran"
            )
        if len(saved.matrix) != len(stream) or saved.position.stage > len(run.stages):
            raise CheckpointError(f"{path} is damaged: it has {len(saved.matrix)} tasks, the stream has {len(stream)}")


@dataclass(frozen=True)
class _Known:
    """What the checkpoints of one run record, and where they are."""

    folder: Path
    config: Mapping[str, Any]
    streams: tuple[LearntStream, ...]


@dataclass(frozen=True)
class _Snapshot:
    """A checkpoint whose tensors may still be on the device."""

    folder: Path
    checkpoint: Checkpoint
    packed: HostCopy | None = None  # its tensors, if they are on a GPU
    ready: torch.cuda.Event | None = None  # when the device has packed them

    def complete(self) -> Checkpoint:
        """The checkpoint with all tensors on the host; waits for the device."""
        if self.ready is not None:
            self.ready.synchronize()
        if self.packed is None:
            return self.checkpoint
        return self.checkpoint.with_state({"tensors": self.packed.unpacked(), "meta": self.checkpoint.state["meta"]})


class HostCopy:
    """Tensors of a device, joined per dtype, so that they are copied to the host in a few transfers."""

    def __init__(self, tensors: Mapping[str, Tensor], device: torch.device) -> None:
        """Join those on `device` there, without waiting; the others stay as they are."""
        self._tensors = dict(tensors)
        kinds: dict[torch.dtype, list[str]] = defaultdict(list)
        for name, tensor in tensors.items():
            if tensor.device == device:
                kinds[tensor.dtype].append(name)
        self._blocks = [
            (torch.cat([tensors[name].reshape(-1) for name in names]), {name: tensors[name].shape for name in names})
            for names in kinds.values()
        ]
        for _, shapes in self._blocks:
            self._tensors.update(dict.fromkeys(shapes, torch.empty(0)))  # keeps their order

    def unpacked(self) -> dict[str, Tensor]:
        """The tensors on the host, in the order they were given; waits for the device."""
        for block, shapes in self._blocks:
            parts = block.cpu().split([shape.numel() for shape in shapes.values()])
            for (name, shape), part in zip(shapes.items(), parts, strict=True):
                self._tensors[name] = part.view(shape).clone()  # none holds the whole block
        return self._tensors


def on_this_device(state: State, learner: Learner) -> State:
    """The state of a learner that may have been trained on another kind of device, whose draws cannot be continued."""
    fresh = learner.state_dict()["tensors"].get("rng")
    tensors = dict(state["tensors"])
    if fresh is not None and "rng" in tensors and tensors["rng"].shape != fresh.shape:
        tensors["rng"] = fresh
    return State(tensors=tensors, meta=state["meta"])


def _start(streams: Sequence[LearntStream]) -> Position:
    """Where the last of these streams begins."""
    return Position(sum(len(one.tasks) for one in streams[:-1]), 0)


def _images(config: Mapping[str, Any]) -> Images | None:
    """How image files become inputs; None if the stream is not of image files of the user's own."""
    stream = config.get("stream")
    if not isinstance(stream, Mapping) or not is_own(str(stream.get("name"))):
        return None
    return "exact" if stream.get("size") is None else "resized"


def same_settings(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two configs give a seed the same bits."""
    return _decisive(one) == _decisive(other)


def _decisive(config: Mapping[str, Any]) -> dict[str, Any]:
    plain: dict[str, Any] = json.loads(json.dumps(dict(config)))
    run, stream = plain.get("run"), plain.get("stream")
    if isinstance(run, dict):
        plain["run"] = {k: v for k, v in run.items() if k not in _IRRELEVANT and not k.startswith("checkpoint")}
    if isinstance(stream, dict) and stream.get("on_error") == "stop":
        plain["stream"] = {k: v for k, v in stream.items() if k not in _WHERE_READ}
    return plain


def _words(of: tuple[str, str, int]) -> str:
    return f"{of[1]} on {of[0]}, seed {of[2]}"
