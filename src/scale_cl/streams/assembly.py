"""What every builder shares: random draws per seed, task and purpose, and the assembly of tasks into a stream.

Each seed, task and purpose has a random generator of its own, so that the data of task k does not depend on how many
tasks are built.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from scale_cl.errors import StreamError
from scale_cl.streams.stream import Arrays, Scenario, Stream, Task

_PURPOSES = {"train": 0, "test": 1, "permutation": 2, "held out": 3, "share": 4, "blur": 5}
Purpose = Literal["train", "test", "permutation", "held out", "share", "blur"]


def generator(seed: int, task: int, purpose: Purpose) -> np.random.Generator:
    """The random generator for one purpose in one task of the stream with this seed."""
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
        raise StreamError(f"seed is {seed!r}; it must be an integer of at least 0")
    sequence = np.random.SeedSequence(int(seed), spawn_key=(task, _PURPOSES[purpose]))
    return np.random.Generator(np.random.PCG64(sequence))


def draw(count: int, of: int, seed: int, task: int, purpose: Purpose) -> Tensor:
    """`count` different indices below `of`, in random order."""
    return as_rows(generator(seed, task, purpose).permutation(of)[:count])


def shuffled(rows: NDArray[np.int64], seed: int, task: int, window: int | None = None) -> Tensor:
    """`rows` in random order: the order in which the samples of a task arrive.

    With a `window`, samples change places only within each so many consecutive ones.
    """
    draw, size = generator(seed, task, "train"), window or max(1, len(rows))
    return as_rows(np.concatenate([draw.permutation(rows[i : i + size]) for i in range(0, max(1, len(rows)), size)]))


def as_rows(rows: NDArray[np.int64]) -> Tensor:
    """Row numbers as an int64 tensor."""
    return torch.from_numpy(np.array(rows, dtype=np.int64))


def assemble(name: str, scenario: Scenario, seed: int, arrays: Arrays, tasks: Sequence[Task]) -> Stream:
    """A stream of `tasks` over `arrays`, with head labels computed and checked; StreamError if they do not fit.

    In scenario class, each task's classes are extended by those of the tasks before it: classes are numbered in the
    order in which tasks bring them.
    """
    if scenario not in get_args(Scenario):
        raise StreamError(f"scenario is {scenario!r}; it must be 'task', 'domain' or 'class'")
    if not tasks:
        raise StreamError(f"stream {name} has no tasks; at least one is needed")
    names = [task.name for task in tasks]
    if len(set(names)) != len(names):
        twice = next(n for n in names if names.count(n) > 1)
        raise StreamError(f"task name {twice!r} stands for two tasks of stream {name}; names must differ")
    if scenario == "domain" and len({task.classes for task in tasks}) > 1:
        raise StreamError(f"the tasks of domain-incremental stream {name} share a head; their classes must be the same")
    check_samples(names, [(len(task.train), len(task.test)) for task in tasks])
    if scenario == "class":
        _check_classes(name, arrays, tasks)
        tasks = _cumulative(tasks)
    if all(task.classes == arrays.class_names for task in tasks):
        train, test = arrays.y_train, arrays.y_test  # shared by every stream over these arrays
    else:
        train = _head_labels("training", arrays.y_train, [(t, t.train) for t in tasks], arrays.class_names)
        test = _head_labels("test", arrays.y_test, [(t, t.test) for t in tasks], arrays.class_names)
    return Stream(name, scenario, seed, tuple(tasks), arrays, train, test)


def check_samples(names: Sequence[str], counts: Sequence[tuple[int, int]]) -> None:
    """Refuse a task without training samples, and one without test samples, unless no task has any."""
    tested = any(test for _, test in counts)
    for name, (train, test) in zip(names, counts, strict=True):
        if train == 0:
            raise StreamError(f"task {name!r} has no training samples; every task needs at least one")
        if tested and test == 0:
            raise StreamError(
                f"task {name!r} has no test samples, but others have; every task needs at least one, or none has any"
            )


def _cumulative(tasks: Sequence[Task]) -> list[Task]:
    """The tasks, each with the classes of all tasks up to it."""
    seen: dict[str, None] = {}
    found = []
    for task in tasks:
        seen.update(dict.fromkeys(task.classes))
        found.append(replace(task, classes=tuple(seen)))
    return found


def _check_classes(name: str, arrays: Arrays, tasks: Sequence[Task]) -> None:
    """Refuse labels that do not fit one head for all classes; a blurred stream was checked before it was blurred."""
    if any(task.origin is not None for task in tasks):
        return
    first = tasks[0].classes
    if len(tasks) > 1 and all(set(first).issuperset(task.classes) for task in tasks):
        raise StreamError(
            f"no task of {name} after the first has a new class ({_listed(first)}): if labels mean the same in every "
            "task, the scenario is 'domain'; if not, give each class a label of its own, or use scenario 'task'"
        )
    learnt = torch.zeros(len(arrays.class_names), dtype=torch.bool)
    for task in tasks:
        learnt[arrays.y_train[task.train]] = True
        labels = arrays.y_test[task.test]
        strangers = labels[~learnt[labels]]
        if len(strangers):
            label = f"test label {arrays.class_names[int(strangers[0])]!r} of task {task.name!r}"
            raise StreamError(f"{label} occurs in no training data up to that task; train on it or leave it out")


def _listed(classes: Sequence[str]) -> str:
    return ", ".join(classes[:5]) + (", ..." if len(classes) > 5 else "")


def _head_labels(part: str, y: Tensor, tasks: list[tuple[Task, Tensor]], class_names: tuple[str, ...]) -> Tensor:
    """The label of each row within the head of its task, [N]; -1 for rows of no task."""
    labels = torch.full_like(y, -1)
    index = {name: i for i, name in enumerate(class_names)}
    for task, rows in tasks:
        head = torch.full((len(class_names),), -1, dtype=torch.int64)
        head[[index[name] for name in task.classes]] = torch.arange(len(task.classes))
        local = head[y[rows]]
        if bool((local < 0).any()):
            stranger = class_names[int(y[rows[local < 0][0]])]
            raise StreamError(
                f"{part} label {stranger!r} is outside the head of task {task.name!r}, "
                f"which has {len(task.classes)} classes: {_listed(task.classes)}"
            )
        before = labels[rows]
        if bool(((before >= 0) & (before != local)).any()):
            raise StreamError(f"a {part} row of task {task.name!r} has another label in an earlier task; copy the row")
        labels[rows] = local
    return labels
