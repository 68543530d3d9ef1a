"""The idx format."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest

from scale_cl.errors import DataError
from scale_cl.streams.sources.mnist import read_idx


def idx(array: np.ndarray[tuple[int, ...], np.dtype[np.uint8]]) -> bytes:
    return struct.pack(f">4B{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()


IMAGES = np.random.default_rng(0).integers(0, 256, (7, 3, 2), dtype=np.uint8)


@pytest.mark.parametrize("packed", [False, True])
def test_arrays_are_read_plain_and_packed(tmp_path: Path, packed: bool) -> None:
    path = tmp_path / ("a.gz" if packed else "a")
    path.write_bytes(gzip.compress(idx(IMAGES)) if packed else idx(IMAGES))
    read = read_idx(path, IMAGES.shape)
    assert np.array_equal(read, IMAGES)
    assert read.flags.writeable  # so that torch takes it as it is


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is not an idx file"),
        (idx(IMAGES)[:10], "is not an idx file"),
        (b"\x00\x00\x09\x03" + idx(IMAGES)[4:], "is not an idx file"),
        (idx(IMAGES)[:-1], "(claims 7 x 3 x 2 bytes, more than the file can hold|ends early)"),
        (idx(IMAGES) + b"x", "has data after its end"),
        (idx(IMAGES.reshape(7, 2, 3)), "holds an array of 7 x 2 x 3; it must be 7 x 3 x 2"),
        (struct.pack(">4B3I", 0, 0, 8, 3, 10**9, 10**3, 1), "claims 1000000000 x 1000 x 1 bytes"),
    ],
)
def test_damaged_files_are_refused(tmp_path: Path, packed: bool, data: bytes, message: str) -> None:
    path = tmp_path / ("a.gz" if packed else "a")
    path.write_bytes(gzip.compress(data) if packed else data)
    with pytest.raises(DataError, match=message):
        read_idx(path, IMAGES.shape)


def test_a_cut_or_altered_gzip_file_is_refused(tmp_path: Path) -> None:
    whole = gzip.compress(idx(IMAGES))
    altered = bytearray(whole)
    altered[-6] ^= 1  # the checksum of the content
    for data in (whole[:-12], bytes(altered), b"plain text", whole[:30] + b"\xff\xff" + whole[32:]):
        (tmp_path / "a.gz").write_bytes(data)
        with pytest.raises(DataError, match=r"a\.gz"):
            read_idx(tmp_path / "a.gz", IMAGES.shape)


def test_a_missing_file_is_a_data_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot be read"):
        read_idx(tmp_path / "none", (1,))
