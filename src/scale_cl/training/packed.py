"""Many tensors of a device as one block of bytes, so that they come to the host in one transfer."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor


class Packed:
    """Tensors by name, put together where they are; `unpacked` has them on the host."""

    def __init__(self, tensors: Mapping[str, Tensor], device: torch.device) -> None:
        """Copy those on `device` into one tensor there, without waiting; the others stay as they are."""
        self._tensors = dict(tensors)
        away = [(name, t) for name, t in tensors.items() if t.device == device]
        away.sort(key=lambda one: -one[1].element_size())  # so that each begins at a multiple of its element's size
        self._where: dict[str, tuple[int, int, torch.dtype, torch.Size]] = {}
        start = 0
        for name, t in away:
            stop = start + t.numel() * t.element_size()
            self._where[name] = start, stop, t.dtype, t.shape
            self._tensors[name] = torch.empty(0)  # its place among the others
            start = stop
        parts = [t.contiguous().view(-1).view(torch.uint8) for _, t in away]
        self._bytes = torch.cat(parts) if parts else torch.empty(0, dtype=torch.uint8)

    def unpacked(self) -> dict[str, Tensor]:
        """The tensors on the host, in the order they were given; waits for the device."""
        block = self._bytes.cpu()
        for name, (start, stop, dtype, shape) in self._where.items():
            self._tensors[name] = block[start:stop].view(dtype).view(shape).clone()  # none holds the whole block
        return self._tensors
