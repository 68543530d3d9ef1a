"""A lane: one learner on its way through one stream, and the matrix of accuracies it leaves behind.

On a GPU each lane has a CUDA stream of its own, so that the small kernels of several share the device.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from scale_cl.learners import Learner, StepStats
from scale_cl.streams import Stream
from scale_cl.training.evaluation import hits
from scale_cl.training.loss_terms import LossTerms


@dataclass(frozen=True)
class Stage:
    """A stretch of training that ends with a test."""

    name: str
    samples: int
    tested: int  # the first so many tasks are tested after it


class LearnerRun:
    """Task after task, each tested with all before it."""

    def __init__(self, learner: Learner, stream: Stream) -> None:
        """Move the stream to where the learner is."""
        self.learner, self.stream = learner, stream.to(learner.device)
        self.matrix: list[list[float | None]] = [[None] * len(stream) for _ in stream.tasks]
        self.stage = 0  # how far: stages that are done, and steps made in the next one
        self.done = 0
        self.seconds_train = self.seconds_eval = 0.0
        self.losses: LossTerms | None = None  # where someone asks for them
        self.x = self.y = torch.empty(0)
        self._cuda = torch.cuda.Stream(learner.device) if learner.device.type == "cuda" else None
        if self._cuda is not None:
            self._cuda.wait_stream(torch.cuda.current_stream(learner.device))

    @property
    def stages(self) -> list[Stage]:
        """What is trained, in order: here a stage a task."""
        return [Stage(task.name, len(task.train), number + 1) for number, task in enumerate(self.stream.tasks)]

    def on_device(self) -> AbstractContextManager[Any]:
        """What device work of this lane is done within."""
        return nullcontext() if self._cuda is None else torch.cuda.stream(self._cuda)

    def begin(self) -> None:
        """Get the next stage's data ready and open its task; one that was left in the middle is open already."""
        with self.on_device():
            self._fetch(self.stage)
            if self.done == 0:
                self._open(self.stage)

    def _fetch(self, stage: int) -> None:
        self.x, self.y = self.stream.train_data(stage)

    def _open(self, stage: int) -> None:
        self.learner.begin_task(self.stream.tasks[stage].info)

    def step(self, epoch: int, start: int, stop: int) -> None:
        """Learn from some samples of the stage, in one of several passes over them."""
        with self.on_device():
            stats = self._learn(epoch, start, stop)
            if self.losses is not None:
                self.losses.take(stats)
        self.done += 1

    def _learn(self, epoch: int, start: int, stop: int) -> StepStats:
        return self.learner.observe(self.x[start:stop], self.y[start:stop])

    def end(self) -> None:
        """Close the stage."""
        with self.on_device():
            self.learner.end_task()
        self.flush_losses()

    def flush_losses(self) -> None:
        """Report what was gathered."""
        if self.losses is not None:
            with self.on_device():
                self.losses.flush()

    def test(self, tasks: int) -> Tensor:
        """Hits on each of the first `tasks` tasks."""
        with self.on_device():
            return torch.stack([hits(self.learner, self.stream, task) for task in range(tasks)])

    def record(self, row: Sequence[float]) -> None:
        """Enter accuracies on the first tasks, as they are when the last of these is done."""
        self.matrix[len(row) - 1][: len(row)] = row
        self.stage, self.done = self.stage + 1, 0
