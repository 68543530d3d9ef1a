"""Fine-tuning: each batch is learned and forgotten; the lower bound of every comparison."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from scale_cl.engine import Batch, LearnerConfig
from scale_cl.learners.learner import Learner, StepSize
from scale_cl.losses import cross_entropy
from scale_cl.settings import setting


@dataclass(frozen=True)
class FinetuneConfig(LearnerConfig):
    """Settings of fine-tuning."""

    lr: float = setting(0.03, "learning rate", above=0)
    updates: int = setting(1, "gradient steps per batch", low=1)


class Finetune(Learner):
    """Plain SGD on the batch."""

    config_class = FinetuneConfig
    config: FinetuneConfig

    def update(self, batch: Batch) -> None:
        """Descend CE(batch)."""
        for _ in range(self.config.updates):
            samples = self.engine.samples(batch)
            loss = cross_entropy(self.network(samples).logits, samples.y)
            self.network.base.descend(loss, self.config.lr)
            self.log(loss=loss)

    @classmethod
    def step_size(cls, config: Any, batch: int, stored: int, tasks: int) -> StepSize:
        """One gradient."""
        return StepSize(batch, copies=1)
