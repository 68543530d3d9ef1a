"""Scenario `class` where heads belong to tasks: which task's head has a class, and at which of its outputs.

Labels count all classes in order of arrival. A learner whose parameters belong to tasks is trained task by task: the
label of a sample is translated into the task that brought its class and the output of that task's head.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from scale_cl.errors import InputError

_FIRST = 1024  # classes that the tables have room for at first


class LabelMap:
    """The task and output of each label."""

    def __init__(self, device: torch.device) -> None:
        """No label yet."""
        self.owners: list[int] = []  # number of the task that brought each class, in order of arrival
        self._table = torch.zeros(2, _FIRST, dtype=torch.int64, device=device)  # task and output by label

    def check(self, task: int, classes: int) -> None:
        """If there are `classes` classes now, the task has one of them."""
        if task not in self.owners and classes <= len(self.owners):
            raise InputError(
                "a task brings no new class, and this learner has a head per task; take scenario domain, or a learner "
                "with one head for all classes"
            )

    def extend(self, task: int, classes: int) -> int:
        """There are `classes` classes now, new ones are the task's; returns how many are the task's in all."""
        self.set([*self.owners, *[task] * (classes - len(self.owners))])
        return self.owners.count(task)

    def set(self, owners: Sequence[int]) -> None:
        """Take these owners, in place where they fit: recorded steps refer to the table."""
        self.owners = list(owners)
        if len(self.owners) > self._table.shape[1]:
            self._table = torch.zeros(2, 2 * len(self.owners), dtype=torch.int64, device=self._table.device)
        count: dict[int, int] = {}
        outputs = []
        for owner in self.owners:
            outputs.append(count.get(owner, 0))
            count[owner] = outputs[-1] + 1
        self._table[:, : len(self.owners)] = torch.tensor([self.owners, outputs], dtype=torch.int64)

    def of(self, task: int) -> list[int]:
        """The labels of a task, in the order of its head's outputs."""
        return [label for label, owner in enumerate(self.owners) if owner == task]

    def translated(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """Tasks and outputs of labels: device work only."""
        task, output = self._table[:, y].unbind()
        return task, output

    @property
    def place(self) -> int:
        """Where the table lies."""
        return self._table.data_ptr()
