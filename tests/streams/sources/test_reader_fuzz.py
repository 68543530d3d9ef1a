"""Whatever bytes the files hold, readers give arrays or an error of this package."""

from __future__ import annotations

import contextlib
import gzip
import pickle
import struct
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scale_cl.errors import ScaleClError
from scale_cl.streams.sources.cifar import CIFAR10, CIFAR100
from scale_cl.streams.sources.mini_imagenet import MiniImageNet
from scale_cl.streams.sources.mnist import FILES, Mnist, read_idx
from scale_cl.streams.sources.source import Source

SMALL10 = replace(CIFAR10, class_names=("a", "b"), train_per_class=5, test_per_class=1)
SMALL100 = replace(CIFAR100, class_names=("a", "b"), train_per_class=1, test_per_class=1)
MINI = MiniImageNet(classes=3, train_per_class=1, test_per_class=1)

quick = settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])


def cifar_batch(n: int) -> bytes:
    content = {"data": np.zeros((n, 3072), np.uint8), "labels": [0, 1] * n, "fine_labels": [0, 1] * n}
    return pickle.dumps(content, protocol=2)


def idx_file(*shape: int) -> bytes:
    return struct.pack(f">4B{len(shape)}I", 0, 0, 8, len(shape), *shape) + bytes(int(np.prod(shape)))


def png() -> bytes:
    from io import BytesIO

    from PIL import Image

    out = BytesIO()
    Image.new("RGB", (84, 84), (1, 2, 3)).save(out, "png")
    return out.getvalue()


CASES: dict[str, tuple[Source, list[str], bytes]] = {
    "mnist": (Mnist(2, 1), [f"mnist/{file.name}" for file in FILES], idx_file(2, 28, 28)),
    "mnist packed": (Mnist(2, 1), [f"mnist/{file.name}.gz" for file in FILES], gzip.compress(idx_file(2, 28, 28))),
    "cifar10 binary": (SMALL10, [f"cifar10/{f}" for f in CIFAR10.versions[0].files], bytes(2 * 3073)),
    "cifar10 python": (SMALL10, [f"cifar10/{f}" for f in CIFAR10.versions[1].files], cifar_batch(2)),
    "cifar100 python": (SMALL100, ["cifar100/train", "cifar100/test"], cifar_batch(2)),
    "mini-imagenet folders": (MINI, [f"mini-imagenet/n{c}/{i}.png" for c in range(3) for i in range(2)], png()),
    "mini-imagenet csv": (
        MINI,
        [f"mini-imagenet/{part}.csv" for part in ("train", "val", "test")],
        b"filename,label\na.png,n01\n",
    ),
    "mini-imagenet caches": (
        MINI,
        [f"mini-imagenet/mini-imagenet-cache-{part}.pkl" for part in ("train", "val", "test")],
        pickle.dumps({"image_data": np.zeros((2, 84, 84, 3), np.uint8), "class_dict": {"n01": [0, 1]}}, protocol=4),
    ),
}


def survives(source: Source, files: list[str], content: Callable[[int], bytes]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for i, file in enumerate(files):
            (Path(folder) / file).parent.mkdir(parents=True, exist_ok=True)
            (Path(folder) / file).write_bytes(content(i))
        with contextlib.suppress(ScaleClError):
            source.read(Path(folder))
        source.present(Path(folder))
        assert all("\n" not in found.path for found in source.check(Path(folder)))


@pytest.mark.parametrize("case", list(CASES))
@given(data=st.binary(max_size=300))
@quick
def test_arbitrary_bytes_are_survived(case: str, data: bytes) -> None:
    source, files, _ = CASES[case]
    survives(source, files, lambda i: data)


@pytest.mark.parametrize("case", list(CASES))
@given(
    changes=st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), max_size=4),
    cut=st.none() | st.integers(0, 10**6),
    which=st.integers(0, 5),
)
@quick
def test_altered_and_cut_files_are_survived(
    case: str, changes: list[tuple[int, int]], cut: int | None, which: int
) -> None:
    source, files, good = CASES[case]
    bad = bytearray(good)
    for position, value in changes:
        bad[min(position, 10**6) % (len(bad) if position % 2 else min(len(bad), 200))] = value
    if cut is not None:
        del bad[cut % len(bad) :]
    survives(source, files, lambda i: bytes(bad) if i == which % len(files) else good)


@given(st.lists(st.integers(0, 2**32 - 1), min_size=3, max_size=3), st.binary(max_size=100), st.booleans())
@quick
def test_no_header_makes_the_reader_take_memory_that_the_file_does_not_fill(
    shape: list[int], data: bytes, packed: bool
) -> None:
    content = struct.pack(">4B3I", 0, 0, 8, 3, *shape) + data
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / ("a.gz" if packed else "a")
        path.write_bytes(gzip.compress(content) if packed else content)
        with contextlib.suppress(ScaleClError):
            assert read_idx(path, tuple(shape)).nbytes == len(data)
