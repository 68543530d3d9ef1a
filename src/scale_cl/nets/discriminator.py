"""The one discriminator: from features to the task they came from, or to output 0 for noise."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from scale_cl.losses import NO_CLASS
from scale_cl.nets.growing_parameter import BlankLinear, GrowingParameter, linear_rows


class Discriminator(nn.Module):
    """Two linear layers; output 0 is the fake task, output k + 1 is task k, and outputs are added as tasks arrive."""

    missing: Tensor

    def __init__(self, width: int, *, generator: torch.Generator, capacity: int = 32) -> None:
        """Draw the hidden layer and the fake output, with room for so many outputs."""
        super().__init__()
        self.width = width
        self.hidden = BlankLinear(width, width)
        self.weight, self.bias = GrowingParameter((width,), capacity), GrowingParameter((), capacity)
        self.register_buffer("missing", torch.full((capacity,), NO_CLASS), persistent=False)
        weight, bias = linear_rows((width,), width, xavier=False, generator=generator)
        with torch.no_grad():
            self.hidden.weight.copy_(weight)
            self.hidden.bias.copy_(bias)
        self.add_task(generator=generator)

    @property
    def outputs(self) -> int:
        """Number of outputs that exist: tasks seen, and the fake one."""
        return self.weight.count

    def ensure_task(self, task: int, classes: int, *, generator: torch.Generator) -> None:
        """Make sure that the output of task number `task` exists."""
        while self.outputs < task + 2:
            self.add_task(generator=generator)

    def add_task(self, *, generator: torch.Generator) -> None:
        """One output more."""
        weight, bias = linear_rows((1,), self.width, xavier=False, generator=generator)
        self.weight.add(weight)
        self.bias.add(bias)
        self.refresh()

    def refresh(self) -> None:
        """Recompute which outputs do not exist yet."""
        if len(self.missing) != self.weight.capacity:
            self.missing = self.bias.data.detach().new_full((self.weight.capacity,), NO_CLASS)
        self.missing.fill_(NO_CLASS)
        self.missing[: self.outputs] = 0.0

    def forward(self, features: Tensor) -> Tensor:
        """Logits [B, capacity]; -inf for outputs that do not exist yet."""
        hidden = self.hidden(features).relu_()
        return F.linear(hidden, self.weight.data, self.bias.data + self.missing)
