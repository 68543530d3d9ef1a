"""Split streams: the classes of a data set are dealt out over the tasks (task-incremental)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from scale_cl.errors import StreamError
from scale_cl.streams.builders.assembly import assemble
from scale_cl.streams.draws import as_rows, shuffled
from scale_cl.streams.stream import Arrays, Stream, Task

Order = Literal["natural"] | int | Sequence[int]


def split(
    arrays: Arrays, *, classes_per_task: int, order: Order = "natural", seed: int = 0, name: str = "split"
) -> Stream:
    """Tasks of `classes_per_task` classes each, taken along `order`.

    Args:
        arrays: the data set.
        classes_per_task: classes of each head; it must divide the number of classes.
        order: "natural", an integer n for `numpy.random.RandomState(n).permutation`, or the order itself.
        seed: decides the order of arrival within each task.
        name: of the stream.
    """
    classes = len(arrays.class_names)
    if classes_per_task < 1 or classes % classes_per_task:
        raise StreamError(f"classes_per_task is {classes_per_task}; it must divide the {classes} classes of {name}")
    arrays = arrays.on("cpu")
    y_train, y_test = arrays.y_train.numpy(), arrays.y_test.numpy()
    tasks = []
    for k, members in enumerate(_in_order(order, classes, name).reshape(-1, classes_per_task)):
        tasks.append(
            Task(
                name=f"task-{k + 1}",
                classes=tuple(arrays.class_names[c] for c in members),
                train=shuffled(np.flatnonzero(np.isin(y_train, members)), seed, k),
                test=as_rows(np.flatnonzero(np.isin(y_test, members))),
            )
        )
    return assemble(name, "task", seed, arrays, tasks)


def _in_order(order: Order, classes: int, name: str) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    if isinstance(order, str):
        if order != "natural":
            raise StreamError(f"class order is {order!r}; it must be 'natural', a seed, or the order itself")
        return np.arange(classes)
    if isinstance(order, int):
        if not 0 <= order < 2**32:
            raise StreamError(f"class order is {order}; as a seed it must be from 0 to 4294967295")
        return np.asarray(np.random.RandomState(order).permutation(classes), dtype=np.int64)
    if sorted(order) != list(range(classes)):
        raise StreamError(f"the class order of {name} must name each of the classes 0 to {classes - 1} once")
    return np.asarray(order, dtype=np.int64)
