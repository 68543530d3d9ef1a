"""One learner on its way through one stream: its steps, its tests, its loss terms.

On a GPU each run has a CUDA stream of its own, so that the small kernels of several runs share the device.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from scale_cl.engine import STREAM
from scale_cl.learners import Learner, StepStats
from scale_cl.learners.boundaries import BoundaryFinder, Detection
from scale_cl.streams import Stream, TaskInfo

CHUNK = 2000  # test samples per forward: large enough for a GPU, small enough for its caches and for a laptop


@dataclass(frozen=True)
class Stage:
    """A stretch of training that ends with a test."""

    name: str
    samples: int
    tested: int  # how many tasks, from the first on, are tested after it


class LearnerRun:
    """Trains on one task after another and is tested on all tasks so far after each."""

    def __init__(self, learner: Learner, stream: Stream, detection: Detection | None = None) -> None:
        """Move the stream to the learner's device; `detection` says how boundaries are found, if they are to be."""
        self.learner, self.stream = learner, stream.to(learner.device)
        self.finder: BoundaryFinder | None = None  # begins tasks where the data changes
        if stream.boundaries == "detect":
            classes = max(len(task.classes) for task in stream.tasks) if stream.scenario == "domain" else 1
            self.finder = BoundaryFinder(learner, detection, classes=classes)
        self.matrix: list[list[float | None]] = [[None] * len(stream) for _ in stream.tasks]
        self.stage = 0  # completed stages
        self.done = 0  # steps done in the current stage
        self.seconds_train = self.seconds_eval = 0.0
        self.losses: LossTerms | None = None  # set if losses are wanted
        self.x = self.y = torch.empty(0)
        self._cuda = torch.cuda.Stream(learner.device) if learner.device.type == "cuda" else None
        if self._cuda is not None:
            self._cuda.wait_stream(torch.cuda.current_stream(learner.device))

    @property
    def stages(self) -> list[Stage]:
        """The stages in order: one per task."""
        return [Stage(task.name, len(task.train), number + 1) for number, task in enumerate(self.stream.tasks)]

    def on_device(self) -> AbstractContextManager[Any]:
        """The context for this run's device work."""
        return nullcontext() if self._cuda is None else torch.cuda.stream(self._cuda)

    def begin(self) -> None:
        """Fetch the data of the current stage and begin its task, unless it was begun before a checkpoint."""
        with self.on_device():
            self._fetch()
            if self.done == 0:
                self._begin_tasks()

    def _fetch(self) -> None:
        self.x, self.y = self.stream.train_data(self.stage)

    def _begin_tasks(self) -> None:
        if self.finder is not None:
            return
        info = self.stream.tasks[self.stage].info
        self.learner.begin_task(TaskInfo(STREAM, info.classes) if self.stream.boundaries == "hidden" else info)

    def step(self, epoch: int, start: int, stop: int) -> None:
        """Learn from samples `start` to `stop` of the stage, in the given pass over them."""
        with self.on_device():
            stats = self._learn(epoch, start, stop)
            if self.losses is not None:
                self.losses.take(stats)
        self.done += 1

    def _learn(self, epoch: int, start: int, stop: int) -> StepStats:
        return (self.finder or self.learner).observe(self.x[start:stop], self.y[start:stop])

    def end(self) -> None:
        """End the task of the current stage, if the learner is told; a task that was found ends with the stream."""
        last = self.stage + 1 == len(self.stages)
        with self.on_device():
            if self.stream.boundaries == "told" or (self.finder is not None and last):
                self.learner.end_task()
        self.flush_losses()

    def flush_losses(self) -> None:
        """Report the loss terms gathered since the last report."""
        if self.losses is not None:
            with self.on_device():
                self.losses.flush()

    def test(self, tasks: int) -> list[float]:
        """Accuracies in percent on the first `tasks` tasks."""
        with self.on_device():
            return accuracies(self.learner, self.stream, tasks)

    def record(self, row: Sequence[float]) -> None:
        """Enter accuracies on the first tasks into the matrix and go on to the next stage."""
        self.matrix[len(row) - 1][: len(row)] = row
        self.stage, self.done = self.stage + 1, 0


