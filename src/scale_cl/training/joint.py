"""Joint training in the one loop: a lane with a single stage, which holds all tasks shuffled together.

The matrix of accuracies has its last row only, so that of the measures ACC alone is defined.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from scale_cl.learners import StepStats
from scale_cl.learners.joint import Joint
from scale_cl.streams import Stream
from scale_cl.training.learner_run import LearnerRun, Stage


class JointRun(LearnerRun):
    """All tasks at once; tested when all is done."""

    learner: Joint

    def __init__(self, learner: Joint, stream: Stream) -> None:
        """As `LearnerRun`."""
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
        """One, tested on all tasks."""
        return [Stage("all tasks together", len(self._rows), len(self.stream))]

    def _fetch(self, stage: int) -> None:
        """Nothing: samples are looked up a batch at a time."""

    def _open(self, stage: int) -> None:
        """Make the heads of all tasks."""
        for task in self.stream.tasks:
            self.learner.begin_task(task.info)
        self.learner.end_task()

    def _learn(self, epoch: int, start: int, stop: int) -> StepStats:
        """Learn from a batch that mixes tasks; each epoch has an order of its own, which follows the stream's seed."""
        if epoch != self._epoch:
            order = np.random.default_rng((self.stream.seed, epoch)).permutation(len(self._rows))
            self._order, self._epoch = torch.from_numpy(order).to(self._rows.device), epoch
        return self.learner.observe_mixed(*self._samples(self._order[start:stop]))

    def _samples(self, numbers: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Inputs, labels and tasks of these samples of the mixture."""
        rows, task = self._rows[numbers], self._task[numbers]
        x = self.stream.arrays.x_train[rows]
        if self._permutations is not None:
            x = x.flatten(1).gather(1, self._permutations[task]).view_as(x)
        return x, self.stream.train_labels[rows], task


def _permutations(stream: Stream) -> Tensor | None:
    """The pixel permutation of each task [T, F], if any has one."""
    if all(task.permutation is None for task in stream.tasks):
        return None
    same = torch.arange(stream.arrays.x_train[0].numel(), device=stream.device)
    return torch.stack([same if task.permutation is None else task.permutation for task in stream.tasks])
