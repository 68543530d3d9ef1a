"""Tiny-ImageNet, CUB-200-2011 and CORe50, in small trees of their layouts."""

from __future__ import annotations

import functools
import io
from pathlib import Path

import pytest
from PIL import Image

from scale_cl.errors import DataError, StreamError
from scale_cl.streams import by_domain, load, split
from scale_cl.streams.sources.image_layouts import CORE50, Cub, TinyImageNet

TINY = TinyImageNet(size=8, classes=3, train_per_class=2, test_per_class=1)
CUB = Cub(size=8, train=3, test=2)
WNIDS = ("n03", "n01", "n02")


@functools.cache
def picture(grey: int, width: int = 8) -> Image.Image:
    return Image.new("RGB", (width, 8), (grey, grey, grey))


def save(path: Path, grey: int, width: int = 8) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    picture(grey, width).save(path)


def tiny_imagenet(folder: Path, *, sorted_out: bool = False) -> None:
    folder.mkdir(parents=True)
    (folder / "wnids.txt").write_text("\n".join(WNIDS) + "\n")
    (folder / "words.txt").write_text("n01\ttench, Tinca tinca\n")
    lines = []
    for number, name in enumerate(sorted(WNIDS)):
        for i in range(2):
            save(folder / "train" / name / "images" / f"{name}_{i}.JPEG", 40 * number + 10 * i)
        (folder / "train" / name / f"{name}_boxes.txt").write_text("")
        place = folder / "val" / name if sorted_out else folder / "val" / "images"
        save(place / f"val_{9 - number}.JPEG", 200 + 10 * number)
        lines.append(f"val_{9 - number}.JPEG\t{name}\t0\t0\t63\t63")
    if not sorted_out:
        (folder / "val" / "val_annotations.txt").write_text("\n".join(lines) + "\n")


@pytest.mark.parametrize("sorted_out", [False, True])
def test_tiny_imagenet_is_read_as_unpacked_and_with_val_in_class_folders(tmp_path: Path, sorted_out: bool) -> None:
    tiny_imagenet(tmp_path / "tiny-imagenet-200", sorted_out=sorted_out)
    assert TINY.present(tmp_path)
    arrays = TINY.read(tmp_path)
    assert arrays.class_names == ("n01", "n02", "n03")
    assert arrays.y_train.tolist() == [0, 0, 1, 1, 2, 2]
    assert arrays.y_test.tolist() == [0, 1, 2]
    assert [round(int(v), -1) for v in arrays.x_train[:, 0, 4, 4]] == [0, 10, 40, 50, 80, 90]
    assert [round(int(v), -1) for v in arrays.x_test[:, 0, 4, 4]] == [200, 210, 220]
    assert [(found.path, found.good) for found in TINY.check(tmp_path)] == [(n, True) for n in sorted(WNIDS)]
    assert tuple(TINY.at(4).read(tmp_path).x_train.shape) == (6, 3, 4, 4)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda f: (f / "train" / "n01" / "images" / "n01_0.JPEG").unlink(),
            "class n01 .* has 1 training images; .* 2",
        ),
        (lambda f: (f / "wnids.txt").write_text("n01\n"), "wnids.txt names 1 classes; Tiny-ImageNet has 3"),
        (lambda f: (f / "wnids.txt").unlink(), "wnids.txt is missing"),
        (lambda f: (f / "wnids.txt").write_text("n01 n02\nn02\nn04\n"), "n04 is missing"),
        (lambda f: (f / "val" / "val_annotations.txt").write_text("../x.JPEG n01\n"), "must have the name of an image"),
        (lambda f: (f / "val" / "val_annotations.txt").write_text("val_9.JPEG\n"), "line 1: it has 1 words"),
        (lambda f: (f / "val" / "images" / "val_9.JPEG").unlink(), "val_9.JPEG is missing"),
    ],
)
def test_a_tiny_imagenet_that_is_not_whole_is_refused(tmp_path: Path, change: object, message: str) -> None:
    tiny_imagenet(tmp_path / "tiny-imagenet-200")
    change(tmp_path / "tiny-imagenet-200")  # type: ignore[operator]
    with pytest.raises(DataError, match=message):
        TINY.read(tmp_path)
    assert not all(found.good for found in TINY.check(tmp_path))


def cub(folder: Path) -> None:
    images = ["001.Albatross/a.jpg", "001.Albatross/b.jpg", "002.Auklet/c.jpg", "002.Auklet/d.jpg", "002.Auklet/e.jpg"]
    for number, name in enumerate(images):
        save(folder / "images" / name, 40 * number, width=8 + number)
    texts = {
        "images": [f"{n} {name}" for n, name in enumerate(images, 1)],
        "image_class_labels": ["1 1", "2 1", "3 2", "4 2", "5 2"],
        "train_test_split": ["1 1", "2 0", "3 0", "4 1", "5 1"],
        "classes": ["1 001.Albatross", "2 002.Auklet"],
    }
    for name, lines in texts.items():
        (folder / f"{name}.txt").write_text("\n".join(lines) + "\n")


