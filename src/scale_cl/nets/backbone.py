"""What a backbone must offer: a stem that no task touches, and a top whose features FiLM may modulate."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

Modulation = Callable[[int, Tensor, Tensor], Tensor]
"""Features of FiLM site `i` from its pre-activation h and from relu(h); without a generator they are just relu(h)."""


def unmodulated(_site: int, _h: Tensor, common: Tensor) -> Tensor:
    """The modulation of a network without a parameter generator."""
    return common


class Backbone(nn.Module):
    """A trunk cut in two: `stem` runs before the first FiLM site, `top` from there to the features."""

    film_widths: tuple[int, ...]  # channels at each FiLM site, in order
    feature_width: int  # what the heads and the discriminator see
    xavier: bool  # whether layers added later are drawn Xavier-uniform with zero bias
    detach_norms: bool  # whether FiLM's L2 norms are constants to the gradient
    embedding_width: int  # of the task embedding that goes with this backbone

    def stem(self, x: Tensor, parts: tuple[int, ...] = ()) -> Tensor:
        """Pre-activation of the first FiLM site; batch statistics, if any, are taken of each of the `parts` (sizes)."""
        raise NotImplementedError

    def top(self, h: Tensor, modulate: Modulation) -> tuple[Tensor, Tensor]:
        """Common features relu(h) of the last site, and the features for the heads: both [B, feature_width]."""
        raise NotImplementedError
