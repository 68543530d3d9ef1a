"""Uniform draws without replacement, whose result does not depend on how many rows are allocated.

A row's key is a hash of its number and of two random numbers; a draw takes the rows with the highest keys. The hash is
a bijection of 32 bits, so no two rows share a key. There are two forms with the same result: one for rows that the host
knows, and one of a fixed shape, which a CUDA graph can record.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from scale_cl.memory.ragged_rows import taken


def random_seeds(times: int, generator: torch.Generator, device: torch.device) -> Tensor:
    """[times, 2, 1]: the random numbers of so many draws."""
    return torch.randint(0, 2**31, (times, 2, 1), generator=generator, device=device)


def drawn_of_rows(rows: Tensor, seeds: Tensor, n: int) -> Tensor:
    """[times, n] of these `rows`, on the host: only they are hashed."""
    a, b = seeds.numpy().astype(np.uint32).swapaxes(0, 1)
    key = rows.numpy().astype(np.uint32) * (2 * a + 1) + b  # uint32 keeps the low 32 bits
    key ^= key >> 16
    key *= np.uint32(0x85EBCA6B)
    key ^= key >> 13
    key *= np.uint32(0xC2B2AE35)
    key ^= (key >> 16) ^ np.uint32(0x80000000)  # the last bit makes the order of int32 that of uint32
    return taken(rows, torch.from_numpy(key.view(np.int32)).topk(n).indices)


def drawn_of_mask(row: Tensor, drawable: Tensor, seeds: Tensor, n: int) -> Tensor:
    """[times, n] of the rows that are `drawable` [rows], at least `n` of them; `row` [rows] are all row numbers."""
    a, b = seeds.unbind(1)
    return _mix32_((row * (2 * a + 1)).add_(b)).masked_fill_(~drawable, -1).topk(n).indices


def _mix32_(value: Tensor) -> Tensor:
    """Murmur's finaliser on the low 32 bits, in place: every output bit depends on every input bit."""
    low = 0xFFFFFFFF
    value.bitwise_and_(low)
    value.bitwise_xor_(value >> 16).mul_(0x85EBCA6B).bitwise_and_(low)
    value.bitwise_xor_(value >> 13).mul_(0xC2B2AE35).bitwise_and_(low)
    return value.bitwise_xor_(value >> 16)
