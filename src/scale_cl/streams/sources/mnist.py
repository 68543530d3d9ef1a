"""Handwritten digits: MNIST, and the smaller set that comes with scikit-learn.

MNIST has 60,000 training and 10,000 test images, 28x28, in four idx files, plain or gzipped. Before memory is
allocated, the header of an idx file is checked against the size of the file. scikit-learn's has 1,797 images, 8x8,
pixels 0 to 16, and needs no download.
"""

from __future__ import annotations

import gzip
import hashlib
import math
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from scale_cl import files
from scale_cl.errors import DataError
from scale_cl.streams.sources.source import CheckedFile, Download, Progress, finding, missing
from scale_cl.streams.stream import Arrays

_DEFLATE_LIMIT = 1040  # deflate expands a byte to at most 1032 bytes
_CHUNK = 1 << 20
TEST_IMAGES = 500  # of scikit-learn's


def read_idx(path: Path, shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """The array of an idx file of unsigned bytes, which must have this shape."""
    try:
        size = files.check_plain(path)
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
        data += chunk  # memory grows with the actual content
    if len(data) != size:
        what = "ends early: it is truncated" if len(data) < size else "has data after its end: it is altered"
        raise DataError(f"{path} {what}; {_by(shape)} bytes must follow its header")
    return np.frombuffer(data, dtype=np.uint8).reshape(shape)


def _by(shape: tuple[int, ...]) -> str:
    return " x ".join(str(n) for n in shape)


FOLDERS = ("MNIST/raw", "mnist", "MNIST", "mnist/raw", ".")
MIRROR = "https://ossci-datasets.s3.amazonaws.com/mnist/"  # the author's own site is often unavailable


class IdxFile(NamedTuple):
    """One of the four files: its name and the MD5 of its unpacked content."""

    name: str
    content_md5: str

    @property
    def spellings(self) -> tuple[str, ...]:
        """File names under which it may be stored."""
        dotted = self.name.replace("-idx", ".idx")
        return self.name, f"{self.name}.gz", dotted, f"{dotted}.gz"


FILES = (
    IdxFile("train-images-idx3-ubyte", "6bbc9ace898e44ae57da46a324031adb"),
    IdxFile("train-labels-idx1-ubyte", "a25bea736e30d166cdddb491f175f624"),
    IdxFile("t10k-images-idx3-ubyte", "2646ac647ad5339dbf082846283269ea"),
    IdxFile("t10k-labels-idx1-ubyte", "27ae3e4e09519cfbb04c329615203637"),
)


def _download(name: str, size: int, checksum: str) -> Download:
    return Download(f"{MIRROR}{name}.gz", f"MNIST/raw/{name}.gz", size, checksum)


@dataclass(frozen=True)
class Mnist:
    """The data set, or one in the same layout with other numbers of images."""

    train: int = 60_000
    test: int = 10_000
    name: str = "mnist"
    title: str = "MNIST"
    downloads: tuple[tuple[Download, ...], ...] = (
        (
            _download("train-images-idx3-ubyte", 9_912_422, "f68b3c2dcbeaaa9fbdd348bbdeb94873"),
            _download("train-labels-idx1-ubyte", 28_881, "d53e105ee54ea40749a09fcbcd1e9432"),
            _download("t10k-images-idx3-ubyte", 1_648_877, "9fb629c4189551a2d022fa330f9573f3"),
            _download("t10k-labels-idx1-ubyte", 4_542, "ec29112dd5afa0611ce80d1b7f02629c"),
        ),
    )
    placing: str = "the four files *-idx?-ubyte, plain or .gz, in MNIST/raw, mnist or the data root itself"
    embedded: bool = False

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """Shapes of the four arrays."""
        return (self.train, 28, 28), (self.train,), (self.test, 28, 28), (self.test,)

    def present(self, root: Path) -> bool:
        """Whether all four files are there."""
        return all(self._find(root))

    def read(self, root: Path, progress: Progress | None = None) -> Arrays:
        """The whole data set."""
        found = self._find(root)
        if absent := [file.name for file, path in zip(FILES, found, strict=True) if path is None]:
            if len(absent) == len(FILES):
                raise missing(self, root)
            raise DataError(f"{absent[0]} of MNIST is missing in {root}: run `scale-cl data get {self.name}`")
        parts = [_labels_checked(read_idx(path, s), path) for path, s in zip(found, self.shapes, strict=True) if path]
        x_train, y_train, x_test, y_test = (torch.from_numpy(part) for part in parts)
        names = tuple("0123456789")
        return Arrays(x_train.unsqueeze(1), y_train.long(), x_test.unsqueeze(1), y_test.long(), names, pixel_max=255.0)

    def check(self, root: Path, progress: Progress | None = None) -> list[CheckedFile]:
        """One finding per file: its shape and the checksum of its content."""
        findings = []
        for file, path, shape in zip(FILES, self._find(root), self.shapes, strict=True):
            if path is None:
                findings.append(CheckedFile(file.name, False, f"missing: run `scale-cl data get {self.name}`"))
                continue
            problem = None
            try:
                data = read_idx(path, shape)
                header = struct.pack(f">4B{len(shape)}I", 0, 0, 8, len(shape), *shape)
                checksum = hashlib.md5(header + data.tobytes(), usedforsecurity=False)
                if checksum.hexdigest() != file.content_md5:
                    problem = "altered: the checksum of its content is not that of the published file"
            except DataError as error:
                problem = str(error)
            findings.append(finding(root, path, problem, f"{shape[0]} items, checksum as published"))
        return findings

    def _find(self, root: Path) -> list[Path | None]:
        """The paths of the four files in the folder that holds most of them; None for a missing file."""
        found: list[list[Path | None]] = []
        for folder in FOLDERS:
            there = [[root / folder / s for s in file.spellings] for file in FILES]
            found.append([next((path for path in paths if path.is_file()), None) for paths in there])
        return max(found, key=lambda paths: sum(path is not None for path in paths))


def _labels_checked(data: NDArray[np.uint8], path: Path) -> NDArray[np.uint8]:
    if data.ndim == 1 and data.max(initial=0) > 9:
        raise DataError(f"{path} holds label {data.max()}; labels of MNIST are 0 to 9, so the file is altered")
    return data


@dataclass(frozen=True)
class Digits:
    """The data set that comes with scikit-learn."""

    name: str = "digits"
    title: str = "scikit-learn digits"
    downloads: tuple[tuple[Download, ...], ...] = ()
    placing: str = "digits comes with scikit-learn: there is nothing to download or to place"
    embedded: bool = True

    def present(self, root: Path) -> bool:
        """Always."""
        return True

    def read(self, root: Path, progress: Progress | None = None) -> Arrays:
        """All images; the same 500 are test images for every seed."""
        from sklearn.datasets import load_digits

        bunch = load_digits()
        x = torch.from_numpy(bunch.images.astype(np.uint8)).unsqueeze(1)
        y = torch.from_numpy(bunch.target.astype(np.int64))
        order = torch.from_numpy(np.random.RandomState(0).permutation(len(x)).astype(np.int64))
        test, train = order[:TEST_IMAGES], order[TEST_IMAGES:]
        return Arrays(x[train], y[train], x[test], y[test], tuple("0123456789"), pixel_max=16.0)

    def check(self, root: Path, progress: Progress | None = None) -> list[CheckedFile]:
        """One finding: the data is part of scikit-learn."""
        arrays = self.read(root)
        return [CheckedFile("digits", True, f"{len(arrays.x_train) + len(arrays.x_test)} images, part of scikit-learn")]
