"""The idx format of MNIST, plain or gzipped: what a header claims is checked before memory is taken."""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from scale_cl.errors import DataError

_DEFLATE_LIMIT = 1040  # deflate cannot expand a byte to more than 1032
_CHUNK = 1 << 20


def read_idx(path: Path, shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """The array of an idx file of unsigned bytes, which must have exactly this shape."""
    try:
        size = path.stat().st_size
        if path.suffix == ".gz":
            with gzip.open(path, "rb") as packed:
                return _read(packed, path, shape, limit=size * _DEFLATE_LIMIT)
        with path.open("rb") as plain:
            return _read(plain, path, shape, limit=size)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} cannot be read ({error or type(error).__name__}): fetch it again") from error


def _read(file: BinaryIO | gzip.GzipFile, path: Path, shape: tuple[int, ...], limit: int) -> NDArray[np.uint8]:
    header_size = 4 + 4 * len(shape)
    header = file.read(header_size)
    if len(header) < header_size or header[:4] != bytes((0, 0, 8, len(shape))):
        raise DataError(f"{path} is not an idx file of unsigned bytes with {len(shape)} dimensions")
    claimed = struct.unpack(f">{len(shape)}I", header[4:])
    size = math.prod(claimed)
    if header_size + size > limit:
        raise DataError(f"{path} claims {_by(claimed)} bytes, more than the file can hold: it is truncated or altered")
    if claimed != shape:
        raise DataError(f"{path} holds an array of {_by(claimed)}; it must be {_by(shape)}")
    data = bytearray()
    while len(data) <= size and (chunk := file.read(min(_CHUNK, size + 1 - len(data)))):
        data += chunk  # memory grows with what is really there
    if len(data) != size:
        what = "ends early: it is truncated" if len(data) < size else "goes on after its end: it is altered"
        raise DataError(f"{path} {what}; {_by(shape)} bytes must follow its header")
    return np.frombuffer(data, dtype=np.uint8).reshape(shape)


def _by(shape: tuple[int, ...]) -> str:
    return " x ".join(str(n) for n in shape)
