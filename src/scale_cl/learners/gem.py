"""GEM: Gradient Episodic Memory. No step may raise the loss on the memory of any finished task.

Each step costs a forward and backward over the memory of every finished task, one after the other, as batch statistics
are a task's own. The gradients stand in one flat tensor; their dual program is solved on the device (`quadratic`), so
that the step is one recording, made anew in every task because it grows by one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from scale_cl.learners.base import State, StepStats
from scale_cl.learners.gem_qp import least_at_or_above
from scale_cl.learners.replay import MemoryConfig, ReplayLearner
from scale_cl.losses import cross_entropy
from scale_cl.settings import setting

_PIECE = 4096  # columns whose products are summed in float32, before their sums are in float64


@dataclass(frozen=True)
class GemConfig(MemoryConfig):
    """Settings of GEM."""

    lr: float = setting(0.03, "learning rate", above=0)
    updates: int = setting(1, "gradient steps a batch", low=1)
    margin: float = setting(0.5, "lowest value of the dual variables: how far steps lean to finished tasks", low=0)
    ridge: float = setting(1e-3, "added to the diagonal of GG' in the quadratic program", above=0)


class Gem(ReplayLearner):
    """Lopez-Paz and Ranzato (2017), with the whole memory of each finished task in every step."""

    config_class = GemConfig
    config: GemConfig

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """As `Learner`."""
        super().__init__(*args, **kwargs)
        self._past: list[Tensor] = []  # rows of the memory, a finished task each
        self._rows_in_use: list[int] = []  # of each base parameter: heads not made yet have no gradient
        self._gradients = torch.empty(0, 0)  # [finished tasks + 1, P], the batch's last

    def _update(self, x: Tensor, y: Tensor) -> StepStats:
        stats = StepStats()
        for _ in range(self.config.updates):
            for number, rows in enumerate(self._past):
                self._keep_gradient(number, self.memory.x[rows], self.memory.y[rows], self.memory.task[rows])
            stats["loss"] = self._keep_gradient(len(self._past), x, y, self._task.expand(len(y)))
            with torch.no_grad(), torch.autocast(self.device.type, enabled=False):
                self._descend_along(self._direction(stats))
            self._update_average()
        return stats

    def _keep_gradient(self, number: int, x: Tensor, y: Tensor, task: Tensor) -> Tensor:
        """Write the gradient of the mean cross-entropy into row `number`; returns the loss."""
        loss = cross_entropy(self.net(self._prepared(x), task)[2], y)
        gradients = torch.autograd.grad(loss, self._base)
        parts = [g[:rows].flatten() for g, rows in zip(gradients, self._rows_in_use, strict=True)]
        torch.cat(parts, out=self._gradients[number])
        return loss.detach()

    def _direction(self, stats: StepStats) -> Tensor:
        """The batch's gradient g, or g + G'v if its product with any row of G is negative."""
        past, g = self._gradients[:-1], self._gradients[-1]
        if len(past) == 0:
            return g
        products = _inner_products(self._gradients)
        gram, along = products[:-1, :-1], products[:-1, -1]
        violated = along < 0
        ridge = self.config.ridge * torch.eye(len(past), dtype=gram.dtype, device=gram.device)
        v = least_at_or_above(gram + ridge, along, self.config.margin)
        v = torch.where(violated.any(), v, 0)
        stats["violations"] = violated.sum()
        return g + v.to(g.dtype) @ past

    def _descend_along(self, direction: Tensor) -> None:
        """One step of plain SGD along a flat direction."""
        used = [p[:rows] for p, rows in zip(self._base, self._rows_in_use, strict=True)]
        pieces = torch.split(direction, [p.numel() for p in used])
        torch._foreach_add_(used, [d.view_as(p) for d, p in zip(pieces, used, strict=True)], alpha=-self.config.lr)

    # ---- tasks and state ---------------------------------------------------------------------------------------------

    def _task_began(self, task: int) -> None:
        super()._task_began(task)
        self._lay_out(task)

    def _lay_out(self, task: int) -> None:
        """Look up what the finished tasks have stored, and make room for their gradients."""
        finished = (self.memory.rows_of(number) for number in range(len(self._classes)) if number != task)
        self._past = [rows for rows in finished if len(rows)]
        heads = self.net.heads.weight.count
        named = self.net.base_parameters()
        self._rows_in_use = [heads if name.startswith("heads.") else len(p) for name, p in named.items()]
        size = sum(p[:rows].numel() for p, rows in zip(named.values(), self._rows_in_use, strict=True))
        self._gradients = self._base[0].new_zeros(len(self._past) + 1, size)
        self._step.drop()  # recordings of the last task are of no more use, and refer to its gradients

    def _phase(self) -> object:
        return tuple(len(rows) for rows in self._past)

    def _take_state(self, state: State) -> None:
        """As `Learner`; gradients are computed anew in every step and need no saving."""
        super()._take_state(state)
        if self._current is not None:
            self._lay_out(self._tasks[self._current])


def _inner_products(rows: Tensor) -> Tensor:
    """All products of rows [n, P] with one another, [n, n] float64; off by 1e-7 of the lengths at most.

    Float32 alone would not do: over a million columns its rounding may exceed the ridge that keeps GG' definite.
    """
    n, pieces = len(rows), rows.shape[1] // _PIECE
    even, rest = rows[:, : pieces * _PIECE], rows[:, pieces * _PIECE :]
    even = even.view(n, pieces, _PIECE).transpose(0, 1)
    return torch.bmm(even, even.mT).sum(0, dtype=torch.float64) + (rest @ rest.mT)
