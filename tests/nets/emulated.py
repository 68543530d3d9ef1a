"""CUDA sources compiled for the CPU, where the threads of a block take turns, to be called as torch calls kernels."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from scale_cl.nets.kernels import Program, source

Kernels = dict[str, Callable[..., None]]


def emulated(programs: tuple[Program, ...], folder: Path) -> Kernels:
    """The kernels of some programs, compiled in `folder`; skips the test where there is no compiler."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("needs a C++ compiler")
    header = (Path(__file__).parent / "emulated.h").read_text()
    (folder / "kernels.cpp").write_text(header + "".join(_in_a_namespace(i, p) for i, p in enumerate(programs)))
    command = [compiler, "-O1", "-std=c++20", "-shared", "-fPIC", "-w", "-ffp-contract=off"]
    subprocess.run([*command, "kernels.cpp", "-o", "kernels.so"], cwd=folder, check=True)
    library = ctypes.CDLL(str(folder / "kernels.so"))
    return {name: _callable(getattr(library, f"run_{name}")) for program in programs for name in program.names}


def _in_a_namespace(number: int, program: Program) -> str:
    """So that programs may share lines: one file of all of them compiles faster than one for each."""
    text = program.text.removeprefix(source("primitives.cu"))  # the header has these
    wrappers = "\n".join(f"RUN({name})" for name in program.names)
    text = text.replace('extern "C" ', "")  # which would know of no namespaces
    return f"namespace program_{number} {{\n{text}\n{wrappers}\n}}\n"


def _callable(function: Any) -> Callable[..., None]:
    function.restype = ctypes.c_bool

    def run(*, grid: tuple[int, int, int], block: tuple[int, int, int], args: list[Any], shared_mem: int = 0) -> None:
        tensors = [a.data_ptr() for a in args if isinstance(a, Tensor)]
        whole, real = [a for a in args if isinstance(a, int)], [a for a in args if isinstance(a, float)]
        kept = function(
            (ctypes.c_int * 3)(*grid),
            block[0],
            shared_mem,
            (ctypes.c_void_p * len(tensors))(*tensors),
            (ctypes.c_longlong * len(whole))(*whole),
            (ctypes.c_double * len(real))(*real),
        )
        assert kept, "wrote past its shared memory, or waits for a thread that has ended"

    return run
