"""Batch norm and what follows it in a ResNet in one or two kernels a direction, for images with channels last on a GPU.

With batches of ten a step is hundreds of tiny kernels, and what stands between two convolutions is more than half of
them. Here the statistics are one kernel and all the rest another (sum with a shortcut, ReLU, max-pool, for all parts of
a batch at once), and for few rows it is a single one. Nothing is atomic and nothing needs zeroing, so the result is the
same bits every time. The kernels are compiled by the driver's own compiler when they are first used.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import Any, Literal

import torch
from torch import Tensor

from scale_cl.nets.cuda_compile import Program, compiled, source

Then = Literal["nothing", "relu", "relu-pool"]
"""What follows: ReLU, or ReLU and the largest of 3x3 with stride 2 and padding 1."""

_TWO = tuple(f"{way}_{what}" for way in ("forward", "backward") for what in ("sums", "rest"))
_POOL = ("forward_pool_4", "backward_pool_sums_4", "backward_pool_rest_4")
_WHOLE = ("forward_whole_4", "backward_whole_4")
MOST_PARTS = 4
_BLOCKS = 264  # two a multiprocessor of the largest GPUs
_VALUES = 4  # of a channel, a thread, before another block is worth it
_FEW = 6144  # rows up to which one kernel does it all, by blocks of at most so many threads
_MOST_THREADS = 1024


@dataclass(frozen=True)
class Layout:
    """How a tensor [n, h, w, channels] in parts is dealt to threads."""

    width: int  # channels that a thread takes together
    threads: int  # in a block: a multiple of channels / width
    blocks: int  # of each part
    ends: tuple[int, ...]  # row after the last of each part; the last repeated up to MOST_PARTS
    parts: int
    whole: int  # threads of a block that has all rows of four channels; 0: there are too many rows

    @property
    def grid(self) -> tuple[int, int, int]:
        """Blocks of each part."""
        return self.blocks, self.parts, 1


@lru_cache(maxsize=1024)
def layout(parts: tuple[int, ...], pixels: int, channels: int) -> Layout:
    """For parts of so many images, with so many pixels each."""
    width = 4 if channels % 4 == 0 else 1
    groups = channels // width
    threads = max(1, 256 // groups) * groups
    most = max(parts) * pixels * groups
    ends = tuple(pixels * end for end in accumulate(parts))
    return Layout(
        width,
        threads,
        max(1, min(_BLOCKS, -(-most // (threads * _VALUES)))),
        ends + ends[-1:] * (MOST_PARTS - len(parts)),
        len(parts),
        min(_MOST_THREADS, -(-max(parts) * pixels // 32) * 32) if width == 4 and sum(parts) * pixels <= _FEW else 0,
    )


def kernels(device: int, width: int = 4) -> dict[str, Any] | None:
    """For channels in fours, or for any number (width 1), compiled for a device when first asked for."""
    return compiled(programs(width), device)


@lru_cache(maxsize=2)
def programs(width: int) -> tuple[Program, ...]:
    """The sources of these kernels."""
    norm = source("norm.cu")
    two = Program(f"{norm}KERNELS({width})\n", tuple(f"{name}_{width}" for name in _TWO))
    if width == 1:
        return (two,)
    return two, Program(norm + source("norm_and_pool.cu"), _POOL), Program(norm + source("norm_of_few_rows.cu"), _WHOLE)


def usable(x: Tensor, parts: tuple[int, ...] = (), then: Then = "nothing") -> bool:
    """Whether `fused_norm` can take `x`: float32 images with channels last on a CUDA device, in parts with variance."""
    return (
        x.is_cuda
        and x.dtype == torch.float32
        and x.dim() == 4
        and x.shape[1] <= 1024
        and (then != "relu-pool" or x.shape[1] % 4 == 0)
        and x.numel() < 2**31
        and len(parts) <= MOST_PARTS
        and min(parts or (len(x),)) * x.shape[2] * x.shape[3] > 1
        and x.is_contiguous(memory_format=torch.channels_last)
        and kernels(x.device.index, 1 if x.shape[1] % 4 else 4) is not None
    )


def fused_norm(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    running: tuple[Tensor, Tensor],
    *,
    momentum: float,
    eps: float,
    parts: tuple[int, ...] = (),
    shortcut: Tensor | None = None,
    then: Then = "nothing",
) -> Tensor:
    """Batch norm in training mode, plus `shortcut` or followed by `then`; moves the running statistics.

    Each of `parts` (sizes that add up to the batch, in order) has statistics of its own.
    """
    assert shortcut is None or then == "nothing", "the gradient of an activated sum is not provided for"
    keeps = torch.is_grad_enabled() and any(t.requires_grad for t in (x, weight, bias))
    how = layout(parts or (len(x),), x.shape[2] * x.shape[3], x.shape[1])
    if then == "relu-pool":
        pooled: Tensor = _NormAndPool.apply(x, weight, bias, *running, momentum, eps, how, keeps)  # type: ignore[no-untyped-call]
        return pooled
    y: Tensor = _Norm.apply(x, weight, bias, shortcut, *running, momentum, eps, how, then == "relu")  # type: ignore[no-untyped-call]
    return y


def _launch(name: str, how: Layout, x: Tensor, tensors: list[Tensor], numbers: list[Any]) -> None:
    made = kernels(x.device.index, how.width)
    assert made is not None
    args = [*tensors, x.shape[1], *how.ends, *numbers]
    made[f"{name}_{how.width}"](grid=how.grid, block=(how.threads, 1, 1), args=args)


def _launch_whole(name: str, how: Layout, x: Tensor, tensors: list[Tensor], numbers: list[Any]) -> None:
    made = kernels(x.device.index)
    assert made is not None
    args = [*tensors, x.shape[1], *how.ends, how.parts, *numbers]
    made[f"{name}_4"](grid=(x.shape[1] // 4, 1, 1), block=(how.whole, 1, 1), args=args)


def _room_for_sums(x: Tensor, how: Layout) -> Tensor:
    return x.new_empty(how.parts * how.blocks * 2 * x.shape[1])


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        shortcut: Tensor | None,
        running_mean: Tensor,
        running_var: Tensor,
        momentum: float,
        eps: float,
        how: Layout,
        activate: bool,
    ) -> Tensor:
        y, saved = torch.empty_like(x), x.new_empty(how.parts * 2 * x.shape[1])
        adds = x if shortcut is None else shortcut.contiguous(memory_format=torch.channels_last)
        tensors = [weight, bias, adds, y, saved, running_mean, running_var]
        numbers = [int(activate), int(shortcut is not None), momentum, eps]
        if how.whole:
            _launch_whole("forward_whole", how, x, [x, *tensors], numbers)
        else:
            partial = _room_for_sums(x, how)
            _launch("forward_sums", how, x, [x, partial], [])
            _launch("forward_rest", how, x, [x, partial, *tensors], [how.blocks, *numbers])
        ctx.save_for_backward(x, weight, bias, saved)
        ctx.how, ctx.activate, ctx.adds = how, activate, shortcut is not None
        return y

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias, saved = ctx.saved_tensors
        how, activate = ctx.how, int(ctx.activate)
        g = g.contiguous(memory_format=torch.channels_last)
        dx, dweight, dbias = torch.empty_like(x), torch.empty_like(weight), torch.empty_like(bias)
        tensors = [weight, bias, dx, dweight, dbias]
        if how.whole:
            _launch_whole("backward_whole", how, x, [g, x, saved, *tensors], [activate])
        else:
            partial = _room_for_sums(x, how)
            _launch("backward_sums", how, x, [g, x, saved, weight, bias, partial], [activate])
            _launch("backward_rest", how, x, [g, x, saved, partial, *tensors], [how.blocks, activate])
        return dx, dweight, dbias, g if ctx.adds else None, *[None] * 6


class _NormAndPool(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        running_mean: Tensor,
        running_var: Tensor,
        momentum: float,
        eps: float,
        how: Layout,
        keeps: bool,
    ) -> Tensor:
        n, channels, *size = x.shape
        pool = [*size, *((length - 1) // 2 + 1 for length in size)]
        y = torch.empty((n, channels, *pool[2:]), device=x.device, memory_format=torch.channels_last)
        saved, partial = x.new_empty(how.parts * 2 * channels), _room_for_sums(x, how)
        kept, place = (torch.empty_like(y, dtype=kind) if keeps else y for kind in (torch.float32, torch.uint8))
        _launch("forward_sums", how, x, [x, partial], [])
        tensors = [x, partial, weight, bias, y, kept, place, saved, running_mean, running_var]
        _launch("forward_pool", how, x, tensors, [*pool, how.blocks, int(keeps), momentum, eps])
        if keeps:
            ctx.save_for_backward(x, weight, bias, saved, kept, place)
        ctx.how, ctx.pool = how, pool
        return y

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias, saved, kept, place = ctx.saved_tensors
        how, pool = ctx.how, ctx.pool
        g = g.contiguous(memory_format=torch.channels_last)
        dx, dweight, dbias = torch.empty_like(x), torch.empty_like(weight), torch.empty_like(bias)
        partial = _room_for_sums(x, how)
        _launch("backward_pool_sums", how, x, [g, kept, place, saved, partial], pool)
        tensors = [g, x, place, saved, partial, weight, bias, dx, dweight, dbias]
        _launch("backward_pool_rest", how, x, tensors, [*pool, how.blocks])
        return dx, dweight, dbias, *[None] * 6
