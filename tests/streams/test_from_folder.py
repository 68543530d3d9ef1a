"""Streams of image folders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from scale_cl.errors import DataError, StreamError
from scale_cl.streams import from_folder


def draw(path: Path, colour: int, size: tuple[int, int] = (4, 6)) -> None:
    """Save an image of one colour; size is (height, width)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (size[1], size[0]), (colour, 0, 255 - colour)).save(path)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Tasks task2 (classes ant, bee) and task10 (bee, cat), ten images each class, colour by number."""
    for t, (task, classes) in enumerate((("task2", ("ant", "bee")), ("task10", ("bee", "cat")))):
        for c, label in enumerate(classes):
            for i in range(10):
                draw(tmp_path / "animals" / task / label / f"{i}.png", 100 * t + 20 * c + i)
    return tmp_path / "animals"


def test_each_folder_is_a_task_with_its_class_folders_as_head(folder: Path) -> None:
    stream = from_folder(folder)
    assert stream.name == "animals"
    assert [(t.name, t.classes) for t in stream.tasks] == [("task2", ("ant", "bee")), ("task10", ("bee", "cat"))]
    assert stream.spec.shape == (3, 4, 6)
    for k in range(2):
        (x_train, y_train), (x_test, y_test) = stream.train_data(k), stream.test_data(k)
        assert (len(x_train), len(x_test)) == (16, 4)
        assert y_test.bincount().tolist() == [2, 2]
        colours = [int(i[0, 0, 0]) for x in (x_train, x_test) for i in x]
        assert sorted(colours) == sorted(100 * k + 20 * c + i for c in range(2) for i in range(10))
        for x, y in ((x_train, y_train), (x_test, y_test)):
            assert [int(i[0, 0, 0]) % 100 // 20 for i in x] == y.tolist()


def test_domain_folders_share_a_head(folder: Path) -> None:
    assert {t.classes for t in from_folder(folder, scenario="domain").tasks} == {("ant", "bee", "cat")}


def test_what_is_held_out_follows_the_seed(folder: Path) -> None:
    held = [sorted(from_folder(folder, seed=s).test_data(0)[0][:, 0, 0, 0].tolist()) for s in range(6)]
    assert held[0] == sorted(from_folder(folder, seed=0).test_data(0)[0][:, 0, 0, 0].tolist())
    assert any(other != held[0] for other in held[1:])
    assert len(from_folder(folder, held_out=0.5).tasks[0].test) == 10
    without = from_folder(folder, held_out=0)
    assert [(len(task.train), len(task.test)) for task in without.tasks] == [(20, 0), (20, 0)]


def test_train_and_test_folders_are_used_where_they_are(folder: Path) -> None:
    for part, count in (("train", 3), ("test", 2)):
        for i in range(count):
            draw(folder / "task3" / part / "dog" / f"{i}.jpg", 10 * i)
    stream = from_folder(folder, shuffle=False)
    assert [(t.name, len(t.train), len(t.test)) for t in stream.tasks] == [
        ("task2", 16, 4),
        ("task3", 3, 2),
        ("task10", 16, 4),
    ]
    assert stream.tasks[1].classes == ("dog",)


def test_images_are_resized_and_greyed_when_asked(folder: Path) -> None:
    draw(folder / "task2" / "ant" / "large.png", 50, size=(40, 60))
    assert from_folder(folder, size=8).spec.shape == (3, 8, 8)
    assert from_folder(folder, size=(5, 7), channels=1).spec.shape == (1, 5, 7)
    with pytest.raises(
        DataError, match=r"large.png is 40 x 60, the first image 4 x 6; give a size to which all are resized"
    ):
        from_folder(folder)


def test_progress_is_reported_up_to_the_end(folder: Path) -> None:
    seen: list[tuple[int, int]] = []
    from_folder(folder, progress=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (40, 40)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"held_out": -0.1}, "held_out is -0.1"),
        ({"held_out": 1.0}, "held_out is 1.0"),
        ({"channels": 2}, "channels is 2"),
        ({"size": 0}, "size is 0"),
    ],
)
def test_settings_out_of_range_are_refused(folder: Path, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(StreamError, match=message):
        from_folder(folder, **settings)


def test_folders_that_make_no_stream_are_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is not a folder"):
        from_folder(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(StreamError, match="holds no folders"):
        from_folder(tmp_path / "empty")
    (folder / "task4").mkdir()
    with pytest.raises(StreamError, match="task4 holds no class folders"):
        from_folder(folder)
    (folder / "task4" / "ape").mkdir()
    with pytest.raises(StreamError, match="ape holds no images"):
        from_folder(folder)
    draw(folder / "task4" / "ape" / "1.png", 1)
    with pytest.raises(StreamError, match="class 'ape' of task 'task4' has one image"):
        from_folder(folder)
    (folder / "task4" / "ape" / "2.png").write_bytes(b"not a picture")
    with pytest.raises(DataError, match=r"2.png is not an image"):
        from_folder(folder)


def test_a_folder_one_level_too_deep_is_told_the_one_above(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = next(child for child in folder.iterdir() if child.is_dir())
    with pytest.raises(StreamError, match=f"if {task} is one task, name the folder above it, {folder}; else put"):
        from_folder(task)
    monkeypatch.chdir(task)
    with pytest.raises(StreamError, match=f"name the folder above it, {folder}; else put"):
        from_folder(".")


def test_images_outside_class_folders_are_told_where_to_go(folder: Path) -> None:
    draw(folder / "task4" / "1.png", 1)
    with pytest.raises(StreamError, match="task4 holds no class folders, it holds images: put them into a folder for"):
        from_folder(folder)
    with pytest.raises(StreamError, match="task4 holds images and no folders; images belong in TASK/CLASS/"):
        from_folder(folder / "task4")
    (folder / "task4" / "1.png").rename(folder / "1.png")
    (folder / "task4").rmdir()
    with pytest.raises(StreamError, match=r"holds an image beside its task folders \(1\.png\); put it into a folder"):
        from_folder(folder)
    task = next(child for child in folder.iterdir() if child.is_dir())
    draw(task / "2.png", 1)
    (folder / "1.png").rename(task / "1.png")
    with pytest.raises(StreamError, match=r"holds 2 images beside its class folders \(1\.png, \.\.\.\); put them into"):
        from_folder(folder)
    (folder / "all.csv").touch()
    with pytest.raises(DataError, match=r"all.csv is a file; .* csv:"):
        from_folder(folder / "all.csv")


def test_a_broken_first_image_is_named_with_the_others(folder: Path) -> None:
    files = sorted(folder.rglob("*.png"))
    for file in (files[0], files[-1]):
        file.write_bytes(b"not a picture")
    with pytest.raises(DataError, match=f"^2 images in {folder} cannot be decoded"):
        from_folder(folder)
    for file in files:
        file.write_bytes(b"not a picture")
    with pytest.raises(DataError, match=f"^{len(files)} images in {folder} cannot be decoded"):
        from_folder(folder)
