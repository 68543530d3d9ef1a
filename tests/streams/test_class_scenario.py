"""Streams with one head for all classes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from scale_cl.errors import StreamError
from scale_cl.streams import Arrays, Stream, from_arrays, from_dataset, from_folder, from_manifest, split
from scale_cl.streams.user_streams import UserStream, load_own


def arrays(classes: int = 6, each: int = 4) -> Arrays:
    """Images whose pixels are their label."""
    y = torch.arange(classes).repeat(each)
    x = y.to(torch.uint8).reshape(-1, 1, 1, 1).expand(-1, 1, 2, 2)
    return Arrays(x, y, x[:classes], y[:classes], tuple("abcdefgh"[:classes]), 255.0)


def task(labels: list[Any], test: list[Any] | None = None) -> tuple[Any, ...]:
    """Training and test samples, four of each label, whose feature is the label."""
    parts = []
    for own in (labels, labels if test is None else test):
        y = np.repeat(own, 4)
        parts += [np.array([[ord(str(label))] for label in y], np.float32), y]
    return tuple(parts)


def check_one_head(stream: Stream) -> None:
    """Classes extend those of the task before; labels index them, in training and test."""
    assert stream.scenario == stream.spec.scenario == "class"
    before: tuple[str, ...] = ()
    for k, t in enumerate(stream.tasks):
        assert t.classes[: len(before)] == before
        before = t.classes
        for x, y in (stream.train_data(k), stream.test_data(k)):
            pixels = x.flatten(1)[:, 0].tolist()
            assert [stream.tasks[-1].classes[label] for label in y] == [t.classes[label] for label in y]
            assert len({(pixel, int(label)) for pixel, label in zip(pixels, y, strict=True)}) == len(set(pixels))


def test_classes_are_numbered_in_the_order_in_which_tasks_bring_them() -> None:
    stream = split(arrays(), classes_per_task=2, scenario="class", order=[4, 1, 0, 5, 3, 2], seed=1)
    check_one_head(stream)
    assert [t.classes for t in stream.tasks] == [("e", "b"), ("e", "b", "a", "f"), ("e", "b", "a", "f", "d", "c")]
    assert [sorted(stream.train_data(k)[1].unique().tolist()) for k in range(3)] == [[0, 1], [2, 3], [4, 5]]
    x, y = stream.test_data(2)
    assert {(int(p), int(label)) for p, label in zip(x.flatten(1)[:, 0], y, strict=True)} == {(3, 4), (2, 5)}
    check_one_head(stream.first(2))
    alike = split(arrays(), classes_per_task=2, order=[4, 1, 0, 5, 3, 2], seed=1)
    assert [t.train.tolist() for t in stream.tasks] == [t.train.tolist() for t in alike.tasks]


def test_tasks_may_have_different_numbers_of_classes() -> None:
    stream = split(arrays(), classes_per_task=[3, 1, 2], scenario="class")
    check_one_head(stream)
    assert [len(t.classes) for t in stream.tasks] == [3, 4, 6]
    for wrong in ([3, 1], [6, 0], []):
        with pytest.raises(StreamError, match="these must add up to the 6 classes"):
            split(arrays(), classes_per_task=wrong)
    with pytest.raises(StreamError, match="scenario is 'domain'; tasks of split differ in their classes"):
        split(arrays(), classes_per_task=2, scenario="domain")


def test_arrays_may_bring_a_class_again() -> None:
    stream = from_arrays([task(["c", "b"]), task(["b", "a"], ["a", "c"])], scenario="class")
    check_one_head(stream)
    assert stream.tasks[1].classes == ("b", "c", "a")
    ordered = from_arrays([task([3, 1]), task([2, 0])], scenario="class", classes=[3, 2, 1, 0])
    assert ordered.tasks[1].classes == ("3", "1", "2", "0")


@pytest.mark.parametrize(
    ("tasks", "message"),
    [
        (
            [task(["a", "b"]), task(["c"], ["c", "d"]), task(["d"])],
            "^test label 'd' of task 'task-2' occurs in no training data up to that task; train on it or leave it out$",
        ),
        (
            [task([0, 1]), task([0, 1])],
            "^no task of arrays after the first has a new class .0, 1.: if labels mean the same in every task, the "
            "scenario is 'domain'; if not, give each class a label of its own, or use scenario 'task'$",
        ),
        ([task([0, 1]), task(["a", "b"])], "some labels are integers and some strings"),
    ],
)
def test_labels_that_do_not_fit_one_head_are_refused_in_one_line(tasks: list[Any], message: str) -> None:
    with pytest.raises(StreamError, match=message):
        from_arrays(tasks, scenario="class")


def test_folders_manifests_and_data_sets_are_class_incremental_too(tmp_path: Path) -> None:
    rows = ["path,label,task"]
    for number, label in enumerate("dcba"):
        for i in range(4):
            file = tmp_path / "images" / str(number // 2) / label / f"{i}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.new("L", (4, 4), 10 * number).save(file)
            rows.append(f"images/{number // 2}/{label}/{i}.png,{label},{number // 2}")
    (tmp_path / "list.csv").write_text("\n".join(rows))
    own = UserStream(f"folder:{tmp_path / 'images'}", scenario="class", channels=1)
    pairs = [(np.full((1, 4, 4), 10 * label, np.uint8), label) for label in range(4) for _ in range(3)]
    made = [
        from_folder(tmp_path / "images", scenario="class", channels=1),
        from_manifest(tmp_path / "list.csv", scenario="class", channels=1),
        load_own(own, seed=3),
        from_dataset(pairs, pairs, classes_per_task=2, scenario="class"),
    ]
    for stream in made:
        check_one_head(stream)
    assert [stream.tasks[-1].classes for stream in made] == [("c", "d", "a", "b")] * 3 + [("0", "1", "2", "3")]
