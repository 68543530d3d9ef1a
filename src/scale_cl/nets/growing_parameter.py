"""A parameter whose first dimension grows by doubling as tasks arrive.

Rows beyond `count` are allocated ahead and do not exist for the mathematics: whoever reads them masks them, they have
no gradient, and they are not saved.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class GrowingParameter(nn.Module):
    """`data` [capacity, *shape], of which the first `count` rows are in use."""

    data: Tensor

    def __init__(self, shape: tuple[int, ...], capacity: int = 32) -> None:
        """Allocate `capacity` rows, none in use."""
        super().__init__()
        self.data = nn.Parameter(torch.zeros(capacity, *shape))
        self.count = 0

    @property
    def capacity(self) -> int:
        """How many rows are allocated."""
        return len(self.data)

    @torch.no_grad()
    def add(self, values: Tensor) -> None:
        """Append rows [n, *shape], doubling the capacity when it is used up."""
        needed = self.count + len(values)
        if needed > self.capacity:
            self.reshape(needed, self.data.shape[1:])
        self.data[self.count : needed] = values.to(self.data)
        self.count = needed

    @torch.no_grad()
    def reshape(self, rows: int, shape: tuple[int, ...]) -> None:
        """Allocate anew for at least `rows` rows of a shape that is nowhere smaller; what was there stays."""
        capacity = max(1, self.capacity)
        while capacity < rows:
            capacity *= 2
        larger = self.data.new_zeros((capacity, *shape))
        larger[tuple(slice(n) for n in self.data.shape)] = self.data
        self.data = nn.Parameter(larger)

    def clear(self, shape: tuple[int, ...]) -> None:
        """No row in use any more, and rows of `shape` from now on."""
        self.data = nn.Parameter(self.data.detach().new_zeros((self.capacity, *shape)))
        self.count = 0

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        destination[prefix + "data"] = self.data[: self.count] if keep_vars else self.data[: self.count].detach()

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *_others: Any) -> None:
        saved = state_dict[prefix + "data"]
        shape = tuple(max(a, b) for a, b in zip(saved.shape[1:], self.data.shape[1:], strict=True))
        if len(saved) > self.capacity or shape != tuple(self.data.shape[1:]):
            self.reshape(len(saved), shape)
        with torch.no_grad():
            self.data.zero_()
            self.data[tuple(slice(n) for n in saved.shape)] = saved.to(self.data)
        self.count = len(saved)


class BlankLinear(nn.Linear):
    """`nn.Linear` that draws nothing when it is made: its owner draws the weights, from a generator of its own."""

    def reset_parameters(self) -> None:
        """Leave the weights unset."""


def linear_rows(
    shape: tuple[int, ...], width: int, *, xavier: bool, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Weight [*shape, width] and bias [*shape] for new outputs of a linear layer of `width` inputs.

    Xavier-uniform with zero bias (fans: the last dimension of `shape` and `width`), or torch's default for `nn.Linear`.
    """
    weight = torch.empty(*shape, width)
    bias = torch.zeros(*shape)
    if xavier:
        bound = (6 / (shape[-1] + width)) ** 0.5
        weight.uniform_(-bound, bound, generator=generator)
    else:
        bound = width**-0.5
        weight.uniform_(-bound, bound, generator=generator)
        bias.uniform_(-bound, bound, generator=generator)
    return weight, bias
