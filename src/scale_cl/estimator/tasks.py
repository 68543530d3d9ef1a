"""Tasks of an estimator: the labels of each task's head, tasks that are found, and the `task` argument."""

from __future__ import annotations

import reprlib
from collections.abc import Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from scale_cl.engine import STREAM
from scale_cl.errors import InputError, UnknownTaskError
from scale_cl.learners.boundaries import BoundaryFinder, Detection

if TYPE_CHECKING:
    from scale_cl.estimator.classifier import ContinualClassifier

Label = int | float | str | bool
INFER = "infer"
AUTO = "auto"
DEFAULT = "default"


class ClassBook:
    """Which output of each task's head stands for which label; tasks and labels are added as they appear.

    With `shared` there is one head for all tasks: a task's outputs are the first n labels in order of arrival, where n
    is the number of labels when the task was last begun.
    """

    def __init__(
        self, *, shared: bool, labels: Sequence[Label] = (), tasks: Mapping[str, Sequence[Label]] | None = None
    ) -> None:
        """A book with these labels, in order of arrival, and the labels of each task."""
        self.shared = shared
        self._all = list(labels)
        self._of = {name: list(own) for name, own in (tasks or {}).items()}
        self.classes: NDArray[Any] = np.empty(0)  # all labels, sorted

    @property
    def tasks(self) -> list[str]:
        """Names of the tasks seen, in order of arrival."""
        return list(self._of)

    def size(self, task: str) -> int:
        """Number of outputs of a task's head."""
        return len(self._of[task])

    def meet(self, values: NDArray[Any]) -> NDArray[Any]:
        """Add these labels, whatever their task; returns the different ones, sorted."""
        found: NDArray[Any] = np.unique(values)
        if len(self.classes) and (_kind(self.classes) != _kind(found)):
            raise InputError(
                f"labels are {_kind(found)} now and were {_kind(self.classes)} before, such as {self._all[0]!r}; "
                "use one kind"
            )
        known = set(self._all)
        self._all += [label for label in found.tolist() if label not in known]
        self.classes = np.union1d(self.classes, found) if len(self.classes) else found
        return found

    def add(self, task: str, values: NDArray[Any]) -> bool:
        """Add these labels to a task; True if its head is new or grows."""
        found = self.meet(values)
        own = self._of.get(task)
        new = [label for label in found.tolist() if own is None or label not in own]
        if own is not None and not new:
            return False
        self._of[task] = list(self._all) if self.shared else [*(own or []), *new]
        return True

    def outputs(self, task: str | None, y: NDArray[Any]) -> Tensor:
        """Labels as outputs of a task's head, [n] int64; all must have been added.

        Without a task, labels are numbered in order of arrival.
        """
        number = {label: i for i, label in enumerate(self._all if task is None else self._of[task])}
        values, inverse = np.unique(y, return_inverse=True)
        return torch.from_numpy(np.array([number[v] for v in values.tolist()], dtype=np.int64)[inverse])

    def numbers(self, task: str) -> list[int]:
        """The labels of a task's outputs, as numbers in order of arrival."""
        number = {label: i for i, label in enumerate(self._all)}
        return [number[label] for label in self._of[task]]

    def named(self, numbers: Tensor) -> NDArray[Any]:
        """The labels with these numbers in order of arrival."""
        labels: NDArray[Any] = self.classes[self.all_columns()[numbers.cpu().numpy()]]
        return labels

    def columns(self, task: str) -> NDArray[np.int64]:
        """The index in `classes` of the label of each output of a task's head."""
        place = {label: i for i, label in enumerate(self.classes.tolist())}
        return np.array([place[label] for label in self._of[task]], dtype=np.int64)

    def all_columns(self) -> NDArray[np.int64]:
        """The index in `classes` of each label, in order of arrival: the outputs of one head for all labels."""
        place = {label: i for i, label in enumerate(self.classes.tolist())}
        return np.array([place[label] for label in self._all], dtype=np.int64)

    def as_json(self) -> dict[str, Any]:
        """The whole book as JSON values."""
        tasks = [[name, labels] for name, labels in self._of.items()]
        return {"shared": self.shared, "dtype": self.classes.dtype.str, "all": self._all, "tasks": tasks}

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> ClassBook:
        """The book whose `as_json` is `content`; ValueError or TypeError if it is not one."""
        labels = [_label(value) for value in content["all"]]
        tasks = {str(name): [_label(value) for value in own] for name, own in content["tasks"]}
        if len(tasks) != len(content["tasks"]) or any(set(own) - set(labels) for own in tasks.values()):
            raise ValueError("labels and tasks do not agree")
        book = cls(shared=bool(content["shared"]), labels=labels, tasks=tasks)
        book.classes = np.unique(np.array(labels, dtype=np.dtype(str(content["dtype"]))))
        if len(book.classes) != len(labels):
            raise ValueError("labels are given twice")
        return book


def _kind(values: NDArray[Any]) -> str:
    return "numbers" if values.dtype.kind in "iubf" else "strings"


def _label(value: object) -> Label:
    if not isinstance(value, Label):
        raise TypeError(f"{value!r} is not a label")
    return value


class FoundTasks(BoundaryFinder):
    """Finds the tasks of an estimator, whose labels have names."""

    def __init__(self, estimator: ContinualClassifier, detection: Detection) -> None:
        """For a fitted estimator or one that is being fitted."""
        super().__init__(estimator.learner_, detection)
        self._estimator = estimator

    def open(self, task: str, y: Tensor) -> None:
        """Begin a task, unless it is open and has room for these labels."""
        self._estimator.begin(task, self._estimator.labels_.named(y))

    def outputs(self, task: str) -> list[int]:
        """The labels of the outputs of a task's head, as numbers in order of arrival."""
        book = self._estimator.labels_
        return super().outputs(task) if book.shared else book.numbers(task)

    def targets(self, task: str, y: Tensor) -> Tensor:
        """Labels as the learner takes them."""
        book = self._estimator.labels_
        return y if book.shared else book.outputs(task, book.named(y))


