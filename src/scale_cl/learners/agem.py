"""A-GEM: the batch's gradient, less what would raise the loss on a replay batch.

Chaudhry et al., "Efficient Lifelong Learning with A-GEM", 2019. Gradients are one flat vector.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from scale_cl.engine import Batch, ReplayConfig, Samples
from scale_cl.learners.learner import ReplayLearner, StepSize
from scale_cl.losses import cross_entropy
from scale_cl.settings import setting


@dataclass(frozen=True)
class AgemConfig(ReplayConfig):
    """Settings of A-GEM."""

    replay: int = setting(64, "samples whose loss must not rise, at most as many as are stored", low=1)
    lr: float = setting(0.03, "learning rate", above=0)
    updates: int = setting(3, "gradient steps per batch, each with a fresh draw", low=1)


class Agem(ReplayLearner):
    """Steps along the gradient of CE(batch), projected when it points against that of CE(replay)."""

    config_class = AgemConfig
    config: AgemConfig

    def update(self, batch: Batch) -> None:
        """Steps along the projected gradient."""
        base = self.network.base
        for samples in self.memory.replay_with(batch, self.config.replay, times=self.config.updates):
            loss, gradient = self.gradient(samples.batch)
            self.log(loss=loss)
            if samples.replayed:
                replayed, reference = self.gradient(samples.replay)
                self.log(replay=replayed)
                gradient = projected(gradient, reference)
            pieces = gradient.split_with_sizes([p.numel() for p in base.tensors])
            base.move([piece.view_as(p) for piece, p in zip(pieces, base.tensors, strict=True)], self.config.lr)
        self.memory.write(batch)

    def gradient(self, samples: Samples) -> tuple[Tensor, Tensor]:
        """CE of samples, and its gradient as one vector."""
        loss = cross_entropy(self.network(samples).logits, samples.y)
        return loss, torch.cat([g.flatten() for g in self.network.base.gradient(loss)])

    @classmethod
    def step_size(cls, config: Any, batch: int, stored: int, tasks: int) -> StepSize:
        """Two gradients, each as one vector."""
        return StepSize(batch + min(config.replay, stored), config.updates, copies=5)


def projected(gradient: Tensor, reference: Tensor) -> Tensor:
    """`gradient` without its component along `reference` where that is negative (equation 11)."""
    along = (gradient * reference).sum()
    length = reference.square().sum().clamp(min=torch.finfo(reference.dtype).tiny)  # a square may underflow to 0
    return torch.where(along < 0, gradient - along / length * reference, gradient)
