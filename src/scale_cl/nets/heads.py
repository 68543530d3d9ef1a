"""Linear classifiers that grow: one a task (task-incremental) or one for all (domain-incremental)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from scale_cl.errors import InputError
from scale_cl.losses import NO_CLASS
from scale_cl.nets.growing_parameter import GrowingParameter, linear_rows

_FIRST = 1024  # classes that the tables of a `LabelMap` have room for at first


class Heads(nn.Module):
    """Heads as rows of one tensor, so that a batch may mix samples of all tasks."""

    missing: Tensor

    def __init__(self, width: int, *, shared: bool, xavier: bool, capacity: int = 32) -> None:
        """No head yet; `shared` keeps one head for all tasks."""
        super().__init__()
        self.shared, self.xavier, self.width = shared, xavier, width
        self.weight = GrowingParameter((0, width), 1 if shared else capacity)
        self.bias = GrowingParameter((0,), 1 if shared else capacity)
        self.classes: list[int] = []  # of each head
        self.register_buffer("missing", torch.zeros(len(self.weight.data), 0), persistent=False)
        self.ragged = False  # whether heads differ in width

    def ensure(self, task: int, classes: int, *, generator: torch.Generator) -> None:
        """Give `task` a head of `classes` outputs, or enlarge the one it has."""
        head = 0 if self.shared else task
        old = self.classes[head] if head < len(self.classes) else 0
        if classes <= old:
            return
        with torch.no_grad():
            if classes > self.bias.data.shape[1]:
                self.weight.reshape(1, (classes, self.width))
                self.bias.reshape(1, (classes,))
            if head == len(self.classes):
                self.weight.add(self.weight.data.new_zeros(1, *self.weight.data.shape[1:]))
                self.bias.add(self.bias.data.new_zeros(1, *self.bias.data.shape[1:]))
                self.classes.append(0)
            weight, bias = linear_rows((classes - old,), self.width, xavier=self.xavier, generator=generator)
            self.weight.data[head, old:classes] = weight.to(self.weight.data)
            self.bias.data[head, old:classes] = bias.to(self.bias.data)
            self.classes[head] = classes
        self.refresh()

    def alone(self, task: int) -> nn.Linear:
        """A copy of the head of `task`, as a layer."""
        number = 0 if self.shared else task
        classes = self.classes[number]
        head = nn.Linear(self.width, classes, device="meta")
        head.weight = nn.Parameter(self.weight.data[number, :classes].detach().clone())
        head.bias = nn.Parameter(self.bias.data[number, :classes].detach().clone())
        return head

    def clear(self) -> None:
        """No head any more: for a state that brings its own."""
        self.weight.clear((0, self.width))
        self.bias.clear((0,))
        self.classes = []

    def refresh(self) -> None:
        """Recompute which outputs do not exist."""
        shape = self.bias.data.shape
        classes = torch.zeros(shape[0], 1)
        classes[: len(self.classes), 0] = torch.tensor(self.classes, dtype=torch.float32)
        missing = torch.where(torch.arange(shape[1]) < classes, 0.0, NO_CLASS).to(self.bias.data)
        if missing.shape == self.missing.shape and self.missing.device == missing.device:
            self.missing.copy_(missing)
        else:
            self.missing = missing
        self.ragged = len(set(self.classes)) > 1

    def forward(self, features: Tensor, task: Tensor) -> Tensor:
        """Logits [B, widest head] of each sample's own head; -inf where that head has no such class."""
        if self.shared:
            return F.linear(features, self.weight.data.flatten(0, 1), self.bias.data.flatten())
        weight = F.embedding(task, self.weight.data.flatten(1)).view(len(features), -1, self.width)
        bias = F.embedding(task, self.bias.data)
        logits = torch.baddbmm(bias.unsqueeze(2), weight, features.unsqueeze(2)).squeeze(2)
        return logits + F.embedding(task, self.missing) if self.ragged else logits


class LabelMap:
    """Scenario `class` where heads belong to tasks: which task's head has a class, and at which of its outputs.

    Labels count all classes in order of arrival. A learner whose parameters belong to tasks is trained task by task:
    the label of a sample is translated into the task that brought its class and the output of that task's head.
    """

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
