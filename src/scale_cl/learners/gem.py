"""GEM: Gradient Episodic Memory. No step may raise the loss on the memory of any finished task.

Each step costs a forward and backward over the memory of every finished task, one after the other, as batch statistics
are a task's own. Gradients are flat vectors; their dual program is solved on the device (`gem_qp`), so that the step is
one recording, made anew in every task because it grows by one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from scale_cl.engine import Batch, MemoryConfig, Samples
from scale_cl.learners.gem_qp import least_at_or_above
from scale_cl.learners.learner import ReplayLearner, StepSize
from scale_cl.losses import cross_entropy
from scale_cl.settings import setting

_PIECE = 4096  # columns whose products are summed in float32, before their sums are in float64


@dataclass(frozen=True)
class GemConfig(MemoryConfig):
    """Settings of GEM."""

    lr: float = setting(0.03, "learning rate", above=0)
    updates: int = setting(1, "gradient steps per batch", low=1)
    margin: float = setting(0.5, "lowest value of the dual variables: how far steps lean to finished tasks", low=0)
    ridge: float = setting(1e-3, "added to the diagonal of GG' in the quadratic program", above=0)


class Gem(ReplayLearner):
    """Lopez-Paz and Ranzato (2017), with the whole memory of each finished task in every step."""

    config_class = GemConfig
    needs_boundaries = True
    config: GemConfig

    def update(self, batch: Batch) -> None:
        """Steps along the batch's gradient, projected so that no finished task's loss rises."""
        base = self.network.base
        for _ in range(self.config.updates):
            past = [self.gradient(self.memory.samples(rows))[1] for rows in self.memory.finished_tasks()]
            loss, g = self.gradient(self.engine.samples(batch))
            self.log(loss=loss)
            with torch.no_grad(), torch.autocast(self.device.type, enabled=False):
                direction = self.direction(torch.stack([*past, g]))
                used = self.network.in_use(base.tensors)
                pieces = direction.split_with_sizes([p.numel() for p in used])
                steps = [d.view_as(p) for d, p in zip(pieces, used, strict=True)]
                torch._foreach_add_(used, steps, alpha=-self.config.lr)
            base.follow()
        self.memory.write(batch)

    def gradient(self, samples: Samples) -> tuple[Tensor, Tensor]:
        """CE of samples, and its gradient as one vector."""
        loss = cross_entropy(self.network(samples).logits, samples.y)
        return loss.detach(), torch.cat([g.flatten() for g in self.network.in_use(self.network.base.gradient(loss))])

    def direction(self, gradients: Tensor) -> Tensor:
        """The batch's gradient g (the last row), or g + G'v if its product with any row of G is negative."""
        past, g = gradients[:-1], gradients[-1]
        if len(past) == 0:
            return g
        products = inner_products(gradients)
        gram, along = products[:-1, :-1], products[:-1, -1]
        violated = along < 0
        ridge = self.config.ridge * torch.eye(len(past), dtype=gram.dtype, device=gram.device)
        v = least_at_or_above(gram + ridge, along, self.config.margin)
        v = torch.where(violated.any(), v, 0)
        self.log(violations=violated.sum())
        return g + v.to(g.dtype) @ past

    @classmethod
    def step_size(cls, config: Any, batch: int, stored: int, tasks: int) -> StepSize:
        """The memory of one task at a time; a gradient per task."""
        return StepSize(max(batch, config.memory), config.updates, copies=3 + tasks)


def inner_products(rows: Tensor) -> Tensor:
    """All products of rows [n, P] with one another, [n, n] float64; off by 1e-7 of the lengths at most.

    Float32 alone would not do: over a million columns its rounding may exceed the ridge that keeps GG' definite.
    """
    n, pieces = len(rows), rows.shape[1] // _PIECE
    even, rest = rows[:, : pieces * _PIECE], rows[:, pieces * _PIECE :]
    even = even.view(n, pieces, _PIECE).transpose(0, 1)
    return torch.bmm(even, even.mT).sum(0, dtype=torch.float64) + (rest @ rest.mT)
