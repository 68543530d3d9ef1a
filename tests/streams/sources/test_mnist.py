"""MNIST in the layouts in which people keep it."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest

from scale_cl.errors import DataError
from scale_cl.streams.sources.mnist import FILES, Mnist

SMALL = Mnist(train=30, test=20)


def contents() -> list[bytes]:
    """The four files of a small data set."""
    draw = np.random.default_rng(0)
    made = []
    for n in (SMALL.train, SMALL.test):
        made.append(struct.pack(">4B3I", 0, 0, 8, 3, n, 28, 28) + draw.integers(0, 256, n * 784, np.uint8).tobytes())
        made.append(struct.pack(">4BI", 0, 0, 8, 1, n) + (np.arange(n, dtype=np.uint8) % 10).tobytes())
    return made


def place(folder: Path, *, packed: bool = False, dotted: bool = False) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for file, content in zip(FILES, contents(), strict=True):
        name = file.name.replace("-idx", ".idx") if dotted else file.name
        if packed:
            (folder / f"{name}.gz").write_bytes(gzip.compress(content))
        else:
            (folder / name).write_bytes(content)


@pytest.mark.parametrize("folder", ["MNIST/raw", "mnist", "."])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("dotted", [False, True])
def test_every_usual_layout_is_read(tmp_path: Path, folder: str, packed: bool, dotted: bool) -> None:
    place(tmp_path / folder, packed=packed, dotted=dotted)
    assert SMALL.present(tmp_path)
    arrays = SMALL.read(tmp_path)
    assert tuple(arrays.x_train.shape) == (30, 1, 28, 28)
    assert arrays.x_test.numpy().tobytes() == contents()[2][16:]
    assert arrays.y_test.tolist() == [i % 10 for i in range(20)]
    assert (arrays.class_names, arrays.pixel_max) == (tuple("0123456789"), 255.0)


def test_one_missing_file_is_named(tmp_path: Path) -> None:
    place(tmp_path)
    (tmp_path / "t10k-labels-idx1-ubyte").unlink()
    assert not SMALL.present(tmp_path)
    with pytest.raises(DataError, match="t10k-labels-idx1-ubyte of MNIST is missing"):
        SMALL.read(tmp_path)
    assert [found.good for found in SMALL.check(tmp_path)][-1] is False


def test_a_label_above_nine_is_refused(tmp_path: Path) -> None:
    place(tmp_path)
    path = tmp_path / "train-labels-idx1-ubyte"
    path.write_bytes(path.read_bytes()[:-1] + b"\x0a")
    with pytest.raises(DataError, match="holds label 10"):
        SMALL.read(tmp_path)


def test_files_of_another_number_of_images_are_refused(tmp_path: Path) -> None:
    place(tmp_path)
    with pytest.raises(DataError, match="holds an array of 30 x 28 x 28; it must be 60000 x 28 x 28"):
        Mnist().read(tmp_path)


def test_check_tells_altered_content_by_its_checksum(tmp_path: Path) -> None:
    place(tmp_path, packed=True)
    findings = SMALL.check(tmp_path)
    assert [found.path for found in findings] == [f"{file.name}.gz" for file in FILES]
    assert all("altered" in found.text for found in findings)  # random pixels are not the published ones
    (tmp_path / "train-images-idx3-ubyte.gz").write_bytes(b"")
    assert "cannot be read" in SMALL.check(tmp_path)[0].text or "not an idx" in SMALL.check(tmp_path)[0].text
