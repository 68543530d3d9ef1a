"""Benchmark streams from one data set: its pixels permuted, its classes split, or its domains one after another.

Of any stream, `thinned` leaves training samples out, `held_out` tests on some of them, and `blurred` lets tasks overlap
in time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from scale_cl.errors import StreamError
from scale_cl.streams.assembly import as_rows, assemble, draw, generator, shuffled
from scale_cl.streams.reading import LazyRows
from scale_cl.streams.stream import Arrays, Scenario, Stream, Task

Rows = NDArray[np.int64]
Order = Literal["natural"] | int | Sequence[int]
Schedule = Literal["steps", "gaussian"]


def permuted(
    arrays: Arrays, *, tasks: int, train: int, test: int, seed: int = 0, name: str = "permuted", first_task: int = 0
) -> Stream:
    """A domain-incremental stream: tasks have the same classes, each seen through its own permutation of the pixels.

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
    arrays: Arrays,
    *,
    classes_per_task: int | Sequence[int],
    scenario: Scenario = "task",
    order: Order = "natural",
    seed: int = 0,
    name: str = "split",
) -> Stream:
    """A stream whose tasks have different classes, taken in `order`.

    Args:
        arrays: the data set.
        classes_per_task: number of classes per task, which must divide the number of classes; or one number per task.
        scenario: "task": a head per task; "class": one head for all classes, numbered in `order`.
        order: "natural", an integer n for `numpy.random.RandomState(n).permutation`, or the order itself.
        seed: decides the order of arrival within each task.
        name: name of the stream.
    """
    if scenario == "domain":
        raise StreamError(f"scenario is 'domain'; tasks of {name} differ in their classes: take 'task' or 'class'")
    arrays = arrays.on("cpu")
    classes = len(arrays.class_names)
    ends = np.cumsum(_sizes(classes_per_task, classes, name))
    members = np.split(_in_order(order, classes, name), ends[:-1])  # the classes of each task
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
    return assemble(name, scenario, seed, arrays, tasks)


def by_domain(arrays: Arrays, *, seed: int = 0, name: str = "domains") -> Stream:
    """A domain-incremental stream with one task per domain of the data set, such as its recording sessions.

    Args:
        arrays: a data set with `domains`; they arrive in ascending order.
        seed: decides the order of arrival within each task.
        name: name of the stream.

    Every task is tested on all test samples: in such data sets they are of domains of their own.
    """
    arrays = arrays.on("cpu")
    if arrays.domains is None:
        raise StreamError(f"the data set of {name} has no domains; give Arrays(..., domains=...), one number per row")
    domains = arrays.domains.numpy()
    test = as_rows(np.arange(len(arrays.x_test)))
    tasks = [
        Task(f"domain-{domain}", arrays.class_names, shuffled(np.flatnonzero(domains == domain), seed, k), test)
        for k, domain in enumerate(np.unique(domains).tolist())
    ]
    return assemble(name, "domain", seed, arrays, tasks)


