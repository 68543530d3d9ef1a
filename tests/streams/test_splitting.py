"""Split streams."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from scale_cl.errors import StreamError
from scale_cl.streams import Arrays, split


def arrays(classes: int, each: int = 3) -> Arrays:
    y = torch.arange(classes).repeat(each)
    x = y.to(torch.uint8).reshape(-1, 1, 1, 1).expand(-1, 1, 2, 2)
    return Arrays(x, y, x[:classes], y[:classes], tuple(f"class {c}" for c in range(classes)), 255.0)


@given(st.integers(1, 5), st.integers(1, 5), st.integers(0, 2**32 - 1), st.integers(0, 2**70))
def test_every_row_is_in_exactly_one_task(tasks: int, per_task: int, order: int, seed: int) -> None:
    whole = arrays(tasks * per_task)
    stream = split(whole, classes_per_task=per_task, order=order, seed=seed)
    assert len(stream) == tasks
    for part, n in (("train", len(whole.x_train)), ("test", len(whole.x_test))):
        rows = torch.cat([getattr(task, part) for task in stream.tasks]).tolist()
        assert sorted(rows) == list(range(n))
    for k, task in enumerate(stream.tasks):
        x, y = stream.train_data(k)
        assert [f"class {int(v)}" for v in x[:, 0, 0, 0]] == [task.classes[int(label)] for label in y]


def test_an_integer_order_is_that_of_numpy() -> None:
    stream = split(arrays(10), classes_per_task=5, order=4)
    expected = np.random.RandomState(4).permutation(10)
    assert [name for task in stream.tasks for name in task.classes] == [f"class {c}" for c in expected]


def test_the_seed_decides_the_order_of_arrival_and_nothing_else() -> None:
    one, again, other = (split(arrays(4, each=50), classes_per_task=2, seed=s) for s in (0, 0, 1))
    for k in range(2):
        assert torch.equal(one.tasks[k].train, again.tasks[k].train)
        assert not torch.equal(one.tasks[k].train, other.tasks[k].train)
        assert set(one.tasks[k].train.tolist()) == set(other.tasks[k].train.tolist())
        assert torch.equal(one.tasks[k].test, other.tasks[k].test)
        assert one.tasks[k].classes == other.tasks[k].classes


@pytest.mark.parametrize(
    ("per_task", "order", "message"),
    [
        (3, "natural", "classes_per_task is 3; it must divide the 4 classes"),
        (0, "natural", "classes_per_task is 0"),
        (2, "reverse", "class order is 'reverse'"),
        (2, -1, "class order is -1"),
        (2, [0, 1, 2, 2], "must name each of the classes 0 to 3 once"),
    ],
)
def test_orders_that_do_not_deal_out_the_classes_are_refused(
    per_task: int, order: int | list[int], message: str
) -> None:
    with pytest.raises(StreamError, match=message):
        split(arrays(4), classes_per_task=per_task, order=order)


def test_a_class_without_samples_leaves_no_empty_task() -> None:
    whole = arrays(4)
    keep = whole.y_train < 3
    lacking = Arrays(
        whole.x_train[keep], whole.y_train[keep], whole.x_test, whole.y_test, whole.class_names, whole.pixel_max
    )
    with pytest.raises(StreamError, match="task 'task-4' has no training samples"):
        split(lacking, classes_per_task=1)
