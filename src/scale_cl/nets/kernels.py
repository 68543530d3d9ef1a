"""CUDA kernels of our own, compiled by the driver's own compiler when they are first used, all of a source at once."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from importlib.resources import files
from threading import Lock, Thread
from typing import Any

import torch


def source(*names: str) -> str:
    """The CUDA files of that name, one after another."""
    return "".join((files("scale_cl.nets") / "cuda" / name).read_text() for name in names)


def compiled(text: str, names: tuple[str, ...], device: int) -> dict[str, Any] | None:
    """The kernels `names` (extern "C") of a source, on a device; None where they cannot be compiled."""
    with _locks.setdefault(text, Lock()):  # whoever comes second waits for the first
        return _compiled(text, names, device)


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
_locks: dict[str, Lock] = {}


@lru_cache(maxsize=32)
def _compiled(text: str, names: tuple[str, ...], device: int) -> dict[str, Any] | None:
    try:
        from torch.cuda._utils import _cuda_load_module, _nvrtc_compile

        with torch.cuda.device(device):
            binary, _ = _nvrtc_compile(text, names[0])
            made = _cuda_load_module(binary, list(names))
        assert isinstance(made, dict)
        return made
    except Exception:  # no compiler with the driver, or a torch without the door to it: torch's own kernels serve
        return None
