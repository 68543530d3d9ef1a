"""Layers that draw nothing when they are made: whoever makes them draws, from a generator of its own."""

from __future__ import annotations

from torch import nn


class BlankLinear(nn.Linear):
    """`nn.Linear` whose weights are yet to be set."""

    def reset_parameters(self) -> None:
        """Nothing."""
