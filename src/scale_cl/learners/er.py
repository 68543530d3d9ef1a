"""ER-Ring: experience replay, plain SGD on the batch and on a few samples of earlier tasks.

Chaudhry et al., "On Tiny Episodic Memories in Continual Learning", 2019. Originally with a ring per class that holds
the current task as well: `memory_policy` "class-ring" and `replay_current`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from scale_cl.engine import Batch, ReplayConfig
from scale_cl.learners.learner import ReplayLearner, StepSize
from scale_cl.losses import cross_entropy_of_parts
from scale_cl.settings import setting


@dataclass(frozen=True)
class ErConfig(ReplayConfig):
    """Settings of ER."""

    lr: float = setting(0.03, "learning rate", above=0)
    updates: int = setting(3, "gradient steps per batch, each with a fresh replay draw", low=1)
    replay_current: bool = setting(False, "replay samples of the current task too, not only of finished ones")


class Er(ReplayLearner):
    """CE(batch) + CE(replay), each a mean with batch statistics of its own."""

    config_class = ErConfig
    config: ErConfig

    def update(self, batch: Batch) -> None:
        """Descend CE(batch) + CE(replay) several times, each with a fresh draw."""
        c = self.config
        for samples in self.memory.replay_with(batch, c.replay, times=c.updates, current=c.replay_current):
            loss = cross_entropy_of_parts(self.network(samples).logits, samples.y, samples.parts)
            self.network.base.descend(loss, c.lr)
            self.log(loss=loss)
        self.memory.write(batch)

    @classmethod
    def step_size(cls, config: Any, batch: int, stored: int, tasks: int) -> StepSize:
        """Batch and replay."""
        return StepSize(batch + min(config.replay, stored), config.updates, copies=1)