# ---- the argument `task`: None, one name for all samples, or one per sample ------------------------------------------
def name_to_learn(task: Any, seen: list[str], *, boundaries: bool) -> str:
    """The task of training data without a task per sample: the one named, else the only one seen.

    Without `boundaries`, the data is a stream without tasks.
    """
    if not boundaries:
        if task is not None and seen:
            raise InputError(
                "the first samples came without a task, so this is a stream without tasks; leave task out, or name "
                "tasks from the start"
            )
        return STREAM
    if task is not None:
        return _name(task)
    if len(seen) > 1:
        raise InputError(f"several tasks were seen ({_listed(seen)}); say which one this is, task=...")
    return seen[0] if seen else DEFAULT


def groups_to_learn(
    task: Any, samples: int, seen: list[str], *, boundaries: bool
) -> list[tuple[str, NDArray[np.int64]]]:
    """The tasks of training data in order of first appearance, each with its rows."""
    if task is None or _is_one(task) or not boundaries:
        return [(name_to_learn(task, seen, boundaries=boundaries), np.arange(samples))]
    return _grouped([_name(name) for name in _each(task, samples)])


def groups_to_predict(task: Any, samples: int, seen: list[str]) -> list[tuple[str, NDArray[np.int64]]]:
    """The tasks of samples to predict, each with its rows."""
    if task is None and len(seen) > 1:
        raise InputError(
            f"several tasks were seen ({_listed(seen)}); say which one these samples are of, task=..., "
            f"or task={INFER!r} to let the model find out"
        )
    if task is None or _is_one(task):
        groups = [(seen[0] if task is None else name_of(task), np.arange(samples))]
    else:
        groups = _grouped([name_of(name) for name in _each(task, samples)])
    for name, _ in groups:
        if name not in seen:
            hint = ", the name of all that was learnt without a task; leave task out" if seen == [STREAM] else ""
            if not hint and name == AUTO:
                hint = f"; task={INFER!r} lets the model find out"
            raise UnknownTaskError(f"task {name!r} was never seen; tasks seen: {_listed(seen)}{hint}")
    return groups


def asks_to_find(task: Any) -> bool:
    """Whether `task` is "auto": tasks are found as data arrives."""
    return isinstance(task, str) and task == AUTO


def asks_to_infer(task: Any) -> bool:
    """Whether `task` is "infer": the model finds the task of each sample."""
    return isinstance(task, str) and task == INFER


def check_for_loader(task: Any) -> None:
    """Raise InputError if tasks are given per sample, where a loader decides the order of the samples."""
    if task is not None and not _is_one(task):
        raise InputError(
            "X is a loader, so its batches are of one task: give one name, or call this once for each task"
        )


def name_of(task: Any) -> str:
    """The name that a string, a number or another hashable scalar gives to a task; InputError for anything else."""
    if isinstance(task, str):
        return str(task)
    if isinstance(task, np.ndarray | Tensor) and task.ndim == 0:
        task = task.tolist() if isinstance(task, Tensor) else task[()]
    shown = " ".join(reprlib.repr(task).split())
    if _is_missing(task):
        raise InputError(f"a task is {shown}, which is no name; name every task by a string or a number")
    name = str(task)
    several = hasattr(task, "__iter__") and not isinstance(task, str | bytes)
    if several or not isinstance(task, Hashable) or name.startswith("<"):  # "<": an object that prints its address
        kind = type(task).__name__
        raise InputError(f"a task is {shown}, of type {kind}; name it by a string, a number or a hashable scalar")
    return name


def _is_missing(task: Any) -> bool:
    """Whether this is None or one of the values that are not equal to themselves: NaN, NaT and pandas' NA."""
    try:
        return task is None or bool(np.ndim(task) == 0 and task != task)
    except (TypeError, ValueError):
        return not hasattr(task, "__iter__")


def _name(task: Any) -> str:
    name = name_of(task)
    if name == INFER:
        raise InputError(f"a task cannot be called {INFER!r}: predict(..., task={INFER!r}) has the model find it")
    if name == AUTO:
        raise InputError(f"a task cannot be called {AUTO!r}: partial_fit(X, y, task={AUTO!r}) finds tasks itself")
    return name


def _is_one(task: Any) -> bool:
    return isinstance(task, str | bytes) or _shape(task) == ()


def _shape(task: Any) -> tuple[int, ...] | None:
    """None for a list of lists of different lengths."""
    try:
        shape: tuple[int, ...] = np.shape(task)
        return shape
    except ValueError:
        return None


def _each(task: Any, samples: int) -> list[Any]:
    """The elements of a list, array, tensor or column as they are, so that each names a task as it does alone."""
    shape = _shape(task)
    if shape != (samples,):
        what = "is a list of lists" if shape is None else f"has shape {list(shape)}"
        raise InputError(f"task {what}; give one name, or one for each of {samples} samples")
    return list(task)


def _grouped(names: list[str]) -> list[tuple[str, NDArray[np.int64]]]:
    array = np.array(names)
    return [(name, np.flatnonzero(array == name)) for name in dict.fromkeys(names)]


def _listed(names: list[str]) -> str:
    shown = ", ".join(map(repr, names[:20]))
    return shown + (f" and {len(names) - 20} more" if len(names) > 20 else "")
