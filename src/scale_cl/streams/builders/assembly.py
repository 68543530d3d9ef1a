"""The last step of every builder: head labels are worked out and checked, once, when the stream is built."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from scale_cl.errors import StreamError
from scale_cl.streams.stream import Arrays, Scenario, Stream, Task


def assemble(name: str, scenario: Scenario, seed: int, arrays: Arrays, tasks: Sequence[Task]) -> Stream:
    """A stream of `tasks` over `arrays`, or StreamError if they do not make one."""
    if not tasks:
        raise StreamError(f"stream {name} has no tasks; at least one is needed")
    names = [task.name for task in tasks]
    if len(set(names)) != len(names):
        twice = next(n for n in names if names.count(n) > 1)
        raise StreamError(f"task name {twice!r} stands for two tasks of stream {name}; names must differ")
    if scenario == "domain" and len({task.classes for task in tasks}) > 1:
        raise StreamError(
            f"the tasks of domain-incremental stream {name} share one head; their classes must be the same"
        )
    for task in tasks:
        if len(task.train) == 0 or len(task.test) == 0:
            part = "training" if len(task.train) == 0 else "test"
            raise StreamError(f"task {task.name!r} has no {part} samples; every task needs at least one")
    if all(task.classes == arrays.class_names for task in tasks):
        train, test = arrays.y_train, arrays.y_test  # shared by every stream over these arrays
    else:
        train = _head_labels("training", arrays.y_train, [(t, t.train) for t in tasks], arrays.class_names)
        test = _head_labels("test", arrays.y_test, [(t, t.test) for t in tasks], arrays.class_names)
    return Stream(name, scenario, seed, tuple(tasks), arrays, train, test)


def _head_labels(part: str, y: Tensor, tasks: list[tuple[Task, Tensor]], class_names: tuple[str, ...]) -> Tensor:
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
                f"which has {len(task.classes)} classes: {_some(task.classes)}"
            )
        before = labels[rows]
        if bool(((before >= 0) & (before != local)).any()):
            raise StreamError(f"a {part} row of task {task.name!r} has another label in an earlier task; copy the row")
        labels[rows] = local
    return labels


def _some(names: tuple[str, ...]) -> str:
    return ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
