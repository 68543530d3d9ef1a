"""Batch norm over parts of a batch, with fused kernels for images with channels last on a GPU.

Samples of several origins share the convolutions, but not their statistics: a forward over batch and replay with
`parts=(n, r)` gives what two forwards would give, at nearly the cost of one.

With batches of ten a step is hundreds of tiny kernels, more than half of them between two convolutions. Fused, the
statistics are one kernel and the rest another (sum with a shortcut, ReLU, max-pool, for all parts at once), and few
rows take a single one. Nothing is atomic and nothing needs zeroing, so the bits are the same every time.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from scale_cl.nets.kernels import Program, compiled, source

Then = Literal["nothing", "relu", "relu-pool"]
"""What follows: ReLU, or ReLU and the largest of 3x3 with stride 2 and padding 1."""


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


# ---- fused kernels ---------------------------------------------------------------------------------------------------
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
    how, run = layout(parts or (len(x),), x.shape[2] * x.shape[3], x.shape[1]), _Running(*running, momentum, eps)
    if then == "relu-pool":
        pooled: Tensor = _NormAndPool.apply(x, weight, bias, run, how, keeps)  # type: ignore[no-untyped-call]
        return pooled
    y: Tensor = _Norm.apply(x, weight, bias, shortcut, run, how, then == "relu")  # type: ignore[no-untyped-call]
    return y


class _Running(NamedTuple):
    """The running statistics, and how they move."""

    mean: Tensor
    var: Tensor
    momentum: float
    eps: float


def _launch(name: str, how: Layout, x: Tensor, tensors: list[Tensor], numbers: list[Any]) -> None:
    made = kernels(x.device.index, how.width)
    assert made is not None
    grid, threads, ends = (how.blocks, how.parts, 1), how.threads, [*how.ends]
    if name.endswith("whole"):  # a block has all rows of four channels, in all parts
        grid, threads, ends = (x.shape[1] // 4, 1, 1), how.whole, [*ends, how.parts]
    made[f"{name}_{how.width}"](grid=grid, block=(threads, 1, 1), args=[*tensors, x.shape[1], *ends, *numbers])


def _room_for_sums(x: Tensor, how: Layout) -> Tensor:
    return x.new_empty(how.parts * how.blocks * 2 * x.shape[1])


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, added: Tensor | None, run: _Running, how: Layout, relu: bool
    ) -> Tensor:
        y, saved = torch.empty_like(x), x.new_empty(how.parts * 2 * x.shape[1])
        addend = x if added is None else added.contiguous(memory_format=torch.channels_last)
        tensors = [weight, bias, addend, y, saved, run.mean, run.var]
        numbers = [int(relu), int(added is not None), run.momentum, run.eps]
        if how.whole:
            _launch("forward_whole", how, x, [x, *tensors], numbers)
        else:
            partial = _room_for_sums(x, how)
            _launch("forward_sums", how, x, [x, partial], [])
            _launch("forward_rest", how, x, [x, partial, *tensors], [how.blocks, *numbers])
        ctx.save_for_backward(x, weight, bias, saved)
        ctx.how, ctx.relu, ctx.adds = how, relu, added is not None
        return y

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias, saved = ctx.saved_tensors
        how, relu = ctx.how, int(ctx.relu)
        g = g.contiguous(memory_format=torch.channels_last)
        dx, dweight, dbias = torch.empty_like(x), torch.empty_like(weight), torch.empty_like(bias)
        tensors = [weight, bias, dx, dweight, dbias]
        if how.whole:
            _launch("backward_whole", how, x, [g, x, saved, *tensors], [relu])
        else:
            partial = _room_for_sums(x, how)
            _launch("backward_sums", how, x, [g, x, saved, weight, bias, partial], [relu])
            _launch("backward_rest", how, x, [g, x, saved, partial, *tensors], [how.blocks, relu])
        return dx, dweight, dbias, g if ctx.adds else None, None, None, None


class _NormAndPool(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, run: _Running, how: Layout, keeps: bool) -> Tensor:
        n, channels, *size = x.shape
        pool = [*size, *((length - 1) // 2 + 1 for length in size)]
        y = torch.empty((n, channels, *pool[2:]), device=x.device, memory_format=torch.channels_last)
        saved, partial = x.new_empty(how.parts * 2 * channels), _room_for_sums(x, how)
        kept, place = (torch.empty_like(y, dtype=kind) if keeps else y for kind in (torch.float32, torch.uint8))
        _launch("forward_sums", how, x, [x, partial], [])
        tensors = [x, partial, weight, bias, y, kept, place, saved, run.mean, run.var]
        _launch("forward_pool", how, x, tensors, [*pool, how.blocks, int(keeps), run.momentum, run.eps])
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
        return dx, dweight, dbias, None, None, None
