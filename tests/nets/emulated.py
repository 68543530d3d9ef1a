"""CUDA sources compiled for the CPU, a thread for each of a block's, to be called as torch calls the real kernels."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

Kernels = dict[str, Callable[..., None]]


def emulated(text: str, names: tuple[str, ...], folder: Path) -> Kernels:
    """The kernels `names` of a CUDA source, compiled in `folder`; skips the test where there is no compiler."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("needs a C++ compiler")
    header = (Path(__file__).parent / "emulated.h").read_text()
    (folder / "kernels.cpp").write_text(header + text + "\n".join(f"RUN({name})" for name in names))
    command = [compiler, "-O1", "-std=c++20", "-shared", "-fPIC", "-pthread", "-w", "-ffp-contract=off"]
    subprocess.run([*command, "kernels.cpp", "-o", "kernels.so"], cwd=folder, check=True)
    library = ctypes.CDLL(str(folder / "kernels.so"))
    return {name: _callable(getattr(library, f"run_{name}")) for name in names}


def _callable(function: Any) -> Callable[..., None]:
    def run(*, grid: tuple[int, int, int], block: tuple[int, int, int], args: list[Any]) -> None:
        tensors = [a.data_ptr() for a in args if isinstance(a, Tensor)]
        whole, real = [a for a in args if isinstance(a, int)], [a for a in args if isinstance(a, float)]
        function(
            (ctypes.c_int * 3)(*grid),
            block[0],
            (ctypes.c_void_p * len(tensors))(*tensors),
            (ctypes.c_longlong * len(whole))(*whole),
            (ctypes.c_double * len(real))(*real),
        )

    return run
