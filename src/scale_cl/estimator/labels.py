"""Labels of any kind as outputs of heads, and back; tasks and labels are added as they come."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.utils import assert_all_finite, column_or_1d
from torch import Tensor

from scale_cl.errors import InputError

Label = int | float | str | bool


class ClassBook:
    """Which output of each task's head stands for which label.

    With `shared` there is one head: a task's outputs are the first so many of all labels, as many as there were when
    the task was last begun.
    """

    def __init__(self, *, shared: bool) -> None:
        """No task and no label yet."""
        self.shared = shared
        self._all: list[Label] = []  # in order of arrival
        self._of: dict[str, list[Label]] = {}
        self.classes: NDArray[Any] = np.empty(0)  # all labels, sorted

    @property
    def tasks(self) -> list[str]:
        """Names of the tasks seen, in order of arrival."""
        return list(self._of)

    def size(self, task: str) -> int:
        """Outputs of a task's head."""
        return len(self._of[task])

    def add(self, task: str, values: NDArray[Any]) -> bool:
        """Note that these labels occur in a task; True if its head is new or grows."""
        found = np.unique(values)
        if len(self.classes) and (_kind(self.classes) != _kind(found)):
            raise InputError(
                f"labels are {_kind(found)} now and were {_kind(self.classes)} before, such as {self._all[0]!r}; "
                "use one kind"
            )
        known = set(self._all)
        self._all += [label for label in found.tolist() if label not in known]
        self.classes = np.union1d(self.classes, found) if len(self.classes) else found
        own = self._of.get(task)
        new = [label for label in found.tolist() if own is None or label not in own]
        if own is not None and not new:
            return False
        self._of[task] = list(self._all) if self.shared else [*(own or []), *new]
        return True

    def outputs(self, task: str, y: NDArray[Any]) -> Tensor:
        """Labels of a task as outputs of its head, [n] int64; all must have been added."""
        number = {label: i for i, label in enumerate(self._of[task])}
        values, inverse = np.unique(y, return_inverse=True)
        return torch.from_numpy(np.array([number[v] for v in values.tolist()], dtype=np.int64)[inverse])

    def columns(self, task: str) -> NDArray[np.int64]:
        """Where in `classes` the label of each output of a task's head is."""
        place = {label: i for i, label in enumerate(self.classes.tolist())}
        return np.array([place[label] for label in self._of[task]], dtype=np.int64)

    def as_json(self) -> dict[str, Any]:
        """All of it as JSON values."""
        tasks = [[name, labels] for name, labels in self._of.items()]
        return {"shared": self.shared, "dtype": self.classes.dtype.str, "all": self._all, "tasks": tasks}

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> ClassBook:
        """What `as_json` was taken of."""
        book = cls(shared=bool(content["shared"]))
        book._all = [_label(value) for value in content["all"]]
        book._of = {str(name): [_label(value) for value in labels] for name, labels in content["tasks"]}
        if len(book._of) != len(content["tasks"]) or any(set(own) - set(book._all) for own in book._of.values()):
            raise ValueError("labels and tasks do not agree")
        book.classes = np.unique(np.array(book._all, dtype=np.dtype(str(content["dtype"]))))
        if len(book.classes) != len(book._all):
            raise ValueError("labels are given twice")
        return book


def read_labels(y: Any, *, name: str) -> NDArray[Any]:
    """Labels [n] as an array, checked by scikit-learn's rules; `name` is who asks."""
    if y is None:
        raise InputError(f"{name} requires y to be passed, but the target y is None")
    array = column_or_1d(y.detach().cpu().numpy() if isinstance(y, Tensor) else y, warn=True)
    if array.dtype.kind in "OT":
        if not all(isinstance(value, Label) for value in array.tolist()):
            stranger = next(v for v in array.tolist() if not isinstance(v, Label))
            raise InputError(f"Unknown label type: {stranger!r}; labels are strings or whole numbers, none missing")
        kinds = {isinstance(value, str) for value in array.tolist()}
        if len(kinds) > 1:
            raise InputError("Unknown label type: some labels are strings and some numbers; use one kind")
        if kinds == {False}:
            array = np.array(array.tolist())
        elif array.dtype.kind == "T":
            array = array.astype(object)
    if array.dtype.kind not in "iubfOU":
        raise InputError(f"Unknown label type: {array.dtype}; labels are strings or whole numbers")
    if array.dtype.kind == "f":
        assert_all_finite(array, input_name="y")
        if np.any(array != np.floor(array)):
            raise InputError("Unknown label type: continuous; labels are strings or whole numbers")
    return np.asarray(array)


def _kind(values: NDArray[Any]) -> str:
    return "numbers" if values.dtype.kind in "iubf" else "strings"


def _label(value: object) -> Label:
    if not isinstance(value, Label):
        raise TypeError(f"{value!r} is not a label")
    return value
