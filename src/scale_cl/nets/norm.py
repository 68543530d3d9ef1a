"""Batch norm over parts of a batch: samples of several origins share the convolutions, but not their statistics.

A forward over batch and replay with `parts=(n, r)` gives what two forwards would give, at nearly the cost of one.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from scale_cl.nets.fused_norm import Then, fused_norm, usable


class BatchNorm(nn.BatchNorm2d):
    """`nn.BatchNorm2d` with statistics of their own for each part of a batch, and what follows it in a ResNet.

    A part with a single value a channel (one sample, a map of one pixel) has no variance: it is normalised by the
    running statistics, which it leaves as they are. The count of batches, of no use with a fixed momentum, is not kept.
    """

    running_mean: Tensor
    running_var: Tensor
    fuse = True  # use the fused kernels where they apply; they have no second derivative

    def forward(
        self, x: Tensor, parts: tuple[int, ...] = (), *, shortcut: Tensor | None = None, then: Then = "nothing"
    ) -> Tensor:
        """Normalise [B, C, H, W] and add `shortcut`, or do what is said next; `parts` add up to B, in order."""
        parts = parts if self.training and len(parts) > 1 else ()
        if self.training and self.fuse and usable(x, parts, then):
            return fused_norm(
                x,
                self.weight,
                self.bias,
                (self.running_mean, self.running_var),
                momentum=_rate(self),
                eps=self.eps,
                parts=parts,
                shortcut=shortcut,
                then=then,
            )
        if parts:
            y = torch.cat([self._normalised(piece) for piece in x.split_with_sizes(parts)])
        else:
            y = self._normalised(x)
        return followed(y, shortcut, then)

    def _normalised(self, x: Tensor) -> Tensor:
        by_batch = self.training and x.numel() > x.shape[1]
        running = self.running_mean, self.running_var
        return F.batch_norm(x, *running, self.weight, self.bias, by_batch, _rate(self), self.eps)


def followed(y: Tensor, shortcut: Tensor | None, then: Then) -> Tensor:
    """What comes after the normalisation."""
    y = y if shortcut is None else y + shortcut
    y = y if then == "nothing" else torch.relu(y)
    return F.max_pool2d(y, 3, 2, 1) if then == "relu-pool" else y


def _rate(norm: BatchNorm) -> float:
    return 0.0 if norm.momentum is None else norm.momentum
