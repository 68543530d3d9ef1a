"""One learner on its way through one stream: its steps, its tests, and what is measured meanwhile.

On a GPU each run has a CUDA stream of its own, so that the small kernels of several runs share the device.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from scale_cl.engine import STREAM
from scale_cl.errors import DataError, StreamError
from scale_cl.learners import Learner, StepStats
from scale_cl.learners.boundaries import BoundaryFinder, Detection
from scale_cl.metrics import Evaluation, Predictions
from scale_cl.streams import Stream, TaskInfo
from scale_cl.streams.reading import LazyRows, ReadAhead
from scale_cl.streams.stream import Arrival
from scale_cl.training.monitoring import AnytimeTests, LossTerms, Prequential, Timer, predicted

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
        self.steps = 0  # steps done in all
        self.skipped = 0  # training samples that could not be read and were left out of their batches
        self.seconds_train = self.seconds_eval = 0.0
        self.losses: LossTerms | None = None  # set if losses are wanted
        self.tests: AnytimeTests | None = None  # set if evaluations within tasks are wanted
        self.evaluations: list[Evaluation] = []  # their results
        self.prequential: Prequential | None = None  # set if predictions before learning are wanted
        self.predictions: list[Predictions] = []  # their counts
        self.evaluating = Timer(learner.device)  # the time of both
        self.samples: Arrival | ReadAhead = Arrival(torch.empty(0), torch.empty(0))  # of the current stage
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
        self.samples = self.stream.arrival(self.stage, self.learner.device)

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
        self.steps += 1

    def _learn(self, epoch: int, start: int, stop: int) -> StepStats:
        return self._observe(epoch, min(stop, len(self.samples)) - start, *self.samples.take(start, stop))

    def _observe(self, epoch: int, size: int, x: Tensor, y: Tensor, task: Tensor | None = None) -> StepStats:
        """Learn from a batch that should have `size` samples.

        When it is seen for the first time, it is predicted before, if that is asked for, and what it lacks is counted.
        """
        if epoch == 0:
            self.skipped += size - len(x)
        if len(x) == 0:  # every sample of the batch may have been skipped
            return {}
        if self.prequential is not None and epoch == 0:
            with self.evaluating.running():
                scores = None  # before the first step nothing has been learnt
                if self.learner.steps:
                    mixed = self.learner.engine.predict_mixed
                    scores = predicted(self.learner, self.stream, x, self.stage) if task is None else mixed(x, task)
                self.prequential.take(self.steps + 1, scores, y)
        if task is not None:
            return self.learner.observe(x, y, task)
        return (self.finder or self.learner).observe(x, y)

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

    def evaluate(self, tasks: int) -> None:
        """Test on a sample of the first `tasks` tasks, if evaluations within tasks are wanted; waits for nothing."""
        if self.tests is not None:
            with self.on_device(), self.evaluating.running():
                self.tests.evaluate(self.steps, tasks)

    def flush_counts(self, *, end: bool = False) -> None:
        """Have all evaluations and counts reported, at the `end` of training an unfinished one too.

        Waits for the device.
        """
        with self.on_device():
            if self.tests is not None:
                self.tests.flush()
            if self.prequential is not None:
                (self.prequential.finish if end else self.prequential.flush)()

    def test(self, tasks: int) -> list[float | None]:
        """Accuracies in percent on the first `tasks` tasks; None for tasks of earlier streams whose data is gone."""
        there = [task for task in range(tasks) if len(self.stream.tasks[task].test)]
        with self.on_device():
            tested = dict(zip(there, accuracies(self.learner, self.stream, there), strict=True))
        return [tested.get(task) for task in range(tasks)]

    def record(self, row: Sequence[float | None]) -> None:
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
        self._rows = torch.cat([task.train for task in tasks])  # [N] rows of the arrays
        self._task = torch.cat([self.stream.origin(k) for k in range(len(tasks))])  # [N]
        self._permutations = self.stream.permutations
        self._order = self._rows
        self._ahead: ReadAhead | None = None  # for data that is read as it comes
        self._epoch = -1
        x = self.stream.arrays.x_train
        if isinstance(x, LazyRows) and x.readers.source.sequential:
            raise StreamError(
                f"{stream.name} is read in order only; a learner that shuffles all tasks together needs data sets with "
                "a length and items"
            )

    @property
    def stages(self) -> list[Stage]:
        """One stage, tested on all tasks."""
        return [Stage("all tasks together", len(self._rows), len(self.stream))]

    def _fetch(self) -> None:
        """Nothing: each epoch has an order of its own."""

    def _begin_tasks(self) -> None:
        for task in self.stream.tasks:
            self.learner.begin_task(task.info)
        self.learner.end_task()

    def _learn(self, epoch: int, start: int, stop: int) -> StepStats:
        if epoch != self._epoch:  # each epoch has its own order, drawn from the stream's seed
            order = np.random.default_rng((self.stream.seed, epoch)).permutation(len(self._rows))
            self._order, self._epoch = torch.from_numpy(order).to(self._rows.device), epoch
            self._ahead = self._reading(self._order)
        x, y, task = self._samples(start, stop)
        if self._permutations is not None:
            x = x.flatten(1).gather(1, self._permutations[task]).view_as(x)
        return self._observe(epoch, min(stop, len(self._rows)) - start, x, y, task)

    def _reading(self, order: Tensor) -> ReadAhead | None:
        x, rows = self.stream.arrays.x_train, self._rows[order]
        if not isinstance(x, LazyRows):
            return None
        labels = torch.stack([self.stream.train_labels[rows], self._task[order]], 1)  # [N, 2]
        return ReadAhead(x, rows, labels, self.learner.device)

    def _samples(self, start: int, stop: int) -> tuple[Tensor, Tensor, Tensor]:
        """Inputs, labels and tasks of samples `start` to `stop` of the epoch's order."""
        if self._ahead is not None:
            x, labels = self._ahead.take(start, stop)
            return x, labels[:, 0], labels[:, 1]
        numbers = self._order[start:stop]
        rows = self._rows[numbers]
        return self.stream.arrays.x_train[rows], self.stream.train_labels[rows], self._task[numbers]


def learner_run(learner: Learner, stream: Stream, detection: Detection | None = None) -> LearnerRun:
    """The run of a learner in the order of samples that it declares."""
    return JointRun(learner, stream) if learner.order == "shuffled" else LearnerRun(learner, stream, detection)


# ---- evaluation ------------------------------------------------------------------------------------------------------
def accuracies(learner: Learner, stream: Stream, tasks: int | Sequence[int]) -> list[float]:
    """Accuracy in percent on all test samples of the first `tasks` tasks, or of those with these numbers.

    Waits for the device once.
    """
    numbers = range(tasks) if isinstance(tasks, int) else tasks
    tested = [_hits(learner, stream, task) for task in numbers]
    if not tested:
        return []
    right = torch.stack([hits for hits, _ in tested])
    return [100 * int(n) / size for n, (_, size) in zip(right.tolist(), tested, strict=True)]


def _hits(learner: Learner, stream: Stream, task: int) -> tuple[Tensor, int]:
    """The number of test samples of `task` that the learner classifies correctly, on the device, and that of all."""
    right, size = [], 0
    for x, y in stream.test_batches(task, CHUNK, learner.device):
        if len(x):  # every sample of the chunk may have been skipped
            right.append((predicted(learner, stream, x, task).argmax(1) == y.to(learner.device)).sum())
            size += len(x)
    if not right:
        raise DataError(f"no test sample of task {stream.tasks[task].name!r} can be read")
    return torch.stack(right).sum(), size
