"""The few names that numpy arrays of numbers need in a pickle, and what they build: views of the pickle's own bytes."""

from __future__ import annotations

import enum
import math
from typing import Any

import numpy as np

from scale_cl.errors import DataError

_TYPES = frozenset({"b1", "u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", "f4", "f8"})


class Constructor(enum.Enum):
    """What a whitelisted name stands for."""

    ARRAY_TYPE = enum.auto()
    EMPTY_ARRAY = enum.auto()
    ARRAY_OF_BUFFER = enum.auto()
    DTYPE = enum.auto()
    SCALAR = enum.auto()
    ENCODE = enum.auto()
    BYTES = enum.auto()


CONSTRUCTORS = {
    ("numpy", "ndarray"): Constructor.ARRAY_TYPE,
    ("numpy", "dtype"): Constructor.DTYPE,
    ("numpy.core.multiarray", "_reconstruct"): Constructor.EMPTY_ARRAY,
    ("numpy._core.multiarray", "_reconstruct"): Constructor.EMPTY_ARRAY,
    ("numpy.core.multiarray", "scalar"): Constructor.SCALAR,
    ("numpy._core.multiarray", "scalar"): Constructor.SCALAR,
    ("numpy.core.numeric", "_frombuffer"): Constructor.ARRAY_OF_BUFFER,
    ("numpy._core.numeric", "_frombuffer"): Constructor.ARRAY_OF_BUFFER,
    ("_codecs", "encode"): Constructor.ENCODE,  # how old protocols write bytes
    ("__builtin__", "bytes"): Constructor.BYTES,  # and empty ones
}


class Pending:
    """An array or a type of numbers whose state is still to come."""

    def __init__(self, code: str | None) -> None:
        self.code = code  # None: an array
        self.memo_numbers: list[int] = []


def construct(callee: Constructor, arguments: tuple[Any, ...]) -> Any:
    """What a whitelisted call gives."""
    if callee is Constructor.EMPTY_ARRAY and arguments[0] is Constructor.ARRAY_TYPE:
        return Pending(None)
    if callee is Constructor.DTYPE:
        return Pending(_type_code(arguments[0]))
    if callee is Constructor.ARRAY_OF_BUFFER:
        raw, dtype, shape, order = arguments
        return _array(raw, dtype, shape, fortran=_text(order) == "F")
    if callee is Constructor.SCALAR:
        dtype, raw = arguments
        return _array(raw, dtype, (), fortran=False).item()
    if callee is Constructor.ENCODE and len(arguments) == 2 and arguments[1] in ("latin1", b"latin1"):
        return _text(arguments[0]).encode("latin1")
    if callee is Constructor.BYTES and not arguments:
        return b""
    raise DataError("it calls something")


def build(target: Pending, state: Any) -> Any:
    """The array, or type of numbers, that `state` completes."""
    if not isinstance(state, tuple):
        raise DataError("the state of an array is not a tuple")
    if target.code is None:
        _, shape, dtype, fortran, raw = state
        return _array(raw, dtype, shape, fortran=bool(fortran))
    if any(part is not None for part in state[2:5]):  # subtype, names, fields
        raise DataError("an array has a type with parts; only plain numbers are read")
    order = _text(state[1])
    if order not in ("|", "<", ">", "="):
        raise DataError("an array has a type of unknown byte order")
    return np.dtype(order.replace("|", "=") + target.code)


def _array(raw: Any, dtype: Any, shape: Any, *, fortran: bool) -> np.ndarray[Any, np.dtype[Any]]:
    if not isinstance(dtype, np.dtype) or not isinstance(raw, bytes | memoryview):
        raise DataError("an array is not made of bytes and a type of numbers")
    if not isinstance(shape, tuple) or len(shape) > 8 or any(type(n) is not int or n < 0 for n in shape):
        raise DataError("the shape of an array is not a short tuple of sizes")
    if math.prod(shape) * dtype.itemsize != len(raw):
        raise DataError(f"an array claims shape {shape} of {dtype}, which is not what its {len(raw)} bytes hold")
    return np.frombuffer(raw, dtype=dtype).reshape(shape, order="F" if fortran else "C")


def _type_code(value: Any) -> str:
    code = _text(value)
    if code not in _TYPES:
        raise DataError(f"an array has type {code[:20]!r}; only plain numbers are read")
    return code


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        return value.decode("ascii")
    if not isinstance(value, str):
        raise DataError("text was expected")
    return value
