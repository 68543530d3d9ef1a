"""Convolutions of few channels on a GPU by kernels of our own: TF32, channels last, no channel padded in vain.

cuDNN's kernels are made for 64 channels and more; the reduced ResNet-18 has 20 to 160 and batches of 74, so much of
what they multiply is padding. These know three colours, widths of 20 and of multiples of 40, 3x3 and 1x1, strides 1 and
2. They give the same bits every time. Everything else is torch's.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from scale_cl.nets.kernels import compiled, source

_WEIGHTS = ("20_20_3", "20_40_3", "40_40_3", "20_40_1", "40_40_1")  # channels in, out, size
NAMES = (
    *(f"forward_{n}" for n in ("20_20", "20_40", "40_40", "80_40")),  # channels in, out
    *(f"backward_{n}" for n in ("20_20", "40_20", "40_40", "80_40")),  # channels out, in
    *(f"weights_{n}" for n in _WEIGHTS),
    "first_forward_3_20",
    "first_weights_3_20",
)
_BLOCKS = 128  # that a gradient of weights is worth
_FIRST_BLOCKS = 528  # four a multiprocessor of the largest GPUs, each going on to the next pixels


@dataclass(frozen=True)
class Launch:
    """A kernel and its grid."""

    kernel: str
    grid: tuple[int, int, int]


@dataclass(frozen=True)
class Plan:
    """The kernels for one shape: images [n, h, w, c] in and out, and how often the weights' gradient is split."""

    shape: tuple[int, ...]  # n, in_h, in_w, in_c, out_h, out_w, out_c, kernel, stride, padding
    forward: Launch
    backward: Launch | None  # None: images have no gradient
    weights: Launch


@lru_cache(maxsize=1024)
def plan(n: int, height: int, width: int, inside: int, outside: int, kernel: int, stride: int) -> Plan | None:
    """How a convolution with padding kernel // 2 is done, or None if these kernels cannot."""
    first = (inside, outside, kernel, stride) == (3, 20, 3, 1)
    fits = (inside == 20 and outside in (20, 40)) or (inside % 40 == 0 and outside % 40 == 0)
    known = kernel in (1, 3) and stride in (1, 2) and f"{min(inside, 40)}_{min(outside, 40)}_{kernel}" in _WEIGHTS
    if not (first or (fits and known)) or n == 0:
        return None
    out_h, out_w = (height - 1) // stride + 1, (width - 1) // stride + 1
    rows = n * out_h * out_w
    shape = (n, height, width, inside, out_h, out_w, outside, kernel, stride, kernel // 2)
    if first:
        most = -(-rows // 64)
        return Plan(
            shape,
            Launch("first_forward_3_20", (min(most, _FIRST_BLOCKS), 1, 1)),
            None,
            Launch("first_weights_3_20", (1, 1, min(most, _BLOCKS))),
        )
    of_parity = n * -(-height // stride) * -(-width // stride)
    tiles = kernel * max(1, inside // 40), max(1, outside // 40)
    splits = max(1, min(-(-rows // 64), _BLOCKS // (tiles[0] * tiles[1])))
    return Plan(
        shape,
        _gather("forward", rows, inside, outside, classes=1),
        _gather("backward", of_parity, outside, inside, classes=stride * stride),
        Launch(f"weights_{min(inside, 40)}_{min(outside, 40)}_{kernel}", (*tiles, splits)),
    )


def _gather(way: str, rows: int, depth: int, channels: int, *, classes: int) -> Launch:
    """A kernel that makes `rows` pixels of `channels` from pixels of `depth` channels."""
    deep = depth % 80 == 0 and channels >= 40  # two warps share the sum, over 32 pixels instead of 64
    tall, wide = -(-rows // (32 if deep else 64)), max(1, channels // 40)
    return Launch(f"{way}_{80 if deep else min(depth, 40)}_{min(channels, 40)}", (tall, wide, classes))


class Convolution(nn.Conv2d):
    """`nn.Conv2d` that takes the kernels above where `direct` is on and they apply."""

    direct = False
    _arrived: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        """[B, C, H, W] -> [B, C', H', W']."""
        if self.direct and usable(x, self.weight):
            n, inside, height, width = x.shape
            how = plan(n, height, width, inside, self.out_channels, self.kernel_size[0], self.stride[0])
            if how is not None and not (x.requires_grad and how.backward is None):
                if self._arrived is None or self._arrived.device != x.device:
                    self._arrived = torch.zeros(256, dtype=torch.int32, device=x.device)
                y: Tensor = _Direct.apply(x, self.weight, self._arrived, how)  # type: ignore[no-untyped-call]
                return y
        return super().forward(x)


def use_direct(net: nn.Module, on: bool) -> None:
    """Have all of a network's convolutions take the kernels above, or none."""
    for module in net.modules():
        if isinstance(module, Convolution):
            module.direct = on


def usable(x: Tensor, weight: Tensor) -> bool:
    """Whether the kernels can take these tensors: TF32 is allowed, float32 with channels last on a CUDA device."""
    return (
        x.is_cuda
        and x.dtype == torch.float32
        and weight.dtype == torch.float32
        and torch.backends.cudnn.conv.fp32_precision == "tf32"  # type: ignore[attr-defined]
        and not torch.is_autocast_enabled("cuda")
        and x.is_contiguous(memory_format=torch.channels_last)
        and weight.is_contiguous(memory_format=torch.channels_last)
        and x.numel() < 2**31
        and kernels(x.device.index) is not None
    )


def kernels(device: int) -> dict[str, Any] | None:
    """Compiled for a device when first asked for."""
    return compiled(_source(), NAMES, device)


@lru_cache(maxsize=1)
def _source() -> str:
    return source("primitives.cu", "convolution.cu")


class _Direct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, arrived: Tensor, how: Plan) -> Tensor:
        n, (out_h, out_w, channels) = how.shape[0], how.shape[4:7]
        y = torch.empty((n, channels, out_h, out_w), device=x.device, memory_format=torch.channels_last)
        _launch(how.forward, [x, weight, y], how)
        ctx.save_for_backward(x, weight, arrived)
        ctx.how = how
        return y

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, arrived = ctx.saved_tensors
        how: Plan = ctx.how
        g = g.contiguous(memory_format=torch.channels_last)
        dx = dweight = None
        if ctx.needs_input_grad[0] and how.backward is not None:
            dx = torch.empty_like(x)
            _launch(how.backward, [g, weight, dx], how)
        if ctx.needs_input_grad[1]:
            dweight, splits = torch.empty_like(weight), how.weights.grid[2]
            parts = dweight if splits == 1 else weight.new_empty(splits * weight.numel())
            _launch(how.weights, [x, g, parts, dweight, arrived], how)
        return dx, dweight, None, None


def _launch(launch: Launch, tensors: list[Tensor], how: Plan) -> None:
    made = kernels(tensors[0].device.index)
    assert made is not None
    made[launch.kernel](grid=launch.grid, block=(128, 1, 1), args=[*tensors, *how.shape])
