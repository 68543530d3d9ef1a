"""Networks that a method owns beside the common one, declared once to the engine.

A `Part` is a module with weights of its own: a generator, a discriminator. It may grow with the tasks, or be made anew
for each. `TaskModules` keeps one module per task, of any shape. A `Teacher` is a frozen copy of the common network.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from scale_cl.engine.weights import Weights
from scale_cl.nets import ContinualNet, Outputs


@dataclass(frozen=True)
class TaskShape:
    """What decides the shape of a module made for a task."""

    task: int  # its number
    classes: int
    tasks: int  # how many there are by then


class Part:
    """A module and its weights; without a module it is false, and its descend does nothing."""

    def __init__(self, module: nn.Module | None, find: Callable[[], dict[str, Tensor]] | None = None) -> None:
        """`find` looks up the parameters that belong to it; by default all of the module's."""
        self.module = module
        self.weights = Weights(find or (lambda: {} if self.module is None else dict(self.module.named_parameters())))

    def __bool__(self) -> bool:
        return self.module is not None

    def __call__(self, *inputs: Tensor) -> Tensor:
        """The module's output."""
        assert self.module is not None, "this part is absent"
        out: Tensor = self.module(*inputs)
        return out

    def descend(self, loss: Tensor, rate: float, *, clip: float = 0.0) -> None:
        """One step of plain SGD on `loss`."""
        self.weights.descend(loss, rate, clip=clip)


class TaskPart(Part):
    """A module that is made anew when another task begins; a task that continues keeps it."""

    def __init__(self, make: Callable[[TaskShape], nn.Module]) -> None:
        """`make` draws the module of a task."""
        super().__init__(None)
        self.make = make
        self.shape: TaskShape | None = None  # of the task that it was made for
        self.is_new = False  # whether the open task began with a new module

    def begin(self, shape: TaskShape) -> None:
        """Make the module of a task, unless it is there."""
        now = self.shape
        self.is_new = now is None or (now.task, now.classes) != (shape.task, shape.classes)
        if self.is_new:
            self.set(shape)

    def set(self, shape: TaskShape | None) -> None:
        """Make the module of that shape, or have none."""
        self.shape = shape
        self.module = None if shape is None else self.make(shape)
        self.weights.look_up()


class TaskModules(nn.Module):
    """One module per task, in order of arrival; only those of the open task are trained."""

    def __init__(self, make: Callable[[TaskShape], nn.Module], most: int | None = None) -> None:
        """`make` draws the module of a task; there are at most so many."""
        super().__init__()
        self._make, self.most = make, most
        self.columns = nn.ModuleList()
        self.shapes: list[TaskShape] = []

    def __len__(self) -> int:
        return len(self.columns)

    def __getitem__(self, task: int) -> nn.Module:
        return self.columns[task]

    def ensure_task(self, task: int, classes: int) -> None:
        """Make the modules of all tasks up to number `task`; earlier ones are frozen."""
        while len(self.columns) <= task:
            self.add(TaskShape(len(self.columns), classes, len(self.columns) + 1))
        for number, column in enumerate(self.columns):
            column.requires_grad_(number == task)

    def add(self, shape: TaskShape) -> None:
        """The module of one more task."""
        self.shapes.append(shape)
        self.columns.append(self._make(shape))

    def clear(self) -> None:
        """No module any more: for a state that brings its own."""
        self.columns, self.shapes = nn.ModuleList(), []


class Teacher:
    """A frozen earlier copy of the network; it predicts in evaluation mode and is never trained."""

    def __init__(self) -> None:
        """None yet."""
        self.module: ContinualNet | None = None

    def __bool__(self) -> bool:
        return self.module is not None

    def __call__(self, x: Tensor, task: Tensor) -> Outputs:
        """Outputs of prepared samples, without a graph."""
        assert self.module is not None, "no teacher was taken yet: call take"
        with torch.no_grad():
            out: Outputs = self.module(x, task)
        return out

    def take(self, net: ContinualNet) -> None:
        """Become a copy of `net`."""
        self.module = copy.deepcopy(net).eval().requires_grad_(False)
