"""Layers with CUDA kernels of our own, compiled by the driver's compiler at first use, programs side by side."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from threading import Lock, Thread
from typing import Any

import torch


def source(*names: str) -> str:
    """The CUDA files of that name, one after another."""
    return "".join((files(__name__) / name).read_text() for name in names)


@dataclass(frozen=True)
class Program:
    """A CUDA source with its kernels (extern "C"); `shared` is the memory each will be launched with, if any is."""

    text: str
    names: tuple[str, ...]
    shared: tuple[int, ...] = ()


def compiled(programs: tuple[Program, ...], device: int) -> dict[str, Any] | None:
    """The kernels of some programs on a device, compiled side by side; None where they cannot be compiled."""
    with _locks.setdefault((programs, device), Lock()):  # whoever comes second waits for the first
        return _compiled(programs, device)


def compile_ahead(*makers: Callable[[int], object], device: int) -> None:
    """Have each of `makers` compile its kernels in a thread of its own, while the data are being read."""
    for make in makers:
        thread = Thread(target=make, args=(device,), daemon=True)
        _compiling.append(thread)
        thread.start()


def finish_compiling() -> None:
    """Wait for what was begun ahead: a graph cannot be recorded while another thread loads kernels."""
    while _compiling:
        _compiling.pop().join()


_compiling: list[Thread] = []
_locks: dict[tuple[tuple[Program, ...], int], Lock] = {}


@lru_cache(maxsize=32)
def _compiled(programs: tuple[Program, ...], device: int) -> dict[str, Any] | None:
    try:
        with ThreadPoolExecutor(len(programs)) as threads:
            made = list(threads.map(lambda program: _made(program, device), programs))
    except Exception:  # no compiler, a torch without the door to it, too little memory: torch's own kernels serve
        return None
    return {name: kernel for kernels in made for name, kernel in kernels.items()}


def _made(program: Program, device: int) -> dict[str, Any]:
    from torch.cuda._utils import _cuda_load_module, _nvrtc_compile

    with torch.cuda.device(device):
        torch.cuda.current_stream().synchronize()  # a thread that has not called the runtime has no context to load to
        binary, _ = _nvrtc_compile(program.text, program.names[0])
        made = _cuda_load_module(binary, list(program.names))
        assert isinstance(made, dict)
        for name, size in zip(program.names, program.shared, strict=False):
            made[name].set_shared_memory_config(size)
    return made
