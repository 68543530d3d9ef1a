"""Benchmark streams from one data set: `permuted` (domain-incremental) and `split` (task-incremental)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from scale_cl.errors import StreamError
from scale_cl.streams.assembly import as_rows, assemble, draw, generator, shuffled
from scale_cl.streams.stream import Arrays, Stream, Task

Rows = np.ndarray[tuple[int], np.dtype[np.int64]]
Order = Literal["natural"] | int | Sequence[int]


def permuted(
    arrays: Arrays, *, tasks: int, train: int, test: int, seed: int = 0, name: str = "permuted", first_task: int = 0
) -> Stream:
    """A stream whose tasks have the same classes, each seen through a pixel permutation of its own.

    Args:
        arrays: the data set.
        tasks: number of tasks.
        train: training samples per task, drawn for each task from all of the data set's.
        test: test samples per task, drawn likewise.
        seed: decides draws, permutations and the order of arrival.
        name: name of the stream.
        first_task: number of the first task, counted from 0; a task's data depends only on its number and the seed.
    """
    available = {"training": (train, len(arrays.x_train)), "test": (test, len(arrays.x_test))}
    for part, (wanted, there) in available.items():
        if not 1 <= wanted <= there:
            asked = f"{wanted} {part} images per task were asked for"
            raise StreamError(f"{asked}; {name} has {there}, so take 1 to {there}")
    if tasks < 1:
        raise StreamError(f"tasks is {tasks}; it must be at least 1")
    pixels = arrays.x_train[0].numel()
    made = [
        Task(
            name=f"task-{k + 1}",
            classes=arrays.class_names,
            train=draw(train, len(arrays.x_train), seed, k, "train"),
            test=draw(test, len(arrays.x_test), seed, k, "test"),
            permutation=as_rows(generator(seed, k, "permutation").permutation(pixels)),
        )
        for k in range(first_task, first_task + tasks)
    ]
    return assemble(name, "domain", seed, arrays.on("cpu"), made)


def split(
    arrays: Arrays, *, classes_per_task: int, order: Order = "natural", seed: int = 0, name: str = "split"
) -> Stream:
    """A stream whose tasks have `classes_per_task` classes each, taken in `order`.

    Args:
        arrays: the data set.
        classes_per_task: number of classes per task; it must divide the number of classes.
        order: "natural", an integer n for `numpy.random.RandomState(n).permutation`, or the order itself.
        seed: decides the order of arrival within each task.
        name: name of the stream.
    """
    classes = len(arrays.class_names)
    if classes_per_task < 1 or classes % classes_per_task:
        raise StreamError(f"classes_per_task is {classes_per_task}; it must divide the {classes} classes of {name}")
    arrays = arrays.on("cpu")
    members = _in_order(order, classes, name).reshape(-1, classes_per_task)  # [tasks, classes]
    train, test = (_rows_per_task(labels.numpy(), members) for labels in (arrays.y_train, arrays.y_test))
    tasks = [
        Task(
            name=f"task-{k + 1}",
            classes=tuple(arrays.class_names[c] for c in own),
            train=shuffled(train[k], seed, k),
            test=as_rows(test[k]),
        )
        for k, own in enumerate(members)
    ]
    return assemble(name, "task", seed, arrays, tasks)


def _rows_per_task(labels: Rows, members: np.ndarray[tuple[int, int], np.dtype[np.int64]]) -> list[Rows]:
    """The rows of each task's samples in ascending order; one sort, because a stream is built for every seed."""
    task_of = np.empty(members.size, dtype=np.int64)
    task_of[members.ravel()] = np.repeat(np.arange(len(members)), members.shape[1])
    tasks = task_of[labels]
    ends = np.cumsum(np.bincount(tasks, minlength=len(members)))
    return np.split(np.argsort(tasks, kind="stable"), ends[:-1])


def _in_order(order: Order, classes: int, name: str) -> Rows:
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
