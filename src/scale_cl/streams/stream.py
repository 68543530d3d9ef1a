"""Streams: arrays that are stored once per device or read as they come, and tasks that index into them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

import torch
from torch import Tensor

from scale_cl.errors import StreamError, is_utf8
from scale_cl.nets.inputs import LARGEST_NUMBER
from scale_cl.streams.reading import LazyRows, ReadAhead

Scenario = Literal["task", "domain", "class"]
"""What distinguishes tasks: their classes, each task with a head of its own, the task told at prediction (task); their
inputs, with the same classes (domain); their classes, with one head for all classes seen, the task not told (class)."""

Boundaries = Literal["told", "hidden", "detect"]
"""Whether a learner is told where tasks begin and end, is not told, or a detector finds out."""


@dataclass(frozen=True)
class InputSpec:
    """What a learner must know about the inputs before the first batch."""

    shape: tuple[int, ...]  # (C, H, W) for images, (F,) for features
    pixel_max: float | None  # uint8 pixels are divided by it; None: float32 features, used as they are
    scenario: Scenario  # "task": one head per task; "domain" and "class": one head for all tasks
    boundaries: bool = True  # whether tasks are begun and ended; without, the whole stream is one task without an end


@dataclass(frozen=True)
class TaskInfo:
    """What a learner is told when a task begins."""

    name: str
    classes: int


@dataclass(frozen=True, eq=False)
class Task:
    """One task: the rows of the arrays that belong to it; `train` is in order of arrival.

    In a blurred stream `train` has the samples that arrive in the stage of this task, whatever their task; `test` has
    the samples of the task itself.
    """

    name: str
    classes: tuple[str, ...]  # names of the head's outputs, in order; scenario class: of all tasks so far
    train: Tensor  # [n] int64
    test: Tensor  # [m] int64
    permutation: Tensor | None = None  # [F] int64: pixel i of the task is pixel permutation[i] of the image
    origin: Tensor | None = None  # [n] int64: number of the task of each training sample; None: all are of this task
    unread: int = 0  # training samples that were left out when the stream was made, because they could not be read

    @property
    def info(self) -> TaskInfo:
        """Name and number of classes."""
        return TaskInfo(self.name, len(self.classes))

    def __repr__(self) -> str:
        counts = f"{len(self.classes)} classes, {len(self.train)} training and {len(self.test)} test samples"
        return f"Task({self.name!r}, {counts})"

    def to(self, device: torch.device) -> Task:
        """The same task with its indices on `device`."""
        permutation, origin = (None if t is None else t.to(device) for t in (self.permutation, self.origin))
        return replace(
            self, train=self.train.to(device), test=self.test.to(device), permutation=permutation, origin=origin
        )


@dataclass(frozen=True, eq=False)
class Arrays:
    """A data set; `on` keeps one copy per device, shared by all streams built from it.

    Inputs may be `LazyRows`, which are read when they are needed; a data set with these stays on the host.
    """

    x_train: Tensor  # [N, C, H, W] uint8 or [N, F] float32
    y_train: Tensor  # [N] int64, index into class_names
    x_test: Tensor  # [M, C, H, W] uint8 or [M, F] float32
    y_test: Tensor  # [M] int64
    class_names: tuple[str, ...]
    pixel_max: float | None
    domains: Tensor | None = None  # [N] int64: domain of each training row, such as a session, if there are any
    files: str = ""  # identifies the files behind the inputs, by their names and sizes
    _copies: dict[torch.device, Arrays] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if self._copies:  # a copy of checked arrays
            return
        _check_inputs(self.x_train, self.x_test, self.pixel_max)
        for part, x, y in (("training", self.x_train, self.y_train), ("test", self.x_test, self.y_test)):
            _check_labels(part, x, y, len(self.class_names))
        if self.domains is not None and self.domains.shape != self.y_train.shape:
            raise StreamError(f"domains have shape {list(self.domains.shape)}; give one per training row")
        if len(set(self.class_names)) != len(self.class_names):
            raise StreamError("class names must differ from one another")
        self._copies[self.x_train.device] = self

    @property
    def device(self) -> torch.device:
        """The device of the arrays."""
        return self.x_train.device

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""
        parts = (self.x_train, self.y_train, self.x_test, self.y_test)
        return sum(part.nbytes for part in parts if not isinstance(part, LazyRows))

    def on(self, device: torch.device | str) -> Arrays:
        """These arrays on `device`; always the same object for the same device."""
        if isinstance(self.x_train, LazyRows) or isinstance(self.x_test, LazyRows):
            return self
        target = torch.empty(0, device=device).device  # "cuda" becomes "cuda:0"
        if target not in self._copies:
            self._copies[target] = replace(
                self,  # shares the dict of copies
                x_train=self.x_train.to(target),
                y_train=self.y_train.to(target),
                x_test=self.x_test.to(target),
                y_test=self.y_test.to(target),
            )
        return self._copies[target]

    def __repr__(self) -> str:
        counts = f"{len(self.x_train)} training and {len(self.x_test)} test samples"
        return f"Arrays({counts} of {_size(self.x_train)}, {len(self.class_names)} classes, on {self.device})"

    def __reduce__(self) -> tuple[object, ...]:
        inputs = (self.x_train, self.y_train, self.x_test, self.y_test)
        return Arrays, (*inputs, self.class_names, self.pixel_max, self.domains, self.files)  # without other copies


@dataclass(frozen=True, eq=False)
class Arrival:
    """The samples of a task in memory, in order of arrival."""

    x: Tensor
    y: Tensor

    def __len__(self) -> int:
        return len(self.x)

    def take(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """Inputs and labels of samples `start` to `stop`."""
        return self.x[start:stop], self.y[start:stop]


@dataclass(frozen=True, eq=False)
class Stream:
    """Tasks in order of arrival, over shared arrays."""

    name: str
    scenario: Scenario
    seed: int
    tasks: tuple[Task, ...]
    arrays: Arrays
    train_labels: Tensor  # [N] int64: label of each row within its task's head; -1 if it belongs to no task
    test_labels: Tensor  # [M] int64
    boundaries: Boundaries = "told"

    def __post_init__(self) -> None:
        for what, name in (("stream", self.name), *(("task", task.name) for task in self.tasks)):
            _check_name(what, name)
        for name in {name for task in self.tasks for name in task.classes}:
            _check_name("class", name)
        if self.boundaries not in get_args(Boundaries):
            raise StreamError(f"boundaries is {self.boundaries!r}; it must be told, hidden or detect")
        if self.boundaries == "hidden" and self.scenario == "task":
            raise StreamError(
                f"hidden boundaries leave open which head a sample of {self.name} is for: "
                f"scenario {self.one_head_scenario} has one head for all tasks"
            )

    @property
    def spec(self) -> InputSpec:
        """Shape, pixel range, scenario and boundaries: what a learner is made for."""
        shape = tuple(self.arrays.x_train.shape[1:])
        return InputSpec(shape, self.arrays.pixel_max, self.scenario, self.boundaries != "hidden")

    @property
    def device(self) -> torch.device:
        """The device of the data."""
        return self.arrays.device

    @property
    def one_head_scenario(self) -> Scenario:
        """The scenario in which these tasks would have one head: `domain` if they have the same classes."""
        return "domain" if len({task.classes for task in self.tasks}) == 1 else "class"

    @property
    def has_tests(self) -> bool:
        """Whether any task has test samples."""
        return any(len(task.test) for task in self.tasks)

    def sources(self) -> list[Arrays]:
        """All arrays behind the stream."""
        return [self.arrays]

    @property
    def permutations(self) -> Tensor | None:
        """The pixel permutation of each task [T, F]; None if no task has one."""
        if all(task.permutation is None for task in self.tasks):
            return None
        same = torch.arange(self.arrays.x_train[0].numel(), device=self.device)
        return torch.stack([same if task.permutation is None else task.permutation for task in self.tasks])

    def origin(self, k: int) -> Tensor:
        """The number of the task that each training sample of stage `k` belongs to [n]: `k`, unless it is blurred."""
        task = self.tasks[k]
        return torch.full_like(task.train, k) if task.origin is None else task.origin

    def train_data(self, k: int) -> tuple[Tensor, Tensor]:
        """All training inputs and head labels of stage `k`, in order of arrival; a stage is one task unless blurred."""
        task = self.tasks[k]
        x, y = self.arrays.x_train[task.train], self.train_labels[task.train]
        permutations = None if task.origin is None else self.permutations
        if permutations is None:
            return _permuted(x, task.permutation), y
        return x.flatten(1).gather(1, permutations[task.origin]).view_as(x), y

    def test_data(self, k: int) -> tuple[Tensor, Tensor]:
        """All test inputs and head labels of task `k`."""
        task = self.tasks[k]
        return _permuted(self.arrays.x_test[task.test], task.permutation), self.test_labels[task.test]

    def arrival(self, k: int, device: torch.device) -> Arrival | ReadAhead:
        """The training samples of task `k` in order of arrival, for a learner on `device`."""
        task, x = self.tasks[k], self.arrays.x_train
        if isinstance(x, LazyRows):
            return ReadAhead(x, task.train, self.train_labels[task.train], device, permutation=task.permutation)
        return Arrival(*self.train_data(k))

    def test_batches(self, k: int, size: int, device: torch.device) -> Iterator[tuple[Tensor, Tensor]]:
        """Test inputs and head labels of task `k`, at most `size` samples at a time, for a learner on `device`."""
        rows = self.tasks[k].test
        tested = self._tested(k, rows, device)
        for start in range(0, len(rows), size):
            yield tested.take(start, start + size)

    def test_sample(self, k: int, drawn: Tensor, device: torch.device) -> tuple[Tensor, Tensor]:
        """Some test inputs and head labels of task `k`, by their place in its test set; fewer if some are skipped.

        Those that are read as they come are read in the order of the test set, in which an iterable is read once.
        """
        in_order = drawn.sort().values if isinstance(self.arrays.x_test, LazyRows) else drawn
        rows = self.tasks[k].test[in_order.to(self.device)]
        return self._tested(k, rows, device).take(0, len(rows))

    def _tested(self, k: int, rows: Tensor, device: torch.device) -> Arrival | ReadAhead:
        x, y, permutation = self.arrays.x_test, self.test_labels[rows], self.tasks[k].permutation
        if isinstance(x, LazyRows):
            return ReadAhead(x, rows, y, device, permutation=permutation)
        return Arrival(_permuted(x[rows], permutation), y)

    def to(self, device: torch.device | str) -> Stream:
        """This stream with its data on `device`; streams over the same arrays share one copy.

        Data that is read as it comes stays on the host; its batches go to the device.
        """
        arrays = self.arrays.on(device)
        if arrays is self.arrays:
            return self
        labels = [
            there if mine is here else mine.to(arrays.device)
            for mine, here, there in (
                (self.train_labels, self.arrays.y_train, arrays.y_train),
                (self.test_labels, self.arrays.y_test, arrays.y_test),
            )
        ]
        tasks = tuple(task.to(arrays.device) for task in self.tasks)
        return replace(self, tasks=tasks, arrays=arrays, train_labels=labels[0], test_labels=labels[1])

    def first(self, n: int) -> Stream:
        """A stream of the first `n` tasks."""
        if any(task.origin is not None for task in self.tasks):
            raise StreamError(f"the tasks of {self.name} are blurred: take the first {n} before blurring them")
        if not 1 <= n <= len(self.tasks):
            raise StreamError(f"{self.name} has {len(self.tasks)} tasks; the first {n} of them were asked for")
        return replace(self, tasks=self.tasks[:n])

    def __len__(self) -> int:
        return len(self.tasks)

    def __repr__(self) -> str:
        many = "1 task" if len(self) == 1 else f"{len(self)} tasks"
        return f"Stream({self.name!r}, {many}, {self.scenario}, {_size(self.arrays.x_train)})"


def _size(x: Tensor) -> str:
    """The size of one sample as text: `1 x 8 x 8`, or `64 features`."""
    sides = [str(side) for side in x.shape[1:]]
    return " x ".join(sides) if len(sides) > 1 else f"{sides[0]} features"


def _permuted(x: Tensor, permutation: Tensor | None) -> Tensor:
    return x if permutation is None else x.flatten(1)[:, permutation].reshape(x.shape)


def _check_inputs(x_train: Tensor, x_test: Tensor, pixel_max: float | None) -> None:
    images = x_train.dtype == torch.uint8 and x_train.ndim == 4
    features = x_train.dtype == torch.float32 and x_train.ndim == 2
    if not images and not features:
        raise StreamError(
            f"inputs are {x_train.dtype} of shape {list(x_train.shape)}; "
            "they must be uint8 images [N, C, H, W] or float32 features [N, F]"
        )
    if x_test.dtype != x_train.dtype or x_test.shape[1:] != x_train.shape[1:]:
        raise StreamError(
            f"test inputs are {x_test.dtype} of shape {list(x_test.shape[1:])} each, "
            f"training inputs {x_train.dtype} of {list(x_train.shape[1:])}; they must agree"
        )
    if 0 in x_train.shape[1:]:
        raise StreamError(f"inputs have shape {list(x_train.shape[1:])} each; every dimension must be at least 1")
    if images and (pixel_max is None or not 0 < pixel_max < float("inf")):
        raise StreamError(f"pixel_max is {pixel_max}; for uint8 images it must be a positive number such as 255")
    if features and pixel_max is not None:
        raise StreamError(f"pixel_max is {pixel_max}; for float32 features it must be None")
    for part, x in (("training", x_train), ("test", x_test)) if features else ():
        row = None if isinstance(x, LazyRows) else first_bad_row(x)
        if row is not None:
            raise StreamError(
                f"{part} row {row} (from 0) holds NaN, infinity or a number beyond {LARGEST_NUMBER:g}; "
                "features must be finite and smaller"
            )


def first_bad_row(x: Tensor) -> int | None:
    """The first of the rows of floats that holds NaN, infinity or a number too large to compute with."""
    if len(x) == 0 or bool(torch.linalg.vector_norm(x, torch.inf) <= LARGEST_NUMBER):
        return None
    return int((~(x.flatten(1).abs() <= LARGEST_NUMBER)).any(1).int().argmax())


def _check_name(what: str, name: str) -> None:
    """Raise StreamError if a name, of a folder perhaps, cannot be written to a result."""
    if not is_utf8(name):
        raise StreamError(f"the name of {what} {name!r} is not UTF-8 text, so no result can hold it; rename it")


def _check_labels(part: str, x: Tensor, y: Tensor, classes: int) -> None:
    if y.dtype != torch.int64 or y.shape != x.shape[:1]:
        found = f"{y.dtype} of shape {list(y.shape)}"
        raise StreamError(f"{part} labels are {found}; they must be torch.int64 of shape {[len(x)]}")
    if len(y) == 0:
        if part == "test":  # a stream may be judged by its training samples, each before it is learnt
            return
        raise StreamError(f"there are no {part} samples; at least one is needed")
    low, high = int(y.min()), int(y.max())
    if low < 0 or high >= classes:
        wrong = low if low < 0 else high
        raise StreamError(f"{part} label {wrong} is outside the head: {classes} classes take labels 0 to {classes - 1}")
