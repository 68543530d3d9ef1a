"""Reads plain data from a pickle without unpickling: an interpreter of its own for a whitelist of opcodes.

Containers, text, bytes, numbers and numpy arrays of numbers are read; any other name, call or class is refused and
nothing is imported. Memory is bounded by the size of the file: arrays are views of its bytes, text is counted,
dictionary keys are plain, and a container cannot be referenced twice (no memo bombs).
"""

from __future__ import annotations

import enum
import math
import mmap
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from scale_cl import files
from scale_cl.errors import DataError

_TYPES = frozenset({"b1", "u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", "f4", "f8"})


class _Constructor(enum.Enum):
    """The meaning of a whitelisted name."""

    ARRAY_TYPE = enum.auto()
    EMPTY_ARRAY = enum.auto()
    ARRAY_OF_BUFFER = enum.auto()
    DTYPE = enum.auto()
    SCALAR = enum.auto()
    ENCODE = enum.auto()
    BYTES = enum.auto()


_CONSTRUCTORS = {
    ("numpy", "ndarray"): _Constructor.ARRAY_TYPE,
    ("numpy", "dtype"): _Constructor.DTYPE,
    ("numpy.core.multiarray", "_reconstruct"): _Constructor.EMPTY_ARRAY,
    ("numpy._core.multiarray", "_reconstruct"): _Constructor.EMPTY_ARRAY,
    ("numpy.core.multiarray", "scalar"): _Constructor.SCALAR,
    ("numpy._core.multiarray", "scalar"): _Constructor.SCALAR,
    ("numpy.core.numeric", "_frombuffer"): _Constructor.ARRAY_OF_BUFFER,
    ("numpy._core.numeric", "_frombuffer"): _Constructor.ARRAY_OF_BUFFER,
    ("_codecs", "encode"): _Constructor.ENCODE,  # bytes in old protocols
    ("__builtin__", "bytes"): _Constructor.BYTES,  # empty bytes in old protocols
}


class _Pending:
    """An array or dtype whose state follows later in the pickle."""

    def __init__(self, code: str | None) -> None:
        self.code = code  # None: an array
        self.memo_numbers: list[int] = []


def _construct(callee: _Constructor, arguments: tuple[Any, ...]) -> Any:
    """The result of a whitelisted call."""
    if callee is _Constructor.EMPTY_ARRAY and arguments[0] is _Constructor.ARRAY_TYPE:
        return _Pending(None)
    if callee is _Constructor.DTYPE:
        return _Pending(_type_code(arguments[0]))
    if callee is _Constructor.ARRAY_OF_BUFFER:
        raw, dtype, shape, order = arguments
        return _array(raw, dtype, shape, fortran=_text(order) == "F")
    if callee is _Constructor.SCALAR:
        dtype, raw = arguments
        return _array(raw, dtype, (), fortran=False).item()
    if callee is _Constructor.ENCODE and len(arguments) == 2 and arguments[1] in ("latin1", b"latin1"):
        return _text(arguments[0]).encode("latin1")
    if callee is _Constructor.BYTES and not arguments:
        return b""
    raise DataError("it calls something")


def _build(target: _Pending, state: Any) -> Any:
    """The array or dtype with this state."""
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


_MOST_OPCODES = 1_000_000  # each can create an object of about 64 bytes
_MARK = object()
_SMALL = 1 << 16  # longer byte strings are views of the file


def read_pickle(path: Path) -> Any:
    """The value in a pickle file; DataError if it is damaged or holds more than plain data."""
    try:
        if files.check_plain(path) == 0:
            raise DataError(f"{path} is empty")
        with path.open("rb") as file:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror or error})") from error
    try:
        return loads(memoryview(data))
    except DataError as error:
        raise DataError(f"{path} is not a pickle of plain data: {error}") from None


def loads(data: bytes | memoryview) -> Any:
    """The value pickled in `data`."""
    try:
        return _Reader(memoryview(data)).run()
    except (ValueError, TypeError, IndexError, KeyError, OverflowError, MemoryError, RecursionError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"damaged ({type(error).__name__})") from None