class JointRun(LearnerRun):
    """Trains on all tasks shuffled together, in one stage, for learners whose `order` is "shuffled".

    Only the last row of the matrix is filled, so ACC is the only measure that is defined.
    """

    def __init__(self, learner: Learner, stream: Stream) -> None:
        """Number the samples of all tasks."""
        super().__init__(learner, stream)
        tasks = self.stream.tasks
        sizes = torch.tensor([len(task.train) for task in tasks])
        self._rows = torch.cat([task.train for task in tasks])  # [N] rows of the arrays
        self._task = torch.arange(len(tasks)).repeat_interleave(sizes).to(self._rows.device)  # [N]
        self._permutations = _permutations(self.stream)
        self._order = self._rows
        self._epoch = -1

    @property
    def stages(self) -> list[Stage]:
        """One stage, tested on all tasks."""
        return [Stage("all tasks together", len(self._rows), len(self.stream))]

    def _fetch(self) -> None:
        """Nothing: samples are looked up batch by batch."""

    def _begin_tasks(self) -> None:
        for task in self.stream.tasks:
            self.learner.begin_task(task.info)
        self.learner.end_task()

    def _learn(self, epoch: int, start: int, stop: int) -> StepStats:
        if epoch != self._epoch:  # each epoch has its own order, drawn from the stream's seed
            order = np.random.default_rng((self.stream.seed, epoch)).permutation(len(self._rows))
            self._order, self._epoch = torch.from_numpy(order).to(self._rows.device), epoch
        return self.learner.observe(*self._samples(self._order[start:stop]))

    def _samples(self, numbers: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Inputs, labels and tasks of these samples of the mixture."""
        rows, task = self._rows[numbers], self._task[numbers]
        x = self.stream.arrays.x_train[rows]
        if self._permutations is not None:
            x = x.flatten(1).gather(1, self._permutations[task]).view_as(x)
        return x, self.stream.train_labels[rows], task


def learner_run(learner: Learner, stream: Stream, detection: Detection | None = None) -> LearnerRun:
    """The run of a learner in the order of samples that it declares."""
    return JointRun(learner, stream) if learner.order == "shuffled" else LearnerRun(learner, stream, detection)


def _permutations(stream: Stream) -> Tensor | None:
    """The pixel permutation of each task [T, F], if any task has one."""
    if all(task.permutation is None for task in stream.tasks):
        return None
    same = torch.arange(stream.arrays.x_train[0].numel(), device=stream.device)
    return torch.stack([same if task.permutation is None else task.permutation for task in stream.tasks])


# ---- evaluation ------------------------------------------------------------------------------------------------------
def accuracies(learner: Learner, stream: Stream, tasks: int) -> list[float]:
    """Accuracy in percent on all test samples of each of the first `tasks` tasks; waits for the device once."""
    right = torch.stack([_hits(learner, stream, task) for task in range(tasks)])
    sizes = [len(task.test) for task in stream.tasks]
    return [100 * int(n) / size for n, size in zip(right.tolist(), sizes, strict=False)]


def _hits(learner: Learner, stream: Stream, task: int) -> Tensor:
    """The number of test samples of `task` that the learner classifies correctly, as a device tensor."""
    x, y = stream.test_data(task)
    told = stream.boundaries == "told" and stream.scenario != "class"
    name = stream.tasks[task].name if told else None
    right = [
        (learner.predict(part, name).argmax(1) == label.to(learner.device)).sum()
        for part, label in zip(x.split(CHUNK), y.split(CHUNK), strict=True)
    ]
    return torch.stack(right).sum()


# ---- loss terms ------------------------------------------------------------------------------------------------------
@dataclass
class _Sum:
    """The sum of terms that occurred together, over some steps."""

    total: Tensor  # [terms] float64, on the learner's device
    steps: int


@dataclass
class _Reading:
    """Sums that are being copied to the host."""

    step: int
    sums: dict[tuple[str, ...], _Sum]
    sent: torch.cuda.Event | None  # None: they are on the host

    @property
    def arrived(self) -> bool:
        return self.sent is None or self.sent.query()

    def means(self) -> dict[str, float]:
        """The mean of each term over the steps that had it."""
        if self.sent is not None:
            self.sent.synchronize()
        totals: dict[str, float] = {}
        steps: dict[str, int] = {}
        for names, part in self.sums.items():
            for name, value in zip(names, part.total.tolist(), strict=True):
                totals[name] = totals.get(name, 0.0) + value
                steps[name] = steps.get(name, 0) + part.steps
        return {name: total / steps[name] for name, total in totals.items()}


class LossTerms:
    """Sums the loss terms of every step on the device and reports their means every so many steps.

    The sums are copied to the host asynchronously and read once they have arrived, so the device never waits.
    """

    def __init__(self, every: int, *, done: int, report: Callable[[int, dict[str, float]], None]) -> None:
        """Call `report(step, means)` at every multiple of `every`; `done` steps were made before."""
        self._every, self._step, self._report = every, done, report
        self._sums: dict[tuple[str, ...], _Sum] = {}
        self._readings: deque[_Reading] = deque()

    @torch.no_grad()
    def take(self, stats: StepStats) -> None:
        """Add the terms of the next step, which may be overwritten afterwards: device work only."""
        self._step += 1
        terms = {name: t for name, t in stats.items() if t.dim() == 0}
        if terms:
            values = list(terms.values())
            alike = len({t.dtype for t in values}) == 1  # as losses are: two kernel launches are enough
            row = torch.stack(values if alike else [t.double() for t in values]).double()
            known = self._sums.get(tuple(terms))
            if known is None:
                self._sums[tuple(terms)] = _Sum(row, 1)
            else:
                known.total += row
                known.steps += 1
        if self._step % self._every == 0:
            self._send()
        while self._readings and self._readings[0].arrived:
            self._pass_on()

    def flush(self) -> None:
        """Report everything gathered so far; waits for the device."""
        self._send()
        while self._readings:
            self._pass_on()

    def _send(self) -> None:
        sums, self._sums = self._sums, {}
        if not sums:
            return
        sent = None
        if any(part.total.is_cuda for part in sums.values()):
            for part in sums.values():
                on_host = torch.empty(part.total.shape, dtype=part.total.dtype, pin_memory=True)
                part.total = on_host.copy_(part.total, non_blocking=True)
            sent = torch.cuda.Event()
            sent.record()
        self._readings.append(_Reading(self._step, sums, sent))

    def _pass_on(self) -> None:
        reading = self._readings.popleft()
        self._report(reading.step, reading.means())
