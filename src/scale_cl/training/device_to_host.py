"""Many tensors of a device put together, so that they come to the host in a few transfers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

import torch
from torch import Tensor


class HostCopy:
    """Tensors by name, those of one kind in one block where they are; `unpacked` has them on the host."""

    def __init__(self, tensors: Mapping[str, Tensor], device: torch.device) -> None:
        """Copy those on `device` into a block for each dtype there, without waiting; the others stay as they are."""
        self._tensors = dict(tensors)
        kinds: dict[torch.dtype, list[str]] = defaultdict(list)
        for name, tensor in tensors.items():
            if tensor.device == device:
                kinds[tensor.dtype].append(name)
        self._blocks = [
            (torch.cat([tensors[name].reshape(-1) for name in names]), {name: tensors[name].shape for name in names})
            for names in kinds.values()
        ]
        for _, shapes in self._blocks:
            self._tensors.update(dict.fromkeys(shapes, torch.empty(0)))  # their places among the others

    def unpacked(self) -> dict[str, Tensor]:
        """The tensors on the host, in the order they were given; waits for the device."""
        for block, shapes in self._blocks:
            parts = block.cpu().split([shape.numel() for shape in shapes.values()])
            for (name, shape), part in zip(shapes.items(), parts, strict=True):
                self._tensors[name] = part.view(shape).clone()  # none holds the whole block
        return self._tensors
