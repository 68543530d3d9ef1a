"""mini-ImageNet in its three layouts."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from scale_cl.errors import DataError
from scale_cl.streams.sources.mini_imagenet import MiniImageNet

SMALL = MiniImageNet(classes=4, train_per_class=3, test_per_class=2)
CLASSES = {"n02": "train", "n04": "train", "n01": "val", "n03": "test"}


def picture(label: str, i: int) -> np.ndarray[tuple[int, int, int], np.dtype[np.uint8]]:
    """A flat picture by whose colour class and number are known."""
    return np.full((84, 84, 3), 10 * int(label[1:]) + i, np.uint8)


def class_folders(folder: Path, *, parts: bool = False) -> None:
    for label, part in CLASSES.items():
        home = folder / part / label if parts else folder / label
        home.mkdir(parents=True)
        for i in range(5):
            Image.fromarray(picture(label, i)).save(home / f"{label}_{i}.png")


def csv_files(folder: Path) -> None:
    (folder / "images").mkdir(parents=True)
    for part in ("train", "val", "test"):
        rows = ["filename,label"]
        for label in (label for label, of in CLASSES.items() if of == part):
            for i in (3, 1, 4, 0, 2):  # the order of rows is not that of names
                Image.fromarray(picture(label, i)).save(folder / "images" / f"{label}{i:08}.png")
                rows.append(f"{label}{i:08}.png,{label}")
        (folder / f"{part}.csv").write_text("\n".join(rows) + "\n")


def cache_pickles(folder: Path, *, protocol: int = 4, validation: bool = False) -> None:
    folder.mkdir(parents=True)
    for part in ("train", "val", "test"):
        labels = [label for label, of in CLASSES.items() if of == part]
        images = np.stack([picture(label, i) for label in labels for i in range(5)])
        rows = {label: list(range(5 * k, 5 * k + 5)) for k, label in enumerate(labels)}
        name = "validation" if validation and part == "val" else part
        data = pickle.dumps({"image_data": images, "class_dict": rows}, protocol=protocol)
        (folder / f"mini-imagenet-cache-{name}.pkl").write_bytes(data)


def check_content(root: Path) -> None:
    arrays = SMALL.read(root)
    assert arrays.class_names == ("n01", "n02", "n03", "n04")
    assert tuple(arrays.x_train.shape) == (12, 3, 84, 84)
    assert arrays.x_train[:, 0, 0, 0].tolist() == [10, 11, 12, 20, 21, 22, 30, 31, 32, 40, 41, 42]
    assert arrays.x_test[:, 2, 83, 83].tolist() == [13, 14, 23, 24, 33, 34, 43, 44]
    assert arrays.y_train.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]
    assert arrays.y_test.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    findings = SMALL.check(root)
    assert [(found.path, found.good) for found in findings] == [(name, True) for name in arrays.class_names]


@pytest.mark.parametrize("name", ["mini-imagenet", "miniimagenet", "."])
@pytest.mark.parametrize("parts", [False, True])
def test_class_folders_are_read(tmp_path: Path, name: str, parts: bool) -> None:
    class_folders(tmp_path / name, parts=parts)
    check_content(tmp_path)


@pytest.mark.parametrize("name", ["mini-imagenet", "."])
def test_csv_files_with_a_folder_of_images_are_read(tmp_path: Path, name: str) -> None:
    csv_files(tmp_path / name)
    check_content(tmp_path)


@pytest.mark.parametrize("protocol", [1, 2, 3, 4, 5])
def test_cache_pickles_are_read(tmp_path: Path, protocol: int) -> None:
    cache_pickles(tmp_path / "mini-imagenet", protocol=protocol, validation=protocol % 2 == 0)
    check_content(tmp_path)


def test_images_of_another_size_are_resized(tmp_path: Path) -> None:
    class_folders(tmp_path / "mini-imagenet")
    path = tmp_path / "mini-imagenet" / "n01" / "n01_0.png"
    Image.fromarray(picture("n01", 0)).resize((500, 375)).save(path)
    check_content(tmp_path)


def test_a_class_with_too_few_images_is_named(tmp_path: Path) -> None:
    class_folders(tmp_path / "mini-imagenet")
    (tmp_path / "mini-imagenet" / "n03" / "n03_4.png").unlink()
    with pytest.raises(DataError, match="class n03 of mini-ImageNet has 4 images; it must have 5"):
        SMALL.read(tmp_path)
    assert [found.path for found in SMALL.check(tmp_path) if not found.good] == ["n03"]


def test_a_missing_class_is_told(tmp_path: Path) -> None:
    class_folders(tmp_path / "mini-imagenet")
    (tmp_path / "mini-imagenet" / "n03").rename(tmp_path / "n03")
    with pytest.raises(DataError, match="holds 3 classes; mini-ImageNet has 4"):
        SMALL.read(tmp_path)


def test_a_damaged_image_is_named_by_read_and_by_check(tmp_path: Path) -> None:
    class_folders(tmp_path / "mini-imagenet")
    path = tmp_path / "mini-imagenet" / "n02" / "n02_1.png"
    path.write_bytes(path.read_bytes()[:60])
    with pytest.raises(DataError, match=r"n02_1.png cannot be decoded"):
        SMALL.read(tmp_path)
    assert [(found.path, found.good) for found in SMALL.check(tmp_path)][1] == ("n02", False)


def test_csv_rows_may_not_point_out_of_the_images_folder(tmp_path: Path) -> None:
    csv_files(tmp_path / "mini-imagenet")
    (tmp_path / "mini-imagenet" / "val.csv").write_text("filename,label\n../../secret.png,n01\n")
    with pytest.raises(DataError, match=r"val.csv must have columns filename"):
        SMALL.read(tmp_path)
    (tmp_path / "mini-imagenet" / "val.csv").write_text("name,class\na.png,n01\n")
    with pytest.raises(DataError, match=r"val.csv must have columns filename"):
        SMALL.read(tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([], "must hold an array `image_data`"),
        ({"image_data": np.zeros((5, 84, 84), np.uint8), "class_dict": {}}, "must hold an array `image_data`"),
        ({"image_data": np.zeros((5, 84, 84, 3), np.uint8)}, "must hold a dictionary `class_dict`"),
        ({"image_data": np.zeros((5, 84, 84, 3), np.uint8), "class_dict": {"n01": [5]}}, "numbers below 5"),
        ({"image_data": np.zeros((5, 84, 84, 3), np.uint8), "class_dict": {"n01": [0, 0]}}, "must differ"),
        ({"image_data": np.zeros((5, 84, 84, 3), np.uint8), "class_dict": {"n\n": [0]}}, "name is not a short word"),
        ({"image_data": np.zeros((5, 84, 84, 3), np.uint8), "class_dict": {1: [0]}}, "name is not a short word"),
        ({"image_data": np.zeros((5, 84, 84, 3), np.uint8), "class_dict": {"n02": [0]}}, "class n02 is in two"),
    ],
)
def test_cache_pickles_of_something_else_are_refused(tmp_path: Path, content: object, message: str) -> None:
    cache_pickles(tmp_path / "mini-imagenet")
    (tmp_path / "mini-imagenet" / "mini-imagenet-cache-val.pkl").write_bytes(pickle.dumps(content))
    with pytest.raises(DataError, match=message):
        SMALL.read(tmp_path)
