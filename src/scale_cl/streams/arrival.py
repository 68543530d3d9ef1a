"""What arrives of a stream, and when: `thinned` leaves training samples out, `blurred` lets tasks overlap in time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from scale_cl.errors import StreamError
from scale_cl.streams.assembly import as_rows, assemble, generator
from scale_cl.streams.stream import Stream

Schedule = Literal["steps", "gaussian"]
Numbers = NDArray[np.int64]


def thinned(stream: Stream, share: float) -> Stream:
    """The stream with a share of each class's training samples per task, drawn by the stream's seed.

    Args:
        stream: a stream that is not blurred.
        share: above 0, at most 1; of every class at least one sample stays, and samples keep their order.
    """
    if not 0 < share <= 1:
        raise StreamError(f"train_share is {share}; it must be above 0 and at most 1")
    _check_unblurred(stream)
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


def _steps(sizes: Sequence[int], share: float, seed: int) -> list[Numbers]:
    """The numbers of the samples of each stage, shuffled, if a share of each task is spread over the other stages."""
    tasks = len(sizes)
    ends = np.cumsum(sizes)
    stages: list[list[Numbers]] = [[] for _ in sizes]
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


def _gaussian(sizes: Sequence[int], width: float, seed: int) -> list[Numbers]:
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
            "use scenario 'class' or 'domain'"
        )
    if len(stream) < 2:
        raise StreamError(f"{stream.name} has one task; at least two are needed to blur them")
    _check_unblurred(stream)


def _check_unblurred(stream: Stream) -> None:
    if any(task.origin is not None for task in stream.tasks):
        raise StreamError(f"{stream.name} is blurred already; start from the stream with separate tasks")
