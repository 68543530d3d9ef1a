"""Whether a saved state makes sense, before and after a learner takes it over: files may hold anything."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from scale_cl.errors import CheckpointError

_MEMORIES = ("memory.", "semantic.")


def check_plain_values(meta: Mapping[str, Any]) -> None:
    """Tasks are names with a number of classes each, the open one is among them, and steps are counted."""
    tasks, current, steps = (meta.get(key) for key in ("tasks", "current", "steps"))
    if not isinstance(tasks, list) or not all(_is_task(task) for task in tasks):
        raise CheckpointError("state is damaged: its tasks are not a list of names, each with a number of classes")
    names = [name for name, _ in tasks]
    if len(set(names)) < len(names):
        raise CheckpointError("state is damaged: a task appears twice")
    if current is not None and current not in names:
        raise CheckpointError(f"state is damaged: its open task {str(current)[:40]!r} is not among its tasks")
    if type(steps) is not int or steps < 0:
        raise CheckpointError(f"state is damaged: {str(steps)[:40]!r} is not a number of steps")


def check_memories(tensors: Mapping[str, Tensor], classes: list[int]) -> None:
    """Numbers in a memory that are used as indices are inside what they point into."""
    for prefix in _MEMORIES:
        own = {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}
        if own and not _makes_sense(own, classes):
            raise CheckpointError(f"state is damaged: its {prefix[:-1]} points outside of what it holds")


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
    y, task, seen = own["y"], own["task"], own["seen"]
    tasks, rows = len(seen), len(y)
    if tasks > len(classes) or (tasks and rows % tasks) or not -1 <= int(own["open"]) < tasks:
        return False
    counts = [t for name, t in own.items() if name.startswith(("seen_of_class", "class_counts."))]
    if any(bool((t < 0).any()) for t in (seen, *counts)):
        return False
    if tasks == 0:
        return True
    block = torch.arange(rows, device=task.device) // (rows // tasks)
    limit = torch.tensor(classes, device=y.device)[block]
    fits = (task == block) & (y >= 0) & (y < limit) & (own["stored"] | ~own["replayable"])
    for kind in ("class", "task"):
        start, width, size = own[f"{kind}.start"], own[f"{kind}.width"], len(own[f"{kind}.flat"])
        fits = fits & (width >= 0) & ((width == 0) | ((start >= 0) & (start <= size) & (width <= size - start)))
    return bool(fits.all())
