"""All streams by name: the paper's protocol with the data sets behind it, and streams from outside this package."""

from __future__ import annotations

import difflib
import os
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from scale_cl.errors import ConfigError, DataError
from scale_cl.streams.assembly import assemble
from scale_cl.streams.builders import permuted, split
from scale_cl.streams.sources.cifar import CIFAR10, CIFAR100
from scale_cl.streams.sources.digits import Digits
from scale_cl.streams.sources.mini_imagenet import MiniImageNet
from scale_cl.streams.sources.mnist import Mnist
from scale_cl.streams.sources.source import Progress, Source, data_root
from scale_cl.streams.stream import Arrays, Stream
from scale_cl.streams.user_streams import OUTSIDE, describe_outside, is_outside, load_outside, size_outside

Part = Literal["continual", "search", "all"]
ClassOrder = int | Literal["default", "natural"]  # default: the entry's; natural: the data set's; n: RandomState(n)


@dataclass(frozen=True)
class Entry:
    """One row of the protocol table."""

    source: str  # name of the data set; empty for a stream from outside
    text: str
    search: int  # first tasks, used for hyper-parameter search only
    continual: int
    train: int  # images per task
    test: int
    classes_per_task: int = 0  # 0: a permuted stream, whose tasks have all classes
    class_order: int | Literal["natural"] = "natural"  # default class order of a split stream
    channels: int = 3  # of its images

    @property
    def tasks(self) -> int:
        """Number of tasks of both parts."""
        return self.search + self.continual


SOURCES: dict[str, Source] = {s.name: s for s in (Digits(), Mnist(), CIFAR10, CIFAR100, MiniImageNet())}
"""All data sets by name."""

ENTRIES = {
    "digits": Entry("digits", "scikit-learn's 8x8 digits, pixels permuted", 3, 10, 1000, 500, channels=1),
    "pmnist": Entry("mnist", "MNIST, pixels permuted", 3, 20, 1000, 1000, channels=1),
    "scifar10": Entry("cifar10", "CIFAR-10, 2 classes per task", 0, 5, 10000, 2000, 2),
    "scifar100": Entry("cifar100", "CIFAR-100, 5 classes per task", 3, 17, 2500, 500, 5, class_order=0),
    "sminiimagenet": Entry("mini-imagenet", "mini-ImageNet, 5 classes per task", 3, 17, 2400, 600, 5, class_order=0),
}

_read: dict[tuple[str, Path], Arrays] = {}
_reading = threading.Lock()


def names() -> list[str]:
    """Names of all streams: ours, and installed entry points of other packages."""
    return [*ENTRIES, *(name for name in OUTSIDE.names() if name not in ENTRIES)]


def entry(name: str) -> Entry:
    """The protocol of a stream; ConfigError if there is no stream of that name."""
    if name in ENTRIES:
        OUTSIDE.check_not_taken(name)
        return ENTRIES[name]
    if is_outside(name):
        tasks, train, test = size_outside(name)
        return Entry("", describe_outside(name), 0, tasks, train, test)
    near = difflib.get_close_matches(name.lower(), names(), n=1, cutoff=0.6)
    hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(names())}"
    raise ConfigError(f"unknown stream {name!r}: {hint}")


def describe(name: str) -> str:
    """One line on the tasks of a stream."""
    if name not in ENTRIES and is_outside(name):
        return describe_outside(name)
    e = entry(name)
    tasks = f"{e.tasks} tasks ({e.search} search + {e.continual} continual)" if e.search else f"{e.tasks} tasks"
    return f"{e.text}: {tasks} of {e.train} training and {e.test} test images"


def source_of(name: str) -> Source:
    """The data set of a stream of the catalog."""
    found = entry(name)
    if not found.source:
        raise ConfigError(f"{name} is a stream from outside; it has no data set of the catalog")
    return SOURCES[found.source]


def load_arrays(name: str, root: str | os.PathLike[str] | None = None, *, progress: Progress | None = None) -> Arrays:
    """The data set of a stream, read once per process and data root."""
    source = source_of(name)
    folder = Path() if source.embedded else data_root(root).absolute()
    with _reading:
        key = source.name, folder
        if key not in _read:
            try:
                _read[key] = source.read(folder, progress)
            except OSError as error:
                raise DataError(f"{source.title} cannot be read in {folder}: {error}") from error
        return _read[key]


def build(
    name: str,
    arrays: Arrays,
    *,
    seed: int = 0,
    class_order: ClassOrder = "default",
    part: Part = "continual",
    tasks: int | None = None,
) -> Stream:
    """The stream `name` over `arrays`: the first `tasks` tasks of one part."""
    e = entry(name)
    first, count = _range(name, part)
    if tasks is not None and not 1 <= tasks <= count:
        raise ConfigError(f"tasks is {tasks}; the {part} part of {name} has {count}, so take 1 to {count}")
    count = tasks or count
    order = _order(e, class_order)
    if not e.classes_per_task:  # every task has all classes: a class order has no effect
        return permuted(arrays, tasks=count, train=e.train, test=e.test, seed=seed, name=name, first_task=first)
    whole = split(arrays, classes_per_task=e.classes_per_task, order=order, seed=seed, name=name)
    return assemble(name, "task", seed, whole.arrays, whole.tasks[first : first + count])


def load(
    name: str,
    *,
    seed: int = 0,
    root: str | os.PathLike[str] | None = None,
    class_order: ClassOrder = "default",
    part: Part = "continual",
    tasks: int | None = None,
    progress: Progress | None = None,
) -> Stream:
    """The stream `name`: its data set is read and its tasks are built.

    Args:
        name: a name of `names()`, or `module:function` or `file.py:function` for a function `(seed: int) -> Stream`.
        seed: decides draws and the order of arrival.
        root: the data root; see `data_root`.
        class_order: order in which tasks get their classes: "default", "natural" or the seed of another order.
        part: "continual", "search" or "all" tasks.
        tasks: number of tasks, from the first on; all by default.
        progress: called while images are read.
    """
    if name not in ENTRIES and is_outside(name):
        if class_order != "default" or part == "search":
            raise ConfigError(f"class_order and part are for streams of the catalog; {name} has neither")
        return load_outside(name, seed=seed, tasks=tasks)
    _range(name, part)  # check the arguments before reading a data set
    arrays = load_arrays(name, root, progress=progress)
    return build(name, arrays, seed=seed, class_order=class_order, part=part, tasks=tasks)


def _range(name: str, part: str) -> tuple[int, int]:
    """Number of the first task and number of tasks of a part."""
    e = entry(name)
    ranges = {"continual": (e.search, e.continual), "search": (0, e.search), "all": (0, e.tasks)}
    if part not in ranges:
        raise ConfigError(f"part is {part!r}; it must be continual, search or all")
    if ranges[part][1] == 0:
        raise ConfigError(f"{name} has no {part} part: all its {e.tasks} tasks are in the continual part")
    return ranges[part]


def _order(e: Entry, class_order: ClassOrder) -> int | Literal["natural"]:
    if class_order == "default":
        return e.class_order
    if class_order == "natural":
        return "natural"
    if isinstance(class_order, int) and not isinstance(class_order, bool) and 0 <= class_order < 2**32:
        return class_order
    raise ConfigError(f"class_order is {class_order!r}; it must be default, natural, or a seed of at least 0")
