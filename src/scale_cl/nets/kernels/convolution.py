"""Convolutions of few channels on a GPU by kernels of our own: TF32, channels last, no channel padded in vain.

cuDNN's kernels are made for 64 channels and more; the reduced ResNet-18 has 20 to 160 and batches of 74, so much of
what they multiply is padding. These know three colours, widths of 20 and of multiples of 40, 3x3 and 1x1, strides 1 and
2. They give the same bits every time. Everything else is torch's.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from scale_cl.nets.kernels import Program, compiled, source

_WEIGHTS = ("20_20_3", "20_40_3", "40_40_3", "20_40_1", "40_40_1")  # channels in, out, size
# Threads of a block, and bytes of its shared memory: stages, times four, times the floats of both tiles
KERNELS = {
    "forward_20_20": (128, 3 * 4 * (64 * 44 + 24 * 44)),  # channels in, out
    "forward_20_40": (128, 3 * 4 * (64 * 44 + 40 * 44)),
    "forward_40_40": (128, 3 * 4 * (64 * 44 + 40 * 44)),
    "forward_few_40_40": (320, 4 * 4 * (32 * 84 + 40 * 84)),
    "forward_few_80_40": (320, 4 * 4 * (32 * 84 + 40 * 84)),
    "backward_20_20": (128, 3 * 4 * (64 * 44 + 40 * 24)),  # channels out, in
    "backward_40_20": (128, 3 * 4 * (64 * 44 + 40 * 24)),
    "backward_40_40": (128, 3 * 4 * (64 * 44 + 40 * 40)),
    "backward_few_40_40": (320, 4 * 4 * (32 * 84 + 80 * 40)),
    "backward_few_80_40": (320, 4 * 4 * (32 * 84 + 80 * 40)),
    "weights_20_20_3": (128, 3 * 4 * 32 * (72 + 24)),
    "weights_20_40_3": (128, 3 * 4 * 32 * (72 + 40)),
    "weights_40_40_3": (128, 3 * 4 * 32 * (136 + 40)),
    "weights_20_40_1": (128, 3 * 4 * 32 * (40 + 40)),
    "weights_40_40_1": (128, 3 * 4 * 32 * (72 + 40)),
    "first_forward_3_20": (128, 4 * (3 * 64 * 36 + 24 * 36)),
    "first_weights_3_20": (128, 3 * 4 * 64 * (40 + 24)),
    "add_parts": (128, 0),
}
NAMES = tuple(KERNELS)
_BLOCKS = 512  # that are worth having: about four a multiprocessor of the largest GPUs, as many as fit at once
_FEW = 264  # blocks of the small tiles, two a multiprocessor; instead of more of them the larger tiles read less


@dataclass(frozen=True)
class Launch:
    """A kernel, its grid and the numbers it takes after its tensors."""

    kernel: str
    grid: tuple[int, int, int]
    numbers: tuple[int, ...]


@dataclass(frozen=True)
class Plan:
    """The kernels for one shape: images [n, h, w, c] in and out. The weights' gradient comes in `parts`."""

    outside: tuple[int, int, int, int]  # n, channels, height, width
    forward: Launch
    backward: Launch | None  # None: images have no gradient
    weights: Launch
    add: Launch | None  # None: there is one part only

    @property
    def parts(self) -> int:
        """Of the weights' gradient, each of all weights and over some of the pixels."""
        return self.weights.grid[2]


