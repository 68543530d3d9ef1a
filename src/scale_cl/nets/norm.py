"""Batch norm over parts of a batch: samples of several origins share the convolutions, but not their statistics.

A forward over batch and replay with `parts=(n, r)` gives what two forwards would give, at nearly the cost of one.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from scale_cl.nets.fused_norm import fused_norm, usable


class BatchNorm(nn.BatchNorm2d):
    """`nn.BatchNorm2d` with statistics of their own for each part of a batch, and what follows it in a ResNet.

    A part with a single value a channel (one sample, a map of one pixel) has no variance: it is normalised by the
    running statistics, which it leaves as they are. The count of batches, of no use with a fixed momentum, is not kept.
    """

    running_mean: Tensor
    running_var: Tensor
    fuse = True  # use the fused kernels where they apply; they have no second derivative

    def forward(
        self, x: Tensor, parts: tuple[int, ...] = (), *, shortcut: Tensor | None = None, activate: bool = False
    ) -> Tensor:
        """Normalise [B, C, H, W] and add `shortcut`, or activate; `parts` are sizes that add up to B, in order."""
        if not self.training or len(parts) < 2:
            return self._normalised(_Piece(x, shortcut), activate)
        shortcuts = [None] * len(parts) if shortcut is None else shortcut.split_with_sizes(parts)
        pieces = map(_Piece, x.split_with_sizes(parts), shortcuts)
        return torch.cat([self._normalised(piece, activate) for piece in pieces])

    def _normalised(self, piece: _Piece, activate: bool) -> Tensor:
        x, shortcut = piece
        by_batch = self.training and x.numel() > x.shape[1]
        running = self.running_mean, self.running_var
        momentum = 0.0 if self.momentum is None else self.momentum
        if by_batch and self.fuse and usable(x):
            weights = self.weight, self.bias
            return fused_norm(
                x, *weights, running, momentum=momentum, eps=self.eps, shortcut=shortcut, activate=activate
            )
        y = F.batch_norm(x, *running, self.weight, self.bias, by_batch, momentum, self.eps)
        y = y if shortcut is None else y + shortcut
        return torch.relu(y) if activate else y


class _Piece(NamedTuple):
    x: Tensor
    shortcut: Tensor | None
