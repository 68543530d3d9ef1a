"""The `task` argument: nothing, one name for all samples, or a name for each."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from scale_cl.errors import InputError, UnknownTaskError

INFER = "infer"
DEFAULT = "default"


def name_to_learn(task: Any, seen: list[str]) -> str:
    """The task that data without a name for each sample belongs to: the one named, else the only one there is."""
    if task is not None:
        return _name(task)
    if len(seen) > 1:
        raise InputError(f"several tasks were seen ({_listed(seen)}); say which one this is, task=...")
    return seen[0] if seen else DEFAULT


def groups_to_learn(task: Any, samples: int, seen: list[str]) -> list[tuple[str, NDArray[np.int64]]]:
    """Names of tasks in order of first appearance, and the rows of each."""
    if task is None or _is_one(task):
        return [(name_to_learn(task, seen), np.arange(samples))]
    return _grouped([_name(name) for name in _each(task, samples)])


def groups_to_predict(task: Any, samples: int, seen: list[str]) -> list[tuple[str, NDArray[np.int64]]]:
    """The tasks of samples whose prediction is asked for, and the rows of each."""
    if task is None and len(seen) > 1:
        raise InputError(
            f"several tasks were seen ({_listed(seen)}); say which one these samples are of, task=..., "
            f"or task={INFER!r} to let the model find out"
        )
    if task is None or _is_one(task):
        names = [seen[0] if task is None else str(task)]
        groups = [(names[0], np.arange(samples))]
    else:
        groups = _grouped([str(name) for name in _each(task, samples)])
    for name, _ in groups:
        if name not in seen:
            raise UnknownTaskError(f"task {name!r} was never seen; tasks seen: {_listed(seen)}")
    return groups


def asks_to_infer(task: Any) -> bool:
    """Whether the model is to find the tasks itself."""
    return isinstance(task, str) and task == INFER


def _name(task: Any) -> str:
    name = str(task)
    if name == INFER:
        raise InputError(f"a task cannot be called {INFER!r}: predict(..., task={INFER!r}) has the model find it")
    return name


def _is_one(task: Any) -> bool:
    return isinstance(task, str | bytes) or np.ndim(task) == 0


def _each(task: Any, samples: int) -> list[Any]:
    names = np.asarray(task).tolist()
    if np.ndim(task) != 1 or len(names) != samples:
        raise InputError(f"task has shape {list(np.shape(task))}; give one name, or one for each of {samples} samples")
    return list(names)


def _grouped(names: list[str]) -> list[tuple[str, NDArray[np.int64]]]:
    array = np.array(names)
    return [(name, np.flatnonzero(array == name)) for name in dict.fromkeys(names)]


def _listed(names: list[str]) -> str:
    shown = ", ".join(map(repr, names[:20]))
    return shown + (f" and {len(names) - 20} more" if len(names) > 20 else "")
