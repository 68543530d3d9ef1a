"""The machine's settings for a run: device, threads, precision, determinism."""

from __future__ import annotations

import os

import torch

from scale_cl.errors import ConfigError
from scale_cl.learners import Compute
from scale_cl.nets import convolution, fused_norm
from scale_cl.nets.cuda_compile import compile_ahead
from scale_cl.training.config import RunSettings


def choose_device(name: str) -> torch.device:
    """The device that `auto`, `cpu`, `cuda` or `cuda:N` means here."""
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")  # one hardware queue a seed; read when CUDA starts
    if name == "auto":
        return torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    device = torch.device(name)
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise ConfigError(f"run.device: {name!r} was asked for, but no GPU is there; use cpu or auto")
        device = torch.device("cuda", device.index or 0)
        if device.index is not None and device.index >= torch.cuda.device_count():
            raise ConfigError(f"run.device: {name!r} was asked for, but there are {torch.cuda.device_count()} GPUs")
    return device


def prepare(run: RunSettings) -> torch.device:
    """Set what a run needs for the whole process, and say on which device it is."""
    device = choose_device(run.device)
    torch.set_num_threads(run.threads)
    if device.type == "cuda":
        torch.cuda.set_device(device)
        torch.backends.cudnn.conv.fp32_precision = "ieee" if run.precision == "fp32" else "tf32"  # type: ignore[attr-defined]
        torch.backends.cuda.matmul.fp32_precision = "ieee"
        torch.backends.cudnn.benchmark = run.autotune and not run.deterministic
        torch.backends.cudnn.deterministic = run.deterministic
        if run.deterministic:
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(run.deterministic)
    return device


def compile_kernels(run: RunSettings, device: torch.device) -> None:
    """Begin to compile what networks for images need on a GPU, while their data are being read."""
    if device.type == "cuda":
        makers = [fused_norm.kernels, *([convolution.kernels] if run.direct_convolutions else [])]
        compile_ahead(*makers, device=torch.cuda.current_device())


def compute(run: RunSettings, device: torch.device) -> Compute:
    """How learners do their arithmetic there; the CPU knows no graphs and always counts in fp32."""
    on_cpu = device.type == "cpu"
    return Compute(
        precision="fp32" if on_cpu else run.precision,
        channels_last=run.channels_last,
        direct_convolutions=run.direct_convolutions,
        capture=run.capture and not on_cpu,
        on_divergence=run.on_divergence,
    )
