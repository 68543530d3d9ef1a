"""The named streams: which data set, how many tasks, and which of them are for search."""

from __future__ import annotations

import difflib
import os
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from scale_cl.errors import ConfigError, DataError
from scale_cl.streams.builders.assembly import assemble
from scale_cl.streams.builders.permuting import permuted
from scale_cl.streams.builders.splitting import split
from scale_cl.streams.data_root import data_root
from scale_cl.streams.progress import Progress
from scale_cl.streams.sources.registry import SOURCES
from scale_cl.streams.stream import Arrays, Stream

Part = Literal["continual", "search", "all"]
ClassOrder = int | Literal["default", "natural"]  # default: the entry's own; natural: the data set's; n: RandomState(n)


@dataclass(frozen=True)
class Entry:
    """One row of the protocol table."""

    source: str
    text: str
    search: int  # tasks that come first and serve the search of hyper-parameters only
    continual: int
    train: int  # images a task
    test: int
    classes_per_task: int = 0  # 0: a permuted stream, in which every task has all classes
    class_order: int | Literal["natural"] = "natural"  # of a split stream, unless another is asked for
    channels: int = 3  # of its images

    @property
    def tasks(self) -> int:
        """Tasks of both parts."""
        return self.search + self.continual


ENTRIES = {
    "digits": Entry("digits", "scikit-learn's 8x8 digits, pixels permuted", 3, 10, 1000, 500, channels=1),
    "pmnist": Entry("mnist", "MNIST, pixels permuted", 3, 20, 1000, 1000, channels=1),
    "scifar10": Entry("cifar10", "CIFAR-10, 2 classes a task", 0, 5, 10000, 2000, 2),
    "scifar100": Entry("cifar100", "CIFAR-100, 5 classes a task", 3, 17, 2500, 500, 5, class_order=0),
    "sminiimagenet": Entry("mini-imagenet", "mini-ImageNet, 5 classes a task", 3, 17, 2400, 600, 5, class_order=0),
}

_read: dict[tuple[str, Path], Arrays] = {}
_reading = threading.Lock()


def names() -> list[str]:
    """Names of all streams."""
    return list(ENTRIES)


def entry(name: str) -> Entry:
    """The protocol of a stream; ConfigError if there is none of that name."""
    if name not in ENTRIES:
        near = difflib.get_close_matches(name.lower(), ENTRIES, n=1, cutoff=0.6)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(ENTRIES)}"
        raise ConfigError(f"unknown stream {name!r}: {hint}")
    return ENTRIES[name]


def describe(name: str) -> str:
    """One line: what the tasks are and how many."""
    e = entry(name)
    tasks = f"{e.tasks} tasks ({e.search} search + {e.continual} continual)" if e.search else f"{e.tasks} tasks"
    return f"{e.text}: {tasks} of {e.train} training and {e.test} test images"


def load_arrays(name: str, root: str | os.PathLike[str] | None = None, *, progress: Progress | None = None) -> Arrays:
    """The data set behind a stream, read once a process for each data root."""
    source = SOURCES[entry(name).source]
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
    """The stream `name` over `arrays`: one part of it, and the first `tasks` tasks of that part."""
    e = entry(name)
    first, count = _range(name, part)
    if tasks is not None and not 1 <= tasks <= count:
        raise ConfigError(f"tasks is {tasks}; the {part} part of {name} has {count}, so take 1 to {count}")
    count = tasks or count
    if not e.classes_per_task:  # every task has all classes: a class order would mean nothing
        _order(e, class_order)
        return permuted(arrays, tasks=count, train=e.train, test=e.test, seed=seed, name=name, first_task=first)
    order = _order(e, class_order)
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
    """Read the data set of stream `name` and build it."""
    _range(name, part)  # what cannot be built is said before a data set is read
    arrays = load_arrays(name, root, progress=progress)
    return build(name, arrays, seed=seed, class_order=class_order, part=part, tasks=tasks)


def _range(name: str, part: str) -> tuple[int, int]:
    """First task and number of tasks of a part."""
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