def test_cub_is_read_by_its_own_split_and_resized(tmp_path: Path) -> None:
    cub(tmp_path / "CUB_200_2011")
    arrays = CUB.read(tmp_path)
    assert arrays.class_names == ("001.Albatross", "002.Auklet")
    assert (arrays.y_train.tolist(), arrays.y_test.tolist()) == ([0, 1, 1], [0, 1])
    assert tuple(arrays.x_train.shape) == (3, 3, 8, 8)
    assert [round(int(v), -1) for v in arrays.x_train[:, 0, 4, 4]] == [0, 120, 160]
    assert [found.text for found in CUB.check(tmp_path)] == ["2 images", "3 images"]
    stream = split(arrays, classes_per_task=1, scenario="class")
    assert stream.tasks[1].classes == arrays.class_names


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("images", "1 ../../secret.jpg\n", "paths must be inside images/"),
        ("images", "1 001.Albatross/a.jpg\n", "has 1 training and 0 test images; CUB-200-2011 has 3 and 2"),
        ("images", "x 001.Albatross/a.jpg\n", "must begin every line with a number of its own"),
        ("classes", "1 001.Albatross\n", "image 3 of .* has no class of classes.txt"),
        ("train_test_split", "1 1\n2 x\n", "image 2 of .* is neither 0 nor 1"),
    ],
)
def test_a_cub_whose_tables_do_not_fit_is_refused(tmp_path: Path, file: str, text: str, message: str) -> None:
    cub(tmp_path / "CUB_200_2011")
    (tmp_path / "CUB_200_2011" / f"{file}.txt").write_text(text)
    with pytest.raises(DataError, match=message):
        CUB.read(tmp_path)


def core50(folder: Path) -> None:
    """Two frames per object and session, by whose grey both are known."""
    for session in range(1, 12):
        for number in range(1, 51):
            own = folder / f"s{session}" / f"o{number}"
            own.mkdir(parents=True)
            for frame in range(2):
                file = own / f"C_{session:02}_{number:02}_{frame:03}.png"
                file.write_bytes(encoded(10 * session + number))


@functools.cache
def encoded(grey: int) -> bytes:
    buffer = io.BytesIO()
    picture(grey).save(buffer, "png")
    return buffer.getvalue()


def test_core50_has_sessions_for_domains_and_objects_or_categories_for_classes(tmp_path: Path) -> None:
    core50(tmp_path / "core50_128x128")
    instances = load("core50-ni", root=tmp_path, size=8, seed=1)
    objects, sessions = instances.arrays, (1, 2, 4, 5, 6, 8, 9, 11)
    assert objects.class_names[4:6] == ("plug adapter 5", "mobile phone 1")
    assert (len(objects.x_train), len(objects.x_test)) == (8 * 50 * 2, 3 * 50)  # of the tests every 20th frame
    assert [task.name for task in instances.tasks] == [f"domain-{session}" for session in sessions]
    for k, session in enumerate(sessions):
        x, y = instances.train_data(k)
        assert x[:, 0, 0, 0].tolist() == (10 * session + 1 + y).tolist()
        assert y.bincount().tolist() == [2] * 50
        assert len(instances.tasks[k].test) == 150
    classes = load("core50-nc", root=tmp_path, size=8, scenario="class")
    assert classes.arrays is objects
    assert [len(task.classes) for task in classes.tasks] == [10, 15, 20, 25, 30, 35, 40, 45, 50]
    categories = load("core50-ni10", root=tmp_path, size=8).arrays
    assert categories.class_names[:2] == ("plug adapter", "mobile phone")
    assert categories.y_train.tolist() == (objects.y_train // 5).tolist()
    (tmp_path / "core50_128x128" / "s4" / "o2" / "C_04_02_000.png").write_bytes(b"broken")
    assert [found.path for found in CORE50.at(8).check(tmp_path) if not found.good] == ["plug adapter 2"]


@pytest.mark.parametrize(
    ("stream", "title"),
    [("stinyimagenet", "Tiny-ImageNet"), ("scub200", "CUB-200-2011"), ("core50-ni", "CORe50")],
)
def test_a_data_set_that_is_not_there_says_where_to_place_it(tmp_path: Path, stream: str, title: str) -> None:
    with pytest.raises(DataError, match=f"{title} is not in {tmp_path}: place it yourself .the folder"):
        load(stream, root=tmp_path)
    (tmp_path / "core50_128x128" / "s1").mkdir(parents=True)
    with pytest.raises(DataError, match="o1 has no images; CORe50 has those of every object in every session"):
        load("core50-ni", root=tmp_path, size=32)


def test_domains_are_needed_to_make_tasks_of_them(tmp_path: Path) -> None:
    tiny_imagenet(tmp_path / "tiny-imagenet-200")
    with pytest.raises(StreamError, match="the data set of own has no domains"):
        by_domain(TINY.read(tmp_path), name="own")