def _sizes(per_task: int | Sequence[int], classes: int, name: str) -> list[int]:
    """The number of classes of each task."""
    if isinstance(per_task, int):
        if per_task < 1 or classes % per_task:
            raise StreamError(f"classes_per_task is {per_task}; it must divide the {classes} classes of {name}")
        return [per_task] * (classes // per_task)
    if min(per_task, default=0) < 1 or sum(per_task) != classes:
        raise StreamError(f"classes_per_task is {list(per_task)}; these must add up to the {classes} classes of {name}")
    return list(per_task)


def _rows_per_task(labels: Rows, members: Sequence[Rows]) -> list[Rows]:
    """The rows of each task's samples in ascending order; one sort, because a stream is built for every seed."""
    sizes = [len(own) for own in members]
    task_of = np.empty(sum(sizes), dtype=np.int64)
    task_of[np.concatenate(members)] = np.repeat(np.arange(len(members)), sizes)
    tasks = task_of[labels]
    ends = np.cumsum(np.bincount(tasks, minlength=len(members)))
    return np.split(np.argsort(tasks, kind="stable"), ends[:-1])


def class_permutation(order: Literal["natural"] | int, classes: int) -> Rows:
    """The order of so many classes that a seed stands for, or that of the data set."""
    if order == "natural":
        return np.arange(classes)
    if isinstance(order, str):
        raise StreamError(f"class order is {order!r}; it must be 'natural', a seed, or the order itself")
    if not 0 <= order < 2**32:
        raise StreamError(f"class order is {order}; as a seed it must be from 0 to 4294967295")
    return np.asarray(np.random.RandomState(order).permutation(classes), dtype=np.int64)


def _in_order(order: Order, classes: int, name: str) -> Rows:
    if isinstance(order, str | int):
        return class_permutation(order, classes)
    if sorted(order) != list(range(classes)):
        raise StreamError(f"the class order of {name} must name each of the classes 0 to {classes - 1} once")
    return np.asarray(order, dtype=np.int64)


# ---- what arrives, and when ------------------------------------------------------------------------------------------
def thinned(stream: Stream, share: float) -> Stream:
    """The stream with a share of each class's training samples per task, drawn by the stream's seed.

    Args:
        stream: a stream that is not blurred.
        share: above 0, at most 1; of every class at least one sample stays, and samples keep their order.
    """
    if not 0 < share <= 1:
        raise StreamError(f"train_share is {share}; it must be above 0 and at most 1")
    _check_can_choose(stream)
    stream, tasks = stream.to("cpu"), []
    for k, task in enumerate(stream.tasks):
        labels = stream.train_labels[task.train].numpy()
        drawn = generator(stream.seed, k, "share").permutation(len(labels))
        drawn = drawn[np.argsort(labels[drawn], kind="stable")]  # class by class, in random order within each
        counts = np.bincount(labels)
        rank = np.arange(len(labels)) - np.repeat(np.cumsum(counts) - counts, counts)  # within its class
        kept = np.sort(drawn[rank < np.repeat(np.maximum(1, np.round(share * counts)), counts)])
        tasks.append(replace(task, train=task.train[as_rows(kept)]))
    return replace(stream, tasks=tuple(tasks))


def held_out(stream: Stream, count: int) -> Stream:
    """The stream tested on training samples: each task holds out the last `count` of its own, which arrive at random.

    Its arrays have no test samples of the data set any more, and no training samples of other tasks.
    """
    _check_can_choose(stream)
    stream = stream.to("cpu")
    if not 1 <= count < min(len(task.train) for task in stream.tasks):
        raise StreamError(f"{count} training samples per task were to be held out; at least 1 must be, and 1 must stay")
    train = torch.cat([task.train[:-count] for task in stream.tasks])
    test = torch.cat([task.train[-count:] for task in stream.tasks])
    tasks, learnt = [], 0
    for k, task in enumerate(stream.tasks):
        own = len(task.train) - count
        tasks.append(
            replace(task, train=torch.arange(learnt, learnt + own), test=torch.arange(k * count, (k + 1) * count))
        )
        learnt += own
    old = stream.arrays
    x, y = (old.x_train[train], old.x_train[test]), (old.y_train[train], old.y_train[test])
    arrays = Arrays(x[0], y[0], x[1], y[1], old.class_names, old.pixel_max)
    labels = stream.train_labels[train], stream.train_labels[test]
    return replace(stream, tasks=tuple(tasks), arrays=arrays, train_labels=labels[0], test_labels=labels[1])


def blurred(stream: Stream, *, share: float = 0.0, schedule: Schedule = "steps", width: float = 0.5) -> Stream:
    """The stream with tasks that overlap: stage k, at the place of task k, also has samples of other tasks.

    Every training sample arrives exactly once, drawn by the stream's seed; test samples stay with their tasks. With
    the schedule "steps", a share of each task's samples is spread evenly over all other stages; stages of tasks of
    equal size keep that size. With "gaussian", the samples of task k arrive around the middle of stage k, with a
    standard deviation of `width` stages, and every stage keeps its size.

    In scenario class, classes are numbered by the stage in which they first arrive, a stage's own classes before those
    of other tasks. A permuted sample keeps the permutation of its own task.

    Args:
        stream: a stream of scenario class or domain with at least two tasks.
        share: for "steps": share of the samples of a task that arrive in other stages, from 0 to 1.
        schedule: "steps" or "gaussian".
        width: for "gaussian": standard deviation of arrival in stages, above 0.
    """
    _check_blur(stream, share, schedule, width)
    stream = stream.to("cpu")
    sizes = [len(task.train) for task in stream.tasks]
    arriving = _steps(sizes, share, stream.seed) if schedule == "steps" else _gaussian(sizes, width, stream.seed)
    rows = np.concatenate([task.train.numpy() for task in stream.tasks])
    origin = np.repeat(np.arange(len(sizes)), sizes)
    labels = stream.train_labels.numpy()
    names = stream.tasks[-1].classes  # scenario class: all of them, in order of their labels
    stages = []
    for task, numbers in zip(stream.tasks, arriving, strict=True):
        classes = task.classes
        if stream.scenario == "class":
            classes = tuple(dict.fromkeys((*classes, *(names[c] for c in np.unique(labels[rows[numbers]])))))
        train, of = as_rows(rows[numbers]), as_rows(origin[numbers])
        stages.append(replace(task, classes=classes, train=train, origin=of))
    made = assemble(stream.name, stream.scenario, stream.seed, stream.arrays, stages)
    return replace(made, boundaries=stream.boundaries)


def _steps(sizes: Sequence[int], share: float, seed: int) -> list[Rows]:
    """The numbers of the samples of each stage, shuffled, if a share of each task is spread over the other stages."""
    tasks = len(sizes)
    ends = np.cumsum(sizes)
    stages: list[list[Rows]] = [[] for _ in sizes]
    for k, size in enumerate(sizes):
        numbers = ends[k] - size + generator(seed, k, "blur").permutation(size)
        leaving = round(share * size)
        stages[k].append(numbers[leaving:])
        # The same offsets for every task: as many samples come to a stage as leave it, if tasks have the same size.
        offsets = 1 + np.arange(leaving) * (tasks - 1) // max(1, leaving)
        for offset in range(1, tasks):
            stages[(k + offset) % tasks].append(numbers[:leaving][offsets == offset])
    mix = generator(seed, tasks, "blur")
    return [mix.permutation(np.concatenate(parts)) for parts in stages]


def _gaussian(sizes: Sequence[int], width: float, seed: int) -> list[Rows]:
    """The numbers of the samples of each stage if samples arrive around the middle of their task.

    Samples of a task keep their order; all are sorted by time and cut into stages of the sizes of the tasks.
    """
    times = [np.sort(generator(seed, k, "blur").normal(k + 0.5, width, size)) for k, size in enumerate(sizes)]
    return np.split(np.argsort(np.concatenate(times), kind="stable"), np.cumsum(sizes)[:-1])


def _check_blur(stream: Stream, share: float, schedule: str, width: float) -> None:
    if schedule not in ("steps", "gaussian"):
        raise StreamError(f"schedule is {schedule!r}; it must be 'steps' or 'gaussian'")
    if not 0 <= share <= 1:
        raise StreamError(f"blur is {share}; it must be from 0 to 1")
    if schedule == "gaussian" and share:
        raise StreamError(f"blur is {share}, which is for the schedule 'steps'; with 'gaussian' give the width alone")
    if not 0 < width < float("inf"):
        raise StreamError(f"width is {width}; it must be above 0")
    if stream.scenario == "task":
        raise StreamError(
            f"the tasks of {stream.name} cannot be blurred in scenario 'task', where each has its own head: "
            f"use scenario {stream.one_head_scenario!r}"
        )
    if len(stream) < 2:
        raise StreamError(f"{stream.name} has one task; at least two are needed to blur them")
    _check_can_choose(stream)


def _check_can_choose(stream: Stream) -> None:
    """Samples can be chosen or moved if tasks are separate and labels are known."""
    if any(task.origin is not None for task in stream.tasks):
        raise StreamError(f"{stream.name} is blurred already; start from the stream with separate tasks")
    x = stream.arrays.x_train
    if isinstance(x, LazyRows) and x.readers.source.sequential:
        raise StreamError(
            f"{stream.name} is read in order only, and its labels are not known before; to choose or move samples, "
            "give data sets with a length and items"
        )
