"""Batch norm over parts of a batch: samples of several origins share the convolutions, but not their statistics.

A forward over batch and replay with `parts=(n, r)` gives what two forwards would give, at nearly the cost of one.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class BatchNorm(nn.BatchNorm2d):
    """`nn.BatchNorm2d` with statistics of their own for each part of a batch.

    A part with a single value a channel (one sample, a map of one pixel) has no variance: it is normalised by the
    running statistics, which it leaves as they are. The count of batches, of no use with a fixed momentum, is not kept.
    """

    def forward(self, x: Tensor, parts: tuple[int, ...] = ()) -> Tensor:
        """Normalise [B, C, H, W]; `parts` are sizes that add up to B, in order (none: one part)."""
        if not self.training or len(parts) < 2:
            return self._normalised(x)
        return torch.cat([self._normalised(part) for part in x.split_with_sizes(parts)])

    def _normalised(self, x: Tensor) -> Tensor:
        by_batch = self.training and x.numel() > x.shape[1]
        running = self.running_mean, self.running_var
        momentum = 0.0 if self.momentum is None else self.momentum
        return F.batch_norm(x, *running, self.weight, self.bias, by_batch, momentum, self.eps)