class _Reader:
    """The stack machine of pickle, without the opcodes that run code."""

    def __init__(self, data: memoryview) -> None:
        self.data = data
        self.position = 0
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}
        self.budget = 4 * len(data) + 4096  # bytes of text to create at most: shared text can be copied

    def run(self) -> Any:
        for _ in range(_MOST_OPCODES):
            opcode = self.take(1)[0]
            if opcode == ord("."):
                return self.finish()
            if opcode not in _OPCODES:
                raise DataError(f"opcode {opcode:#04x} at byte {self.position - 1} is not one of plain data")
            _OPCODES[opcode](self)
        raise DataError(f"it has more than {_MOST_OPCODES} opcodes")

    def finish(self) -> Any:
        value = self.pop()
        if self.stack or self.position != len(self.data):
            raise DataError("data is left over at its end")
        return value

    def take(self, n: int) -> memoryview:
        """The next `n` bytes of the file."""
        if not 0 <= n <= len(self.data) - self.position:
            raise DataError(f"it ends early: {n} bytes were to follow byte {self.position}")
        self.position += n
        return self.data[self.position - n : self.position]

    def number(self, size: int) -> int:
        """An unsigned little-endian number of `size` bytes."""
        return int.from_bytes(self.take(size), "little")

    def line(self) -> str:
        """The rest of the line, for a text opcode."""
        window = bytes(self.data[self.position : self.position + 4096])
        if (end := window.find(b"\n")) < 0:
            raise DataError(f"the text at byte {self.position} has no end")
        return bytes(self.take(end + 1)[:-1]).decode("ascii")

    def spend(self, amount: int) -> None:
        self.budget -= amount
        if self.budget < 0:
            raise DataError("it would take far more memory than the file has bytes")

    def push_text(self, size: int) -> None:
        self.spend(size)
        self.stack.append(str(self.take(size), "utf-8", "surrogatepass"))

    def push_bytes(self, size: int) -> None:
        view = self.take(size)
        if size <= _SMALL:
            self.spend(size)
        self.stack.append(bytes(view) if size <= _SMALL else view)

    def push_long(self, size: int) -> None:
        if size > 16:
            raise DataError(f"an integer of {size} bytes is not plain data")
        self.stack.append(int.from_bytes(self.take(size), "little", signed=True))

    def push_decimal(self) -> None:
        text = self.line().removesuffix("L")
        if len(text) > 40:
            raise DataError(f"an integer of {len(text)} digits is not plain data")
        self.stack.append(text == "01" if text in ("00", "01") else int(text))

    def since_mark(self) -> list[Any]:
        """Pop everything down to the last mark."""
        for start in range(len(self.stack) - 1, -1, -1):
            if self.stack[start] is _MARK:
                items = self.stack[start + 1 :]
                del self.stack[start:]
                return items
        raise DataError("a mark is missing")

    def pop(self) -> Any:
        value = self.stack.pop()
        if value is _MARK:
            raise DataError("a value is missing")
        return value

    def push_tuple(self, size: int) -> None:
        items = [self.pop() for _ in range(size)]
        self.stack.append(tuple(reversed(items)))

    def put(self, index: int) -> None:
        if index > len(self.data):
            raise DataError(f"memo number {index} is higher than the file has bytes")
        value = self.pop()
        self.stack.append(value)
        self.memo[index] = value
        if isinstance(value, _Pending):
            value.memo_numbers.append(index)

    def get(self, index: int) -> None:
        value = self.memo[index]
        inside = value if isinstance(value, tuple) else ()
        if isinstance(value, list | dict) or any(isinstance(v, list | dict | tuple) for v in inside):
            raise DataError("a container is referred to twice, which plain data has no need of")
        self.stack.append(value)

    def append(self, items: list[Any]) -> None:
        if not isinstance(self.stack[-1], list):
            raise DataError("something is appended to what is not a list")
        self.stack[-1].extend(items)

    def set_items(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if not isinstance(target, dict) or len(items) % 2:
            raise DataError("items are set in what is not a dictionary")
        for key, value in zip(items[::2], items[1::2], strict=True):
            if not isinstance(key, str | bytes | int):  # hashing nested tuples can be exponential
                raise DataError(f"a dictionary key is a {type(key).__name__}; it must be text, bytes or an integer")
            target[key] = value

    def push_name(self, module: str, name: str) -> None:
        if (module, name) not in _CONSTRUCTORS:
            raise DataError(f"it names {f'{module}.{name}'[:80]!a}, which is not plain data")
        self.stack.append(_CONSTRUCTORS[module, name])

    def push_stack_name(self) -> None:
        name, module = self.pop(), self.pop()
        if not isinstance(name, str) or not isinstance(module, str):  # formatting nested tuples can be exponential
            raise DataError("a name is not text")
        self.push_name(module, name)

    def reduce(self) -> None:
        arguments, callee = self.pop(), self.pop()
        if not isinstance(callee, _Constructor) or not isinstance(arguments, tuple):
            raise DataError("it calls something")
        value = _construct(callee, arguments)
        self.spend(len(value) if isinstance(value, bytes) else 0)
        self.stack.append(value)

    def build(self) -> None:
        state, target = self.pop(), self.pop()
        if not isinstance(target, _Pending):
            raise DataError("it sets the state of an object")
        value = _build(target, state)
        for index in target.memo_numbers:
            self.memo[index] = value
        self.stack.append(value)


def _push(make: Callable[[_Reader], Any]) -> Callable[[_Reader], None]:
    return lambda r: r.stack.append(make(r))


def _frame(r: _Reader) -> None:
    if r.number(8) > len(r.data) - r.position:
        raise DataError("a frame is longer than the rest of the file")


def _protocol(r: _Reader) -> None:
    if (version := r.number(1)) > 5:
        raise DataError(f"protocol {version} is not known; 1 to 5 are")


_OPCODES: dict[int, Callable[[_Reader], None]] = {
    ord(code): act
    for code, act in {
        "\x80": _protocol,
        "\x95": _frame,
        "(": _push(lambda r: _MARK),
        "N": _push(lambda r: None),
        "\x88": _push(lambda r: True),
        "\x89": _push(lambda r: False),
        "K": _push(lambda r: r.number(1)),
        "M": _push(lambda r: r.number(2)),
        "J": _push(lambda r: int.from_bytes(r.take(4), "little", signed=True)),
        "\x8a": lambda r: r.push_long(r.number(1)),
        "I": _Reader.push_decimal,
        "L": _Reader.push_decimal,
        "G": _push(lambda r: struct.unpack(">d", r.take(8))[0]),
        "\x8c": lambda r: r.push_text(r.number(1)),
        "X": lambda r: r.push_text(r.number(4)),
        "\x8d": lambda r: r.push_text(r.number(8)),
        "U": lambda r: r.push_bytes(r.number(1)),  # Python 2's str, read as bytes: CIFAR has these
        "T": lambda r: r.push_bytes(r.number(4)),
        "C": lambda r: r.push_bytes(r.number(1)),
        "B": lambda r: r.push_bytes(r.number(4)),
        "\x8e": lambda r: r.push_bytes(r.number(8)),
        "\x96": lambda r: r.push_bytes(r.number(8)),
        "]": _push(lambda r: []),
        "}": _push(lambda r: {}),
        ")": _push(lambda r: ()),
        "t": _push(lambda r: tuple(r.since_mark())),
        "\x85": lambda r: r.push_tuple(1),
        "\x86": lambda r: r.push_tuple(2),
        "\x87": lambda r: r.push_tuple(3),
        "a": lambda r: r.append([r.pop()]),
        "e": lambda r: r.append(r.since_mark()),
        "s": lambda r: r.set_items([r.pop(), r.pop()][::-1]),
        "u": lambda r: r.set_items(r.since_mark()),
        "q": lambda r: r.put(r.number(1)),
        "r": lambda r: r.put(r.number(4)),
        "\x94": lambda r: r.put(len(r.memo)),
        "h": lambda r: r.get(r.number(1)),
        "j": lambda r: r.get(r.number(4)),
        "c": lambda r: r.push_name(r.line(), r.line()),
        "\x93": _Reader.push_stack_name,
        "R": _Reader.reduce,
        "b": _Reader.build,
    }.items()
}
