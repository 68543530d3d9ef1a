"""Fine-tuning: each batch is learned and forgotten; the lower bound of every comparison."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from scale_cl.learners.base import Learner, LearnerConfig, StepStats
from scale_cl.losses import cross_entropy
from scale_cl.settings import setting


@dataclass(frozen=True)
class FinetuneConfig(LearnerConfig):
    """Settings of fine-tuning."""

    lr: float = setting(0.03, "learning rate", above=0)
    updates: int = setting(1, "gradient steps a batch", low=1)


class Finetune(Learner):
    """Plain SGD on the batch."""

    config_class = FinetuneConfig
    config: FinetuneConfig

    def _update(self, x: Tensor, y: Tensor) -> StepStats:
        stats = StepStats()
        for _ in range(self.config.updates):
            loss = cross_entropy(self.net(self._prepared(x), self._task.expand(len(y)))[2], y)
            self._descend(loss, self._base, self.config.lr)
            self._update_average()
            stats["loss"] = loss.detach()
        return stats
