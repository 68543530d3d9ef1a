"""Streams from arrays in memory: training inputs and labels, and perhaps test inputs and labels, for each task."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from scale_cl.errors import InputError, StreamError
from scale_cl.streams.assembly import as_rows, assemble, check_samples, shuffled
from scale_cl.streams.stream import Arrays, Scenario, Stream, Task

Layout = Literal["auto", "NHWC", "NCHW"]
Label = int | str
_PARTS = ("x_train", "y_train", "x_test", "y_test")


def from_arrays(
    tasks: Sequence[Sequence[Any]],
    *,
    scenario: Scenario = "task",
    names: Sequence[str] | None = None,
    classes: Sequence[Label] | None = None,
    layout: Layout = "auto",
    pixel_max: float = 255.0,
    shuffle: bool = True,
    seed: int = 0,
    name: str = "arrays",
) -> Stream:
    """A stream from one group `(x_train, y_train, x_test, y_test)` of numpy arrays or tensors per task.

    Groups `(x_train, y_train)` make a stream without test samples, which is judged by prequential accuracy alone.

    Args:
        tasks: one group per task; inputs are uint8 images [N, H, W], [N, H, W, C] or [N, C, H, W], or float features
            [N, F]; labels are integers or strings.
        scenario: "task": each task has a head for its own classes; "domain": all tasks have the same classes and share
            one head; "class": one head for all classes, numbered in the order in which tasks bring them.
        names: names of the tasks; by default task-1, task-2, ...
        classes: all possible labels in the order of the head; by default those of the training data, sorted. In
            scenario class, the order among the classes that come with the same task.
        layout: layout of images with four dimensions; "auto" takes the dimension of size 1, 3 or 4 for the channels.
        pixel_max: largest pixel value; pixels are divided by it.
        shuffle: False: samples arrive in the order of the arrays.
        seed: decides the order of arrival.
        name: name of the stream.
    """
    called = [f"task-{k + 1}" for k in range(len(tasks))] if names is None else list(names)
    if not tasks or len(called) != len(tasks):
        raise StreamError(f"there are {len(tasks)} tasks and {len(called)} names; there must be as many, at least one")
    groups = [_group(task, called[k], layout) for k, task in enumerate(tasks)]
    return from_labels(
        (_joined([g[0] for g in groups], called), _joined([g[2] for g in groups], called)),
        [(g[1], g[3]) for g in groups],
        called,
        scenario=scenario,
        classes=classes,
        pixel_max=None if groups[0][0].ndim == 2 else pixel_max,
        shuffle=shuffle,
        seed=seed,
        name=name,
    )


def from_labels(
    inputs: tuple[Tensor, Tensor],
    labels: Sequence[tuple[NDArray[Any], NDArray[Any]]],
    names: Sequence[str],
    *,
    scenario: Scenario,
    classes: Sequence[Label] | None = None,
    pixel_max: float | None = 255.0,
    shuffle: bool = True,
    window: int | None = None,
    seed: int = 0,
    name: str,
    files: str = "",
    unread: Sequence[int] | None = None,
) -> Stream:
    """A stream from training and test inputs of all tasks, in order, and the training and test labels of each task.

    `unread` counts the training samples of each task that were left out because they could not be read.
    """
    if scenario not in get_args(Scenario):
        raise StreamError(f"scenario is {scenario!r}; it must be 'task', 'domain' or 'class'")
    check_samples(names, [(len(train), len(test)) for train, test in labels])
    heads = _Classes(labels, names, classes)
    y_train, y_test = (torch.cat([as_rows(heads.indices(pair[part])) for pair in labels]) for part in (0, 1))
    arrays = Arrays(inputs[0], y_train, inputs[1], y_test, heads.names, pixel_max, files=files)
    made, train_start, test_start = [], 0, 0
    for k, (train, test) in enumerate(labels):
        rows = np.arange(train_start, train_start + len(train))
        tested = np.arange(test_start, test_start + len(test))
        head = heads.names if scenario == "domain" else heads.of(train)
        arriving = shuffled(rows, seed, k, window) if shuffle else as_rows(rows)
        made.append(Task(names[k], head, arriving, as_rows(tested), unread=0 if unread is None else unread[k]))
        train_start, test_start = train_start + len(train), test_start + len(test)
    return assemble(name, scenario, seed, arrays, made)


Group = tuple[Tensor, NDArray[Any], Tensor, NDArray[Any]]


def _group(task: Sequence[Any], name: str, layout: Layout) -> Group:
    """The four parts of a task, checked and converted; those of the test are empty if only two are given."""
    if len(task) not in (2, 4):
        raise StreamError(
            f"task {name!r} has {len(task)} parts; it must have four: {', '.join(_PARTS)}; or the first two"
        )
    parts = []
    for part, x, y in zip(("training", "test"), task[::2], task[1::2], strict=False):
        inputs, labels = _inputs(x, f"{part} inputs of task {name!r}", layout), _labels(y, f"{part} labels of {name!r}")
        if len(inputs) != len(labels):
            raise StreamError(f"task {name!r} has {len(inputs)} {part} inputs and {len(labels)} labels; give as many")
        parts.append((inputs, labels))
    if len(task) == 2:
        parts.append((parts[0][0][:0], parts[0][1][:0]))
    return *parts[0], *parts[1]


def _inputs(x: Any, what: str, layout: Layout) -> Tensor:
    """Images [N, C, H, W] uint8, or features [N, F] float32."""
    tensor = _tensor(x, what)
    if tensor.is_floating_point() and tensor.ndim == 2:
        return tensor.to(torch.float32)
    if tensor.dtype != torch.uint8 or tensor.ndim not in (3, 4):
        raise StreamError(
            f"the {what} are {tensor.dtype} of shape {list(tensor.shape)}; "
            "give uint8 images [N, H, W], [N, H, W, C] or [N, C, H, W], or float features [N, F]"
        )
    if tensor.ndim == 3:
        return tensor.unsqueeze(1)
    try:
        last = channels_last(tuple(tensor.shape), layout, f"the {what}")
    except InputError as error:
        raise StreamError(str(error)) from None
    return tensor.permute(0, 3, 1, 2) if last else tensor


def _tensor(x: Any, what: str) -> Tensor:
    if isinstance(x, Tensor):
        return x.detach().cpu()
    try:
        array = np.asarray(x)
        return torch.from_numpy(np.array(array, dtype=array.dtype.newbyteorder("=")))  # always a copy
    except (TypeError, ValueError) as error:
        raise StreamError(f"the {what} are not an array of numbers: {str(error).splitlines()[0]}") from error


def channels_last(shape: tuple[int, ...], layout: Layout, what: str = "images") -> bool:
    """Whether images of this shape have their channels last; "auto" takes the side of size 1, 3 or 4."""
    if layout != "auto":
        if layout not in ("NHWC", "NCHW"):
            raise InputError(f"layout is {layout!r}; it must be 'auto', 'NHWC' or 'NCHW'")
        return layout == "NHWC"
    first, last = shape[1] in (1, 3, 4), shape[3] in (1, 3, 4)
    if first == last:
        raise InputError(f"{what} have shape {list(shape)}, channels first or last? Give layout='NHWC' or 'NCHW'")
    return last


def _labels(y: Any, what: str) -> NDArray[Any]:
    array = np.asarray(y.detach().cpu() if isinstance(y, Tensor) else y)
    if array.dtype == object and all(isinstance(v, str) for v in array.flat):
        array = array.astype(str)
    if array.size == 0:
        array = array.astype(np.int64)  # an empty list has no type; `from_labels` reports the empty task
    if array.ndim != 1 or array.dtype.kind not in "iubUT":
        raise StreamError(f"the {what} are {array.dtype} of shape {list(array.shape)}; give [N] integers or strings")
    if array.dtype.kind == "b":
        return array.astype(np.int64)
    return array.astype(str) if array.dtype.kind == "T" else array


def _joined(parts: list[Tensor], names: list[str]) -> Tensor:
    for part, name in zip(parts, names, strict=True):
        if part.shape[1:] != parts[0].shape[1:] or part.dtype != parts[0].dtype:
            raise StreamError(
                f"inputs of task {name!r} are {part.dtype} of shape {list(part.shape[1:])} each, those of "
                f"{names[0]!r} {parts[0].dtype} of {list(parts[0].shape[1:])}; they must agree"
            )
    return torch.cat(parts).contiguous()


class _Classes:
    """All labels of the stream and the classes of each task's head."""

    def __init__(
        self, labels: Sequence[tuple[NDArray[Any], NDArray[Any]]], tasks: Sequence[str], classes: Sequence[Label] | None
    ) -> None:
        if len({"U" if y.dtype.kind == "U" else "i" for pair in labels for y in pair if len(y)}) > 1:
            raise StreamError("some labels are integers and some strings; give one or the other")
        seen = sorted({label for train, _ in labels for label in np.unique(train).tolist()})
        self.values: list[Label] = seen if classes is None else list(classes)
        self.index = {value: i for i, value in enumerate(self.values)}
        self.names = tuple(str(value) for value in self.values)
        for (train, test), task in zip(labels, tasks, strict=True):
            for part, y in (("training", train), ("test", test)):
                if strangers := [label for label in np.unique(y).tolist() if label not in self.index]:
                    what = f"{part} label {strangers[0]!r} of task {task!r}"
                    if classes is not None:
                        raise StreamError(f"{what} is outside the head: it is not one of `classes`")
                    raise StreamError(f"{what} occurs in no training data; train on it or leave it out")

    def indices(self, y: NDArray[Any]) -> NDArray[np.int64]:
        """Index of each label in `names`."""
        values, inverse = np.unique(y, return_inverse=True)
        return np.array([self.index[v] for v in values.tolist()], dtype=np.int64)[inverse]

    def of(self, y: NDArray[Any]) -> tuple[str, ...]:
        """The class names of a task with training labels `y`."""
        return tuple(self.names[i] for i in sorted({self.index[v] for v in np.unique(y).tolist()}))
