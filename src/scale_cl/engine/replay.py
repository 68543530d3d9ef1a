"""Samples ready for the network, and the memory as a method sees it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from scale_cl.memory import Batch, EpisodicMemory
from scale_cl.memory.ragged_rows import taken

__all__ = ["Batch", "ReplayMemory", "Samples"]


@dataclass(frozen=True)
class Samples:
    """Samples ready for the network: a batch, perhaps followed by draws from the memory."""

    x: Tensor  # [n + r, ...] prepared
    y: Tensor  # [n + r]
    task: Tensor  # [n + r]
    parts: tuple[int, ...]  # sizes of the batch and of each draw
    rows: Tensor | None = None  # [r] where in the memory the replayed samples lie
    weights: Tensor | None = None  # [2, n + r] of the means over batch and replay

    def __len__(self) -> int:
        return len(self.y)

    @property
    def n(self) -> int:
        """Size of the batch."""
        return self.parts[0]

    @property
    def replayed(self) -> bool:
        """Whether samples from the memory follow the batch."""
        return len(self.parts) > 1

    @property
    def batch(self) -> Samples:
        """The batch alone."""
        n = self.n
        return Samples(self.x[:n], self.y[:n], self.task[:n], (n,))

    @property
    def replay(self) -> Samples:
        """The replayed samples alone."""
        return self[self.n :]

    def __getitem__(self, which: slice | Tensor) -> Samples:
        """Some of the samples, as a batch of their own."""
        y = self.y[which]
        return Samples(self.x[which], y, self.task[which], (len(y),))

    def from_memory(self, values: Tensor) -> Tensor:
        """The rows of `values` [n + r, ...] that belong to replayed samples."""
        return values[self.n :]

    def means(self, each: Tensor) -> tuple[Tensor, Tensor]:
        """Means of `each` [n + r] over the batch and over the replayed samples (0 without any)."""
        if self.weights is None:
            return each.mean(), torch.zeros_like(each[0])
        batch, replayed = (self.weights @ each).unbind()
        return batch, replayed


class ReplayMemory(EpisodicMemory):
    """An episodic memory that returns its samples ready for the network."""

    def __init__(self, *args: Any, prepare: Callable[[Tensor], Tensor], **keywords: Any) -> None:
        """As `EpisodicMemory`; `prepare` makes inputs of raw samples."""
        super().__init__(*args, **keywords)
        self._prepare = prepare
        self._weights: dict[tuple[int, int, torch.dtype], Tensor] = {}

    def replay_with(
        self, batch: Batch, n: int, *, times: int = 1, draws: int = 1, current: bool = False
    ) -> list[Samples]:
        """So many times the batch, each time with fresh draws of at most `n` stored samples.

        Args:
            batch: what arrived.
            n: size of a draw; fewer if fewer are stored.
            times: how many sets.
            draws: how many draws follow the batch in each set.
            current: draw from the open task's samples too, not only from finished tasks.
        """
        size = self.draw_size(n, current=current) if n else 0
        if size == 0:
            inputs = [self._prepare(batch.x) for _ in range(times)]
            means = self._mean_weights(len(batch), 0, inputs[0].dtype)
            return [Samples(x, batch.y, batch.task, (len(batch),), weights=means) for x in inputs]
        rows = self.draws(times * draws, size, current=current).view(times, -1)
        pairs = (batch.x, self.x), (batch.y, self.y), (batch.task, self.task)
        x, y, task = (torch.cat([own.expand(times, *own.shape), taken(kept, rows)], 1) for own, kept in pairs)
        x = self._prepare(x.flatten(0, 1)).view(*y.shape, *x.shape[2:])
        parts, means = (len(batch), *[size] * draws), self._mean_weights(len(batch), size * draws, x.dtype)
        each = zip(*(t.unbind() for t in (x, y, task, rows)), strict=True)
        return [Samples(own_x, own_y, own_task, parts, drawn, means) for own_x, own_y, own_task, drawn in each]

    def samples(self, rows: Tensor) -> Samples:
        """The stored samples of these rows."""
        return Samples(self._prepare(self.x[rows]), self.y[rows], self.task[rows], (len(rows),), rows)

    def _mean_weights(self, n: int, r: int, dtype: torch.dtype) -> Tensor:
        """[2, n + r]: rows that make means over the batch and over the replayed samples of a vector."""
        if (n, r, dtype) not in self._weights:
            weights = torch.zeros(2, n + r, dtype=torch.float64)
            weights[0, :n] = 1 / n
            if r:
                weights[1, n:] = 1 / r
            self._weights[n, r, dtype] = weights.to(self.device, dtype)
        return self._weights[n, r, dtype]