@lru_cache(maxsize=1024)
def plan(n: int, height: int, width: int, inside: int, outside: int, kernel: int, stride: int) -> Plan | None:
    """How a convolution with padding kernel // 2 is done, or None if these kernels cannot."""
    first = (inside, outside, kernel, stride) == (3, 20, 3, 1)
    fits = (inside == 20 and outside in (20, 40)) or (inside % 40 == 0 and outside % 40 == 0)
    known = kernel in (1, 3) and stride in (1, 2) and f"{min(inside, 40)}_{min(outside, 40)}_{kernel}" in _WEIGHTS
    if not (first or (fits and known)) or n == 0:
        return None
    out_h, out_w = (height - 1) // stride + 1, (width - 1) // stride + 1
    rows, size = n * out_h * out_w, outside * kernel * kernel * inside
    numbers = (n, height, width, inside, out_h, out_w, outside, kernel, stride, kernel // 2)
    if first:
        tall, parts = -(-rows // 64), _parts(rows, 64, _BLOCKS)
        forward = Launch("first_forward_3_20", (min(tall, _BLOCKS), 1, 1), numbers)
        weights = Launch("first_weights_3_20", (1, 1, parts), numbers)
        return Plan((n, outside, out_h, out_w), forward, None, weights, _add(parts, size))
    of_parity = n * -(-height // stride) * -(-width // stride)
    tiles = kernel * max(1, inside // 40), max(1, outside // 40)
    fit = _BLOCKS * 3 // 4 if inside >= 40 and kernel == 3 else _BLOCKS  # the largest tiles leave room for three
    parts = _parts(rows, 32, fit // (tiles[0] * tiles[1]))
    return Plan(
        (n, outside, out_h, out_w),
        _gather("forward", rows, inside, outside, 1, numbers),
        _gather("backward", of_parity, outside, inside, stride * stride, numbers),
        Launch(f"weights_{min(inside, 40)}_{min(outside, 40)}_{kernel}", (*tiles, parts), numbers),
        _add(parts, size),
    )


def _gather(way: str, rows: int, depth: int, channels: int, classes: int, numbers: tuple[int, ...]) -> Launch:
    """A kernel that makes `rows` pixels of `channels` from pixels of `depth` channels."""
    wide = max(1, channels // 40)
    small = -(-rows // 32), wide, classes
    if (depth == 40 or depth % 80 == 0) and channels >= 40 and small[0] * wide * classes <= _FEW:
        return Launch(f"{way}_few_{min(depth, 80)}_40", small, numbers)
    return Launch(f"{way}_{min(depth, 40)}_{min(channels, 40)}", (-(-rows // 64), wide, classes), numbers)


def _parts(pixels: int, chunk: int, most: int) -> int:
    """In how many parts the weights' gradient is made: three chunks of pixels at the least are worth one."""
    chunks = -(-pixels // chunk)
    each = max(3, -(-chunks // max(1, most)))
    return -(-chunks // each)


def _add(parts: int, size: int) -> Launch | None:
    """The kernel that adds the parts up: four values a thread, and up to 16 threads for the same four."""
    if parts == 1:
        return None
    rows = next(r for r in (1, 2, 4, 8, 16) if 8 * r >= parts or r == 16)
    quads = size // 4
    return Launch("add_parts", (-(-quads // (128 // rows)), 1, 1), (parts, quads, rows))


class Convolution(nn.Conv2d):
    """`nn.Conv2d` that takes the kernels above where `direct` is on and they apply."""

    direct = False

    def reset_parameters(self) -> None:
        """Nothing: whoever makes it draws the weights."""

    def forward(self, x: Tensor) -> Tensor:
        """[B, C, H, W] -> [B, C', H', W']."""
        if self.direct and usable(x, self.weight):
            n, inside, height, width = x.shape
            how = plan(n, height, width, inside, self.out_channels, self.kernel_size[0], self.stride[0])
            if how is not None and not (x.requires_grad and how.backward is None):
                y: Tensor = _Direct.apply(x, self.weight, how)  # type: ignore[no-untyped-call]
                return y
        return super().forward(x)


def use_direct(net: nn.Module, on: bool) -> None:
    """Have all of a network's convolutions take the kernels above, or none."""
    for module in net.modules():
        if isinstance(module, Convolution):
            module.direct = on


@contextmanager
def torch_convolutions(net: nn.Module) -> Iterator[None]:
    """Inside, a network's convolutions take torch's kernels."""
    ours = [module for module in net.modules() if isinstance(module, Convolution) and module.direct]
    use_direct(net, False)
    try:
        yield
    finally:
        for module in ours:
            module.direct = True


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
        and x.numel() // x.shape[1] * max(weight.shape[:2]) < 2**31
        and kernels(x.device.index) is not None
    )


def kernels(device: int) -> dict[str, Any] | None:
    """Compiled for a device when first asked for."""
    return compiled(_programs(), device)


@lru_cache(maxsize=1)
def _programs() -> tuple[Program, ...]:
    """One for each direction: the source with only those of its last lines that make the direction's kernels."""
    lines = source("primitives.cu", "convolution.cu").splitlines(keepends=True)
    programs = []
    for way in ("forward", "backward", "weights"):
        names = tuple(name for name in NAMES if way in name or (way, name) == ("weights", "add_parts"))
        wanted = tuple(f"KERNEL({name}," for name in names)
        text = "".join(line for line in lines if not line.startswith("KERNEL(") or line.startswith(wanted))
        programs.append(Program(text, names, tuple(KERNELS[name][1] for name in names)))
    return tuple(programs)


class _Direct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, how: Plan) -> Tensor:
        y = torch.empty(how.outside, device=x.device, memory_format=torch.channels_last)
        _launch(how.forward, [x, weight, y])
        ctx.save_for_backward(x, weight)
        ctx.how = how
        return y

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        how: Plan = ctx.how
        g = g.contiguous(memory_format=torch.channels_last)
        dx = dweight = None
        if ctx.needs_input_grad[0] and how.backward is not None:
            dx = torch.empty_like(x)
            _launch(how.backward, [g, weight, dx])
        if ctx.needs_input_grad[1]:
            dweight = torch.empty_like(weight)
            parts = dweight if how.add is None else weight.new_empty(how.parts * weight.numel())
            _launch(how.weights, [x, g, parts])
            if how.add is not None:
                _launch(how.add, [parts, dweight])
        return dx, dweight, None


def _launch(launch: Launch, tensors: list[Tensor]) -> None:
    made = kernels(tensors[0].device.index)
    assert made is not None
    threads, shared = KERNELS[launch.kernel]
    made[launch.kernel](grid=launch.grid, block=(threads, 1, 1), args=[*tensors, *launch.numbers], shared_mem=shared)
