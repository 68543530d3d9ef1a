"""Arrays, tasks and streams as such."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch

from scale_cl.errors import StreamError
from scale_cl.streams import Arrays, InputSpec, TaskInfo, build, load_arrays, split


def images(n: int = 12, m: int = 8, classes: int = 4, **other: Any) -> Arrays:
    """Random images whose label is their number modulo `classes`."""
    generator = torch.Generator().manual_seed(0)
    values: dict[str, Any] = {
        "x_train": torch.randint(0, 256, (n, 3, 5, 4), generator=generator).to(torch.uint8),
        "y_train": torch.arange(n) % classes,
        "x_test": torch.randint(0, 256, (m, 3, 5, 4), generator=generator).to(torch.uint8),
        "y_test": torch.arange(m) % classes,
        "class_names": tuple("abcdefghij"[:classes]),
        "pixel_max": 255.0,
    }
    return Arrays(**(values | other))


def test_data_of_a_task_are_its_rows_in_order_of_arrival_with_labels_of_its_head() -> None:
    arrays = images()
    stream = split(arrays, classes_per_task=2, order=[2, 0, 3, 1], seed=3)
    assert [task.classes for task in stream.tasks] == [("c", "a"), ("d", "b")]
    assert stream.tasks[1].info == TaskInfo("task-2", 2)
    x, y = stream.train_data(0)
    rows = stream.tasks[0].train
    assert torch.equal(x, arrays.x_train[rows])
    assert y.tolist() == [{2: 0, 0: 1}[int(label)] for label in arrays.y_train[rows]]
    x, y = stream.test_data(1)
    assert torch.equal(x, arrays.x_test[stream.tasks[1].test])
    assert y.tolist() == [{3: 0, 1: 1}[int(label)] for label in arrays.y_test[stream.tasks[1].test]]
    assert stream.spec == InputSpec((3, 5, 4), 255.0, "task")


def test_a_permutation_moves_the_same_pixels_in_every_image_of_a_task() -> None:
    stream = build("digits", load_arrays("digits"), seed=1, tasks=2)
    task = stream.tasks[1]
    assert task.permutation is not None
    x, _ = stream.train_data(1)
    raw = stream.arrays.x_train[task.train]
    for i in (0, 17, 63):
        assert torch.equal(x.flatten(1)[:, i], raw.flatten(1)[:, task.permutation[i]])
    assert sorted(task.permutation.tolist()) == list(range(64))
    x_test, _ = stream.test_data(1)
    assert torch.equal(x_test.flatten(1), stream.arrays.x_test[task.test].flatten(1)[:, task.permutation])


def test_arrays_on_a_device_are_made_once_and_shared() -> None:
    arrays = images()
    assert arrays.on("cpu") is arrays
    there = arrays.on("meta")
    assert there is arrays.on(torch.device("meta"))
    assert there.on("cpu") is arrays
    one, two = (split(arrays, classes_per_task=2, seed=seed).to("meta") for seed in (0, 1))
    assert one.arrays is two.arrays is there
    assert one.device.type == "meta"
    assert {t.device.type for t in (one.tasks[0].train, one.train_labels, one.train_data(0)[0])} == {"meta"}


def test_streams_of_all_classes_share_the_labels_of_the_arrays() -> None:
    arrays = load_arrays("digits")
    stream = build("digits", arrays, seed=0)
    assert stream.train_labels is arrays.y_train
    assert stream.to("meta").train_labels is arrays.on("meta").y_train


def test_first_cuts_a_stream_and_refuses_what_it_does_not_have() -> None:
    stream = split(images(), classes_per_task=1)
    assert [task.name for task in stream.first(2).tasks] == ["task-1", "task-2"]
    assert len(stream) == 4
    for n in (0, 5):
        with pytest.raises(StreamError, match=f"has 4 tasks; the first {n}"):
            stream.first(n)


def test_a_pickled_copy_leaves_copies_on_other_devices_behind() -> None:
    arrays = images()
    arrays.on("meta")
    copy = pickle.loads(pickle.dumps(split(arrays, classes_per_task=2)))
    assert torch.equal(copy.arrays.x_train, arrays.x_train)
    assert list(copy.arrays._copies) == [torch.device("cpu")]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"y_train": torch.arange(12)}, "training label 11 is outside the head: 4 classes take labels 0 to 3"),
        ({"y_test": torch.arange(8) - 1}, "test label -1 is outside the head"),
        ({"y_test": torch.zeros(7, dtype=torch.int64)}, r"test labels are torch.int64 of shape \[7\]"),
        ({"y_train": torch.zeros(12)}, "training labels are torch.float32"),
        ({"x_train": torch.zeros(12, 3, 5, 4)}, "inputs are torch.float32 of shape"),
        ({"x_train": torch.zeros(12, 60, dtype=torch.uint8)}, r"uint8 images \[N, C, H, W\]"),
        ({"x_test": torch.zeros(8, 3, 4, 4, dtype=torch.uint8)}, "they must agree"),
        ({"x_train": torch.zeros(0, 3, 5, 4, dtype=torch.uint8), "y_train": torch.arange(0)}, "no training samples"),
        ({"pixel_max": None}, "pixel_max is None"),
        ({"pixel_max": 0.0}, "positive number such as 255"),
        ({"class_names": ("a", "b", "c", "a")}, "class names must differ"),
        ({"domains": torch.arange(3)}, r"domains have shape \[3\]; give one per training row"),
    ],
)
def test_arrays_that_do_not_fit_together_are_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(StreamError, match=message):
        images(**wrong)


def test_features_must_be_finite_and_have_no_pixel_scale() -> None:
    y = torch.arange(4) % 2
    x = torch.rand(4, 3)
    assert Arrays(x, y, x, y, ("a", "b"), None).pixel_max is None
    with pytest.raises(StreamError, match="must be None"):
        Arrays(x, y, x, y, ("a", "b"), 255.0)
    for bad in (torch.nan, -torch.inf, 3e38):
        wrong = x.clone()
        wrong[1, 2] = bad
        with pytest.raises(
            StreamError, match=r"^training row 1 \(from 0\) holds NaN, infinity or a number beyond 1e\+19; "
        ):
            Arrays(wrong, y, x, y, ("a", "b"), None)
        with pytest.raises(StreamError, match=r"^test row 1 \(from 0\) holds"):
            Arrays(x, y, wrong, y, ("a", "b"), None)


def test_a_stream_its_tasks_and_arrays_are_a_line_each_when_printed() -> None:
    stream = split(images(), classes_per_task=2, order=[2, 0, 3, 1], seed=3, name="own")
    assert repr(stream) == "Stream('own', 2 tasks, task, 3 x 5 x 4)"
    assert repr(stream.first(1)) == "Stream('own', 1 task, task, 3 x 5 x 4)"
    assert repr(stream.tasks[0]) == "Task('task-1', 2 classes, 6 training and 4 test samples)"
    assert repr(stream.arrays) == "Arrays(12 training and 8 test samples of 3 x 5 x 4, 4 classes, on cpu)"
    features = images(x_train=torch.zeros(12, 7), x_test=torch.zeros(8, 7), pixel_max=None)
    assert "of 7 features" in repr(features)
