"""Batch norm, the sum with a shortcut and ReLU in two kernels a direction, for images with channels last on a GPU.

With batches of ten a step is hundreds of tiny kernels, and what stands between two convolutions is more than half of
them. Here the statistics are one kernel and all the rest another; nothing is atomic and nothing needs zeroing, so the
result is the same bits every time. The kernels are compiled by the driver's own compiler when they are first used.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from scale_cl.nets.kernels import compiled

_THREADS = 512
_BLOCKS = 128
_VALUES = 8  # of a channel, a thread, before another block is worth it

_SOURCE = r"""
// A tensor with channels last is rows x channels. The block size is a multiple of the channels, so a thread keeps to
// one channel c while it walks over the rows. `partial` holds two sums a block and channel, in a fixed order.

__device__ void total(const float* partial, int blocks, int channels, float* shared, float* first, float* second) {
    int c = threadIdx.x % channels, group = threadIdx.x / channels, groups = blockDim.x / channels;
    float a = 0.f, b = 0.f;
    for (int k = group; k < blocks; k += groups) {
        a += partial[(2 * k) * channels + c];
        b += partial[(2 * k + 1) * channels + c];
    }
    shared[threadIdx.x] = a;
    shared[blockDim.x + threadIdx.x] = b;
    __syncthreads();
    a = 0.f, b = 0.f;
    for (int k = c; k < blockDim.x; k += channels) {
        a += shared[k];
        b += shared[blockDim.x + k];
    }
    *first = a;
    *second = b;
}

__device__ void keep(float a, float b, int channels, float* shared, float* partial) {
    shared[threadIdx.x] = a;
    shared[blockDim.x + threadIdx.x] = b;
    __syncthreads();
    if (threadIdx.x < channels) {
        a = 0.f, b = 0.f;
        for (int k = threadIdx.x; k < blockDim.x; k += channels) {
            a += shared[k];
            b += shared[blockDim.x + k];
        }
        partial[(2 * blockIdx.x) * channels + threadIdx.x] = a;
        partial[(2 * blockIdx.x + 1) * channels + threadIdx.x] = b;
    }
}

extern "C" __global__ void forward_sums(const float* x, float* partial, int rows, int channels) {
    extern __shared__ float shared[];
    float origin = x[threadIdx.x % channels];  // sums are taken around the first row: no cancellation
    float a = 0.f, b = 0.f;
    long long step = (long long)gridDim.x * blockDim.x, end = (long long)rows * channels;
    #pragma unroll 4
    for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < end; i += step) {
        float v = x[i] - origin;
        a += v;
        b += v * v;
    }
    keep(a, b, channels, shared, partial);
}

extern "C" __global__ void forward_rest(const float* x, const float* partial, const float* weight, const float* bias,
                                        const float* shortcut, float* y, float* saved, float* running_mean,
                                        float* running_var, int rows, int channels, int blocks, int activate, int adds,
                                        double momentum, double eps) {
    extern __shared__ float shared[];
    int c = threadIdx.x % channels;
    float sum, squares;
    total(partial, blocks, channels, shared, &sum, &squares);
    float offset = sum / rows, mean = x[c] + offset;
    float var = fmaxf(squares / rows - offset * offset, 0.f);
    float inverse = (float)(1.0 / sqrt((double)var + eps));
    if (blockIdx.x == 0 && threadIdx.x < channels) {
        saved[c] = mean;
        saved[channels + c] = inverse;
        double unbiased = (double)var * rows / (rows - 1);
        running_mean[c] = (float)((1.0 - momentum) * running_mean[c] + momentum * mean);
        running_var[c] = (float)((1.0 - momentum) * running_var[c] + momentum * unbiased);
    }
    float scale = weight[c] * inverse, shift = bias[c];
    long long step = (long long)gridDim.x * blockDim.x, end = (long long)rows * channels;
    #pragma unroll 4
    for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < end; i += step) {
        float v = (x[i] - mean) * scale + shift;
        if (adds) v += shortcut[i];
        y[i] = activate ? fmaxf(v, 0.f) : v;
    }
}

extern "C" __global__ void backward_sums(const float* g, const float* x, const float* y, const float* saved,
                                         float* partial, int rows, int channels, int activate) {
    extern __shared__ float shared[];
    int c = threadIdx.x % channels;
    float mean = saved[c], inverse = saved[channels + c], a = 0.f, b = 0.f;
    long long step = (long long)gridDim.x * blockDim.x, end = (long long)rows * channels;
    #pragma unroll 4
    for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < end; i += step) {
        float v = activate && !(y[i] > 0.f) ? 0.f : g[i];
        a += v;
        b += v * (x[i] - mean) * inverse;
    }
    keep(a, b, channels, shared, partial);
}

