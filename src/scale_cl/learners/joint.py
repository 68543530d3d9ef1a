"""Joint training: batches that mix all tasks, as if they had not come one after another; the upper bound.

There is nothing to remember and nothing to forget. The training loop gives it the tasks shuffled together.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from scale_cl.errors import InputError, ScaleClError
from scale_cl.learners.base import Learner, LearnerConfig, StepStats
from scale_cl.losses import cross_entropy
from scale_cl.settings import setting


@dataclass(frozen=True)
class JointConfig(LearnerConfig):
    """Settings of joint training."""

    lr: float = setting(0.03, "learning rate", above=0)
    epochs: int = setting(1, "passes over all tasks together", low=1)


class Joint(Learner):
    """Plain SGD on the batch, whatever tasks its samples are of."""

    config_class = JointConfig
    order = "joint"
    config: JointConfig

    def observe_mixed(self, x: Tensor, y: Tensor, task: Tensor) -> StepStats:
        """Learn from one batch of several tasks, all of which were begun before.

        Args:
            x: [B, *shape] raw samples: uint8 for pixels, float32 for features.
            y: [B] int64 labels, each of its own task's head.
            task: [B] int64 numbers of the tasks, in the order in which they were begun.
        """
        self._check_mixed(x, y, task)
        x, y, task = (t.to(self.device, non_blocking=True) for t in (x, y, task))
        stats = self._guarded_step((len(x), "mixed", self._known_version), x, y, task)
        self._count_step()
        return stats

    def _whole_step(self, x: Tensor, y: Tensor, task: Tensor | None = None) -> StepStats:
        if task is None:
            return super()._whole_step(x, y)
        self.net.inputs.seen(x)
        stats = self._learn(x, y, task)
        self._guard.settle(stats)
        return stats

    def _update(self, x: Tensor, y: Tensor) -> StepStats:
        """A batch of the open task alone."""
        return self._learn(x, y, self._task.expand(len(y)))

    def _learn(self, x: Tensor, y: Tensor, task: Tensor) -> StepStats:
        loss = cross_entropy(self.net(self._prepared(x), task)[2], y)
        self._descend(loss, self._base, self.config.lr)
        self._update_average()
        return {"loss": loss.detach()}

    def _check_mixed(self, x: Tensor, y: Tensor, task: Tensor) -> None:
        if not self._classes:
            raise ScaleClError(
                "no task was begun: call begin_task(TaskInfo(name, classes)) for each before observe_mixed"
            )
        if task.shape != y.shape or task.dtype != torch.int64:
            raise InputError(
                f"task numbers have shape {list(task.shape)} and {task.dtype}; expected [{len(y)}] and torch.int64"
            )
        widest = max(range(len(self._classes)), key=self._classes.__getitem__)
        self._check_batch(x, y, widest)
        if y.device.type == "cpu" and task.device.type == "cpu":  # as for labels: elsewhere it would stop the device
            low, high = int(task.min()), int(task.max())
            if low < 0 or high >= len(self._classes):
                wrong = low if low < 0 else high
                raise InputError(f"task number {wrong} was never begun; tasks are 0 to {len(self._classes) - 1}")
            over = (y >= torch.tensor(self._classes)[task]).nonzero()
            if len(over) > 0:
                label, number = int(y[over[0]]), int(task[over[0]])
                last = self._classes[number] - 1
                raise InputError(f"label {label} is outside the head of task {number}; its labels are 0 to {last}")
