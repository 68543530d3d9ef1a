"""ER-Ring: experience replay, plain SGD on the batch and on a few samples of earlier tasks.

Chaudhry et al., "On Tiny Episodic Memories in Continual Learning", 2019. Originally with a ring per class that holds
the current task as well: `memory_policy` "class-ring" and `replay_current`. Repeated augmented rehearsal (Zhang et al.,
2022) is ER with more `updates` and `augment`, which is drawn anew in every update, replayed samples included.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

from scale_cl.engine import Batch, Engine, ReplayConfig, Samples
from scale_cl.learners.learner import ReplayLearner, StepSize, replay_memory
from scale_cl.losses import cross_entropy, cross_entropy_of_parts
from scale_cl.settings import setting


@dataclass(frozen=True)
class ErConfig(ReplayConfig):
    """Settings of ER."""

    lr: float = setting(0.03, "learning rate", above=0)
    updates: int = setting(3, "gradient steps per batch, each with a fresh replay draw", low=1)
    ce: Literal["added", "together"] = setting(
        "added", "cross-entropy of a step: means over batch and replay added, or one mean over both together"
    )
    replay_current: bool = setting(False, "replay samples of the current task too, not only of finished ones")


class Er(ReplayLearner):
    """CE(batch) + CE(replay), each a mean with batch statistics of its own."""

    config_class = ErConfig
    config: ErConfig

    def build(self, engine: Engine) -> None:
        """Declare network and memory; one mean over batch and replay goes with joint batch statistics."""
        self.network = engine.network(statistics="separate" if self.config.ce == "added" else "joint")
        self.memory = replay_memory(engine, self.config)

    def update(self, batch: Batch) -> None:
        """Descend the loss several times, each with a fresh draw."""
        c = self.config
        for samples in self.memory.replay_with(batch, c.replay, times=c.updates, current=c.replay_current):
            loss = self.loss(self.network(samples).logits, samples)
            self.network.base.descend(loss, c.lr)
            self.log(loss=loss)
        self.memory.write(batch)

    def loss(self, logits: Tensor, samples: Samples) -> Tensor:
        """CE(batch) + CE(replay), or CE of both together."""
        if self.config.ce == "together":
            return cross_entropy(logits, samples.y)
        return cross_entropy_of_parts(logits, samples.y, samples.parts)

    @classmethod
    def step_size(cls, config: Any, batch: int, stored: int, tasks: int) -> StepSize:
        """Batch and replay."""
        return StepSize(batch + min(config.replay, stored), config.updates, copies=1)