extern "C" __global__ void backward_rest(const float* g, const float* x, const float* y, const float* saved,
                                         const float* partial, const float* weight, float* dx, float* dweight,
                                         float* dbias, int rows, int channels, int blocks, int activate) {
    extern __shared__ float shared[];
    int c = threadIdx.x % channels;
    float sum, along;
    total(partial, blocks, channels, shared, &sum, &along);
    if (blockIdx.x == 0 && threadIdx.x < channels) {
        dbias[c] = sum;
        dweight[c] = along;
    }
    float mean = saved[c], inverse = saved[channels + c], scale = weight[c] * inverse;
    sum /= rows;
    along /= rows;
    long long step = (long long)gridDim.x * blockDim.x, end = (long long)rows * channels;
    #pragma unroll 4
    for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < end; i += step) {
        float v = activate && !(y[i] > 0.f) ? 0.f : g[i];
        dx[i] = scale * (v - sum - (x[i] - mean) * inverse * along);
    }
}
"""


_NAMES = ("forward_sums", "forward_rest", "backward_sums", "backward_rest")


def kernels(device: int) -> dict[str, Any] | None:
    """Compiled for a device when first asked for."""
    return compiled(_SOURCE, _NAMES, device)


def usable(x: Tensor) -> bool:
    """Whether `fused_norm` can take `x`: float32 images with channels last on a CUDA device."""
    return (
        x.is_cuda
        and x.dtype == torch.float32
        and x.dim() == 4
        and x.shape[1] <= 1024
        and x.is_contiguous(memory_format=torch.channels_last)
        and kernels(x.device.index) is not None
    )


def fused_norm(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    running: tuple[Tensor, Tensor],
    *,
    momentum: float,
    eps: float,
    shortcut: Tensor | None = None,
    activate: bool = False,
) -> Tensor:
    """Batch norm in training mode, plus `shortcut`, or through ReLU if `activate`; moves the running statistics."""
    assert shortcut is None or not activate, "the gradient of an activated sum is not provided for"
    y: Tensor = _FusedNorm.apply(x, weight, bias, shortcut, *running, momentum, eps, activate)  # type: ignore[no-untyped-call]
    return y


def _launch(name: str, x: Tensor, args: list[Any]) -> None:
    channels = x.shape[1]
    threads, blocks = _layout(x)
    made = kernels(x.device.index)
    assert made is not None
    made[name](grid=(blocks, 1, 1), block=(threads, 1, 1), args=args, shared_mem=8 * max(threads, channels))


def _layout(x: Tensor) -> tuple[int, int]:
    """Threads a block (a multiple of the channels) and blocks."""
    channels = x.shape[1]
    threads = max(1, _THREADS // channels) * channels
    return threads, max(1, min(_BLOCKS, x.numel() // (threads * _VALUES)))


class _FusedNorm(torch.autograd.Function):
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
        activate: bool,
    ) -> Tensor:
        channels, rows, (_, blocks) = x.shape[1], x.numel() // x.shape[1], _layout(x)
        y, saved = torch.empty_like(x), x.new_empty(2 * channels)
        partial = x.new_empty(2 * blocks * channels)
        adds = x if shortcut is None else shortcut.contiguous(memory_format=torch.channels_last)
        _launch("forward_sums", x, [x, partial, rows, channels])
        tensors = [x, partial, weight, bias, adds, y, saved, running_mean, running_var]
        numbers = [rows, channels, blocks, int(activate), int(shortcut is not None), momentum, eps]
        _launch("forward_rest", x, [*tensors, *numbers])
        ctx.save_for_backward(x, y, weight, saved)
        ctx.activate, ctx.adds = activate, shortcut is not None
        return y

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        x, y, weight, saved = ctx.saved_tensors
        channels, rows, (_, blocks) = x.shape[1], x.numel() // x.shape[1], _layout(x)
        g = g.contiguous(memory_format=torch.channels_last)
        partial = x.new_empty(2 * blocks * channels)
        dx, dweight, dbias = torch.empty_like(x), torch.empty_like(weight), torch.empty_like(weight)
        _launch("backward_sums", x, [g, x, y, saved, partial, rows, channels, int(ctx.activate)])
        outputs = [dx, dweight, dbias]
        _launch(
            "backward_rest", x, [g, x, y, saved, partial, weight, *outputs, rows, channels, blocks, int(ctx.activate)]
        )
        return dx, dweight, dbias, g if ctx.adds else None, None, None, None, None, None
