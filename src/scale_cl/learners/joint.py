"""Joint training: batches that mix all tasks, as if they had not come one after another; the upper bound.

There is nothing to remember and nothing to forget. The training loop shuffles the tasks together (`order`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from scale_cl.engine import Batch, LearnerConfig
from scale_cl.learners.learner import Learner, StepSize
from scale_cl.losses import cross_entropy
from scale_cl.settings import setting


@dataclass(frozen=True)
class JointConfig(LearnerConfig):
    """Settings of joint training."""

    lr: float = setting(0.03, "learning rate", above=0)
    epochs: int = setting(1, "passes over all tasks together", low=1)


class Joint(Learner):
    """Plain SGD on the batch, whatever tasks its samples belong to."""

    config_class = JointConfig
    config: JointConfig
    order = "shuffled"

    def update(self, batch: Batch) -> None:
        """Descend CE(batch)."""
        samples = self.engine.samples(batch)
        loss = cross_entropy(self.network(samples).logits, samples.y)
        self.network.base.descend(loss, self.config.lr)
        self.log(loss=loss)

    @classmethod
    def step_size(cls, config: Any, batch: int, stored: int, tasks: int) -> StepSize:
        """One gradient."""
        return StepSize(batch, copies=1)
