"""Whether what comes in makes sense: batches, and saved states before and after a learner takes them over."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from scale_cl.engine.settings import tensors_of
from scale_cl.errors import CheckpointError, InputError, ScaleClError
from scale_cl.memory.stored_rows import saved_kinds
from scale_cl.streams import InputSpec


def check_inputs(x: Tensor, spec: InputSpec) -> None:
    """Samples have the shape and type that the learner was made for."""
    _check_tensor("a batch", x)
    shape, dtype = tuple(x.shape), torch.float32 if spec.pixel_max is None else torch.uint8
    if shape[1:] != tuple(spec.shape) or len(x) == 0:
        wanted = ", ".join(map(str, spec.shape))
        raise InputError(f"a batch has shape {list(shape)}; this learner takes [n, {wanted}] with n >= 1")
    if x.dtype != dtype:
        raise InputError(f"a batch is of {x.dtype}; this learner takes {dtype}")


def _check_tensor(what: str, given: object) -> None:
    if not isinstance(given, Tensor):
        raise InputError(f"{what} must be a torch.Tensor, not {type(given).__name__}; torch.as_tensor makes one")


def check_labels(x: Tensor, y: Tensor, classes: int) -> None:
    """There is a label for each sample, within a head of so many classes."""
    _check_tensor("labels", y)
    if y.shape != x.shape[:1] or y.dtype != torch.int64:
        raise InputError(f"labels have shape {list(y.shape)} and {y.dtype}; expected [{len(x)}] and torch.int64")
    if y.device.type == "cpu":  # elsewhere it would stop the device; a stream checks its labels when it is built
        labels = y.tolist()
        low, high = min(labels), max(labels)
        if low < 0 or high >= classes:
            wrong = low if low < 0 else high
            raise InputError(f"label {wrong} is outside the task's head; labels are 0 to {classes - 1}")


def check_tasks(y: Tensor, task: Tensor, classes: list[int]) -> None:
    """Samples of several tasks: each names a task that was begun and has a label within its head."""
    if not classes:
        raise ScaleClError("no task was begun: call begin_task(TaskInfo(name, classes)) for each before observe")
    if task.shape != y.shape or task.dtype != torch.int64:
        raise InputError(
            f"task numbers have shape {list(task.shape)} and {task.dtype}; expected [{len(y)}] and torch.int64"
        )
    if y.device.type == "cpu" and task.device.type == "cpu":  # as for labels: elsewhere it would stop the device
        low, high = int(task.min()), int(task.max())
        if low < 0 or high >= len(classes):
            wrong = low if low < 0 else high
            raise InputError(f"task number {wrong} was never begun; tasks are 0 to {len(classes) - 1}")
        over = (y >= torch.tensor(classes)[task]).nonzero()
        if len(over) > 0:
            label, number = int(y[over[0]]), int(task[over[0]])
            last = classes[number] - 1
            raise InputError(f"label {label} is outside the head of task {number}; its labels are 0 to {last}")


def check_plain_values(meta: Mapping[str, Any], memories: list[str] | None = None) -> None:
    """Tasks are names with a number of classes each, the open one is among them, and steps are counted.

    With `memories`, the state must have these and no others.
    """
    tasks, current, steps = (meta.get(key) for key in ("tasks", "current", "steps"))
    if not isinstance(tasks, list) or not all(_is_task(task) for task in tasks):
        raise CheckpointError("state is damaged: its tasks are not a list of names, each with a number of classes")
    names = [name for name, _ in tasks]
    if len(set(names)) < len(names):
        raise CheckpointError("state is damaged: a task appears twice")
    if current is not None and current not in names:
        raise CheckpointError(f"state is damaged: its open task {str(current)[:40]!r} is not among its tasks")
    for number in (steps, meta.get("task_steps", 0)):
        if type(number) is not int or number < 0:
            raise CheckpointError(f"state is damaged: {str(number)[:40]!r} is not a number of steps")
    kept = meta.get("memories")
    if not isinstance(kept, list) or not all(isinstance(name, str) for name in kept):
        raise CheckpointError("state is damaged: its memories are not a list of names")
    if memories is not None and kept != memories:
        raise CheckpointError(f"state does not fit this learner: it has the memories {kept}, expected {memories}")


def check_heads(tensors: Mapping[str, Tensor], meta: Mapping[str, Any], *, shared: bool) -> None:
    """The heads in a state have room for its tasks, so that no more is allocated for them than the state holds."""
    heads, tasks = tensors.get("net.heads.bias.data"), meta["tasks"]
    if heads is None or heads.dim() != 2:
        raise CheckpointError("state does not fit this learner: it has no heads; make it with the same config")
    widest = max((classes for _, classes in tasks), default=0)
    if widest > heads.shape[1] or len(heads) != (min(len(tasks), 1) if shared else len(tasks)):
        raise CheckpointError(
            f"state is damaged: it has {len(tasks)} tasks of up to {widest} classes and heads of {list(heads.shape)}"
        )
    if any(type(n) is not int or not 0 <= n <= max(widest, len(tasks)) for n in _leaves(meta.get("shapes"))):
        raise CheckpointError("state is damaged: the shapes of its modules are not those of its tasks")


def _leaves(value: Any) -> Iterator[object]:
    """What the lists and dictionaries of JSON content hold, null left out."""
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        if isinstance(inner, dict | list):
            yield from _leaves(inner)
        elif inner is not None:
            yield inner


def check_memories(tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
    """Numbers in a memory that are used as indices are inside what they point into."""
    classes = [number for _, number in meta["tasks"]]
    for name in meta["memories"]:
        own = tensors_of(name, tensors)
        if not own or not _makes_sense(own, classes):
            raise CheckpointError(f"state is damaged: its {name} points outside of what it holds")


def check_taken(given: Mapping[str, Tensor], taken: Mapping[str, Tensor]) -> None:
    """A learner that took a state over has the very same tensors, in name, type and shape."""
    for name in sorted(given.keys() | taken.keys()):
        if name not in given or name not in taken:
            where = "nothing of the kind" if name not in given else "no place for it"
            raise CheckpointError(f"state does not fit this learner: {name} ({where}); make it with the same config")
        one, other = given[name], taken[name]
        if one.dtype != other.dtype or one.shape != other.shape:
            raise CheckpointError(
                f"state does not fit this learner: {name} is {one.dtype} of {list(one.shape)}, expected "
                f"{other.dtype} of {list(other.shape)}"
            )


def _is_task(task: object) -> bool:
    return (
        isinstance(task, list)
        and len(task) == 2
        and isinstance(task[0], str)
        and type(task[1]) is int
        and 1 <= task[1] < 2**31
    )


def _makes_sense(own: Mapping[str, Tensor], classes: list[int]) -> bool:
    y, task, seen, scope, rows = own["y"], own["task"], own["seen"], own["scope"], len(own["y"])
    if len(seen) > len(classes) or not -1 <= int(own["open"]) < len(seen):
        return False
    counts = [t for name, t in own.items() if name.startswith(("seen_of_class", "class_counts.", "class_blocks."))]
    if any(bool((t < 0).any()) for t in (seen, *counts)) or bool(((scope < 0) | (scope >= max(rows, 1))).any()):
        return False
    if len(classes) == 0:
        return not bool(own["stored"].any())
    fits = (task >= 0) & (task < len(classes))
    limit = torch.tensor(classes, device=y.device)[task.clamp(0, len(classes) - 1)]
    fits &= (y >= 0) & (~own["stored"] | (y < limit)) & (own["stored"] | ~own["replayable"]) & (own["rank"] >= 0)
    for kind in saved_kinds(own):
        start, width, size = own[f"{kind}.start"], own[f"{kind}.width"], len(own[f"{kind}.flat"])
        fits &= (width >= 0) & ((width == 0) | ((start >= 0) & (start <= size) & (width <= size - start)))
    return bool(fits.all())
