"""A-GEM: the batch's gradient, less what would raise the loss on a replay batch.

Chaudhry et al., "Efficient Lifelong Learning with A-GEM", 2019. Gradients are one flat vector.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from scale_cl.learners.base import StepStats
from scale_cl.learners.replay import ReplayConfig, ReplayLearner
from scale_cl.losses import cross_entropy
from scale_cl.settings import setting


@dataclass(frozen=True)
class AgemConfig(ReplayConfig):
    """Settings of A-GEM."""

    replay: int = setting(64, "samples whose loss must not rise, at most as many as are stored", low=1)
    lr: float = setting(0.03, "learning rate", above=0)
    updates: int = setting(3, "gradient steps a batch, each with a fresh draw", low=1)


class Agem(ReplayLearner):
    """Steps along the gradient of CE(batch), projected when it points against that of CE(replay)."""

    config_class = AgemConfig
    config: AgemConfig

    def _update(self, x: Tensor, y: Tensor) -> StepStats:
        n, stats = len(y), StepStats()
        for samples in self._replay_batches(x, y, self.config.updates):
            loss, gradient = self._gradient(samples.x[:n], samples.y[:n], samples.task[:n])
            stats["loss"] = loss
            if samples.rows is not None:
                stats["replay"], reference = self._gradient(samples.x[n:], samples.y[n:], samples.task[n:])
                gradient = projected(gradient, reference)
            self._move(gradient)
            self._update_average()
        return stats

    def _gradient(self, x: Tensor, y: Tensor, task: Tensor) -> tuple[Tensor, Tensor]:
        """Loss, and its gradient as one vector."""
        loss = cross_entropy(self.net(x, task)[2], y)
        return loss.detach(), torch.cat([g.flatten() for g in torch.autograd.grad(loss, self._base)])

    @torch.no_grad()
    def _move(self, gradient: Tensor) -> None:
        pieces = gradient.split_with_sizes([p.numel() for p in self._base])
        steps = [piece.view_as(p) for piece, p in zip(pieces, self._base, strict=True)]
        torch._foreach_add_(self._base, steps, alpha=-self.config.lr)


def projected(gradient: Tensor, reference: Tensor) -> Tensor:
    """`gradient` without its component along `reference` where that is negative (equation 11)."""
    along = (gradient * reference).sum()
    length = reference.square().sum().clamp(min=torch.finfo(reference.dtype).tiny)  # a square may underflow to 0
    return torch.where(along < 0, gradient - along / length * reference, gradient)
