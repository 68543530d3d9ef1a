"""ER-Ring: experience replay, plain SGD on the batch and on a few samples of earlier tasks.

Chaudhry et al., "On Tiny Episodic Memories in Continual Learning", 2019. Originally with a ring per class that holds
the current task as well: `memory_policy` "class-ring" and `replay_current`.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from scale_cl.learners.base import StepStats
from scale_cl.learners.replay import ReplayConfig, ReplayLearner, Samples
from scale_cl.losses import cross_entropy_of_parts
from scale_cl.settings import setting


@dataclass(frozen=True)
class ErConfig(ReplayConfig):
    """Settings of ER; the defaults are the paper's for all streams."""

    lr: float = setting(0.03, "learning rate", above=0)
    updates: int = setting(3, "gradient steps a batch, each with a fresh replay draw", low=1)
    replay_current: bool = setting(False, "replay samples of the current task too, not only of finished ones")


class Er(ReplayLearner):
    """CE(batch) + CE(replay), each a mean with batch statistics of its own."""

    config_class = ErConfig
    config: ErConfig

    def _update(self, x: Tensor, y: Tensor) -> StepStats:
        stats = StepStats()
        for samples in self._replay_batches(x, y, self.config.updates):
            loss = self._loss(samples)
            self._descend(loss, self._base, self.config.lr)
            self._update_average()
            stats["loss"] = loss.detach()
        return stats

    def _loss(self, samples: Samples) -> Tensor:
        logits = self.net(samples.x, samples.task, parts=samples.parts)[2]
        return cross_entropy_of_parts(logits, samples.y, samples.parts)

    def _replays_current(self) -> bool:
        return self.config.replay_current
