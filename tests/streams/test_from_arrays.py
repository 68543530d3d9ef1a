"""Streams of anybody's arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from scale_cl.errors import StreamError
from scale_cl.streams import from_arrays


def task(labels: list[Any], shape: tuple[int, ...] = (6, 5), fill: int = 0) -> tuple[Any, Any, Any, Any]:
    """Training and test data with one image for each label."""
    x = np.arange(len(labels), dtype=np.uint8).reshape(-1, *(1 for _ in shape)) + np.full(shape, fill, np.uint8)
    return x, np.array(labels), x.copy(), np.array(labels)


def test_each_task_has_a_head_for_its_own_labels() -> None:
    stream = from_arrays([task([7, 3, 7]), task([3, -1, 5], fill=100)], seed=1)
    assert [t.classes for t in stream.tasks] == [("3", "7"), ("-1", "3", "5")]
    assert stream.arrays.class_names == ("-1", "3", "5", "7")
    assert stream.spec.shape == (1, 6, 5)
    x, y = stream.train_data(1)
    assert {int(i[0, 0, 0]): int(label) for i, label in zip(x, y, strict=True)} == {100: 1, 101: 0, 102: 2}
    x, y = stream.test_data(0)
    assert [(int(i[0, 0, 0]), int(label)) for i, label in zip(x, y, strict=True)] == [(0, 1), (1, 0), (2, 1)]


def test_domain_tasks_share_one_head_of_all_labels() -> None:
    stream = from_arrays([task(["cat", "dog"]), task(["dog", "ant"])], scenario="domain", names=["day", "night"])
    assert [t.classes for t in stream.tasks] == [("ant", "cat", "dog")] * 2
    assert [t.name for t in stream.tasks] == ["day", "night"]
    assert sorted(stream.train_data(1)[1].tolist()) == [0, 2]


def test_given_classes_set_the_order_of_the_head() -> None:
    stream = from_arrays([task([0, 1])], scenario="domain", classes=[2, 1, 0])
    assert stream.tasks[0].classes == ("2", "1", "0")
    assert stream.test_data(0)[1].tolist() == [2, 1]


@pytest.mark.parametrize(
    ("shape", "layout", "expected"),
    [
        ((6, 5), "auto", (1, 6, 5)),
        ((6, 5, 3), "auto", (3, 6, 5)),
        ((3, 6, 5), "auto", (3, 6, 5)),
        ((1, 6, 5), "auto", (1, 6, 5)),
        ((6, 5, 4), "auto", (4, 6, 5)),
        ((3, 5, 3), "NCHW", (3, 5, 3)),
        ((6, 5, 7), "NHWC", (7, 6, 5)),
    ],
)
def test_images_of_any_layout_become_channels_first(
    shape: tuple[int, ...], layout: Any, expected: tuple[int, ...]
) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (4, *shape), dtype=np.uint8)
    for as_given in (pixels, torch.from_numpy(pixels), pixels.tolist() and pixels[:, ::-1][:, ::-1]):
        stream = from_arrays([(as_given, [0, 1, 0, 1], as_given, [0, 1, 0, 1])], layout=layout, shuffle=False)
        x, _ = stream.train_data(0)
        assert tuple(x.shape[1:]) == expected
        assert x.is_contiguous()
        wanted = torch.from_numpy(pixels).reshape(4, *(shape if len(shape) == 3 else (1, *shape)))
        if tuple(wanted.shape[1:]) != expected:
            wanted = wanted.permute(0, 3, 1, 2)
        assert torch.equal(x, wanted)


def test_features_become_float32_whatever_their_precision_and_byte_order() -> None:
    x = np.random.default_rng(0).normal(size=(4, 3))
    for given in (x, x.astype(">f8"), torch.from_numpy(x), torch.from_numpy(x).requires_grad_(), x.tolist()):
        stream = from_arrays([(given, [0, 1, 0, 1], given, [0, 1, 0, 1])], shuffle=False)
        assert stream.spec.shape == (3,)
        assert stream.spec.pixel_max is None
        assert torch.equal(stream.train_data(0)[0], torch.from_numpy(x.astype(np.float32)))


def test_the_stream_keeps_data_of_its_own() -> None:
    group = task([0, 1])
    tensors = tuple(torch.from_numpy(part) for part in group)
    one, two = from_arrays([group]), from_arrays([tensors])
    for part in group:
        part += 1
    assert sorted(one.train_data(0)[0][:, 0, 0, 0].tolist()) == [0, 1]
    assert sorted(two.train_data(0)[0][:, 0, 0, 0].tolist()) == [0, 1]


def test_order_of_arrival_follows_the_seed_or_is_kept() -> None:
    groups = [task(list(range(50)))]
    kept = from_arrays(groups, shuffle=False)
    assert kept.tasks[0].train.tolist() == list(range(50))
    orders = [from_arrays(groups, seed=s).tasks[0].train.tolist() for s in (0, 0, 1)]
    assert orders[0] == orders[1] != orders[2]
    assert sorted(orders[0]) == list(range(50))


def changed(index: int, part: Any) -> list[Any]:
    group: list[Any] = list(task([0, 1]))
    group[index] = part
    return [group]


@pytest.mark.parametrize(
    ("tasks", "settings", "message"),
    [
        ([], {}, "there are 0 tasks"),
        ([task([0, 1])[:3]], {}, "has 3 parts; it must have four"),
        ([task([0])], {"names": ["a", "b"]}, "1 tasks and 2 names"),
        ([task([0]), task([1])], {"names": ["a", "a"]}, "task name 'a' stands for two tasks"),
        ([task([0])], {"scenario": "classes"}, "scenario is 'classes'"),
        (changed(1, [0, 1, 2]), {}, "2 training inputs and 3 labels"),
        (changed(3, [0, 5]), {}, "test label 5 of task 'task-1' occurs in no training data"),
        ([task([0, 1]), (*task([2, 3])[:3], [2, 0])], {}, "test label '0' is outside the head of task 'task-2'"),
        ([task([0, 1])], {"classes": [0, 2]}, "training label 1 of task 'task-1' is outside the head"),
        (changed(1, ["0", "1"]), {}, "some labels are integers and some strings"),
        (changed(1, [0.5, 1.5]), {}, r"training labels of 'task-1' are float64 of shape \[2\]"),
        (changed(1, [[0], [1]]), {}, "give .N. integers or strings"),
        (changed(0, np.zeros((2, 6, 5), np.int32)), {}, "are torch.int32 of shape"),
        (changed(0, np.zeros((2, 6, 5))), {}, "are torch.float64 of shape"),
        (changed(0, np.zeros((2, 30), np.uint8)), {}, "are torch.uint8 of shape"),
        (changed(0, np.zeros((2, 3, 5, 3), np.uint8)), {}, "channels first or last"),
        (changed(0, np.zeros((2, 7, 5, 9), np.uint8)), {}, "channels first or last"),
        (changed(0, np.zeros((2, 3, 5, 7), np.uint8)), {"layout": "HWC"}, "layout is 'HWC'"),
        (changed(0, ["a", "b"]), {}, "not an array of numbers"),
        (changed(0, [[1.0], [1.0, 2.0]]), {}, "not an array of numbers"),
        (changed(2, np.zeros((2, 6, 4), np.uint8)), {}, "they must agree"),
        ([task([0, 1]), task([0, 1], shape=(5, 6))], {}, "inputs of task 'task-2' are"),
        ([task([0, 1]), (np.zeros((0, 6, 5), np.uint8), [], *task([0])[2:])], {}, "'task-2' has no training samples"),
        ([task([0, 1]), task([0, 1])[:2]], {}, "'task-2' has no test samples, but others have"),
        ([(np.full((2, 3), np.inf), [0, 1]) * 2], {}, "must be finite"),
        ([task([0, 1])], {"pixel_max": -1.0}, "pixel_max is -1.0"),
    ],
)
def test_what_makes_no_stream_is_refused_in_one_line(tasks: Any, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(StreamError, match=message) as caught:
        from_arrays(tasks, **settings)
    assert "\n" not in str(caught.value)
