"""CIFAR-10 and CIFAR-100, binary and python version."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scale_cl.errors import DataError
from scale_cl.streams.sources.cifar import CIFAR10, CIFAR100, Cifar, image_checksum

SMALL10 = replace(CIFAR10, train_per_class=10, test_per_class=3)
SMALL100 = replace(CIFAR100, train_per_class=2, test_per_class=1)
BOTH = pytest.mark.parametrize("source", [SMALL10, SMALL100], ids=["cifar10", "cifar100"])
BINARY, PYTHON = 0, 1


def batches(source: Cifar) -> dict[int, tuple[Any, Any]]:
    """Images and labels by number of the batch; the last is the test batch."""
    draw, made = np.random.default_rng(1), {}
    classes, parts = len(source.class_names), len(source.versions[0].train)
    for i in range(parts + 1):
        n = classes * (source.test_per_class if i == parts else source.train_per_class // parts)
        y = draw.permutation(np.arange(n) % classes).astype(np.uint8)
        made[i] = draw.integers(0, 256, (n, 3072), dtype=np.uint8), y
    return made


def place(root: Path, source: Cifar, version: int, protocol: int = 2, keys: type = bytes) -> Path:
    form = source.versions[version]
    folder = root / form.folders[0]
    folder.mkdir(parents=True)
    for file, (x, y) in zip(form.files, batches(source).values(), strict=True):
        if not form.pickled:
            coarse = np.full((len(x), source.label_bytes - 1), 77, np.uint8)
            np.hstack([coarse, y.reshape(-1, 1), x]).tofile(folder / file)
        else:
            content: dict[Any, Any] = {
                "data": x,
                source.label_key: y.tolist(),
                "filenames": [f"{i}.png" for i in y],
                "batch_label": "",
            }
            if keys is bytes:
                content = {key.encode(): value for key, value in content.items()}
            (folder / file).write_bytes(pickle.dumps(content, protocol=protocol))
    return folder


@BOTH
@pytest.mark.parametrize("version", [BINARY, PYTHON])
def test_both_versions_hold_the_same_images(tmp_path: Path, source: Cifar, version: int) -> None:
    place(tmp_path, source, version)
    assert source.present(tmp_path)
    arrays = source.read(tmp_path)
    *train, test = batches(source).values()
    assert np.array_equal(arrays.x_train.numpy().reshape(-1, 3072), np.concatenate([x for x, _ in train]))
    assert np.array_equal(arrays.y_train.numpy(), np.concatenate([y for _, y in train]))
    assert np.array_equal(arrays.x_test.numpy().reshape(-1, 3072), test[0])
    assert np.array_equal(arrays.y_test.numpy(), test[1])
    assert tuple(arrays.x_train.shape[1:]) == (3, 32, 32)
    assert arrays.class_names == source.class_names


@pytest.mark.parametrize("protocol", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("keys", [bytes, str])
def test_pickles_of_every_protocol_are_read(tmp_path: Path, protocol: int, keys: type) -> None:
    place(tmp_path, SMALL10, PYTHON, protocol, keys)
    assert len(SMALL10.read(tmp_path).x_train) == 100


def test_a_folder_of_the_data_set_s_name_or_the_root_itself_will_do(tmp_path: Path) -> None:
    folder = place(tmp_path / "one", SMALL100, BINARY)
    assert len(SMALL100.read(folder).x_train) == 200
    (tmp_path / "two").mkdir()
    folder.rename(tmp_path / "two" / "cifar100")
    assert len(SMALL100.read(tmp_path / "two").x_train) == 200


@BOTH
def test_a_truncated_or_longer_binary_file_is_refused(tmp_path: Path, source: Cifar) -> None:
    folder = place(tmp_path, source, BINARY)
    path = folder / source.versions[BINARY].train[0]
    whole = path.read_bytes()
    for data in (whole[:-1], whole[: len(whole) // 2], b"", whole + b"x"):
        path.write_bytes(data)
        with pytest.raises(DataError, match=f"{path.name} has {len(data)} bytes; it must have {len(whole)}"):
            source.read(tmp_path)
    assert not source.check(tmp_path)[0].good


@BOTH
def test_labels_outside_the_classes_or_of_wrong_number_are_refused(tmp_path: Path, source: Cifar) -> None:
    folder = place(tmp_path, source, BINARY)
    path = folder / source.versions[BINARY].train[0]
    whole = bytearray(path.read_bytes())
    label = source.label_bytes - 1
    for value, message in ((255, "holds label 255"), ((whole[label] + 1) % 10, "so the files are altered")):
        whole[label] = value
        path.write_bytes(whole)
        with pytest.raises(DataError, match=message):
            source.read(tmp_path)


@BOTH
def test_a_missing_file_is_named(tmp_path: Path, source: Cifar) -> None:
    folder = place(tmp_path, source, BINARY)
    (folder / source.versions[BINARY].test).unlink()
    assert not source.present(tmp_path)
    with pytest.raises(DataError, match=f"{source.versions[BINARY].test} is missing in {folder}"):
        source.read(tmp_path)
    assert [found.good for found in source.check(tmp_path)] == [False]


@pytest.mark.parametrize(
    "content",
    [
        {},
        [1, 2],
        {"data": [1, 2], "labels": [0] * 20},
        {"data": np.zeros((20, 3072), np.float32), "labels": [0] * 20},
        {"data": np.zeros((19, 3072), np.uint8), "labels": [0] * 19},
        {"data": np.zeros((20, 3072), np.uint8), "labels": [0] * 19},
        {"data": np.zeros((20, 3072), np.uint8), "labels": [0.0] * 20},
        {"data": np.zeros((20, 3072), np.uint8), "labels": [-1] * 20},
        {"data": np.zeros((20, 3072), np.uint8)},
    ],
)
def test_pickles_of_something_else_are_refused(tmp_path: Path, content: Any) -> None:
    folder = place(tmp_path, SMALL10, PYTHON)
    (folder / "data_batch_3").write_bytes(pickle.dumps(content))
    with pytest.raises(DataError, match="data_batch_3 must hold"):
        SMALL10.read(tmp_path)


@BOTH
def test_check_knows_the_images_in_any_order_and_tells_altered_ones(tmp_path: Path, source: Cifar) -> None:
    folder = place(tmp_path, source, BINARY)
    *train, test = batches(source).values()
    known = replace(source, image_checksums=(image_checksum(train), image_checksum([test])))
    path = folder / source.versions[BINARY].test
    records = path.read_bytes()
    size = source.label_bytes + 3072
    path.write_bytes(records[size:] + records[:size])
    assert {(found.good, found.text.split(", ", 1)[1]) for found in known.check(tmp_path)} == {
        (True, "images as published, in an order of their own")
    }
    path.write_bytes(records[:-1] + bytes([records[-1] ^ 1]))
    assert "altered" in known.check(tmp_path)[-1].text
