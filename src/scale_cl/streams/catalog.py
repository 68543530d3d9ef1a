"""All streams by name: the paper's protocol with the data sets behind it, and streams from outside this package."""

from __future__ import annotations

import difflib
import os
import threading
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from scale_cl.errors import ConfigError, DataError
from scale_cl.streams.assembly import assemble
from scale_cl.streams.builders import Order, by_domain, class_permutation, held_out, permuted, split
from scale_cl.streams.sources.cifar import CIFAR10, CIFAR100
from scale_cl.streams.sources.image_layouts import CORE50, CORE50_CATEGORIES, Cub, TinyImageNet
from scale_cl.streams.sources.mini_imagenet import MiniImageNet
from scale_cl.streams.sources.mnist import Digits, Mnist
from scale_cl.streams.sources.source import Progress, Resizable, Source, data_root
from scale_cl.streams.stream import Arrays, Boundaries, Scenario, Stream
from scale_cl.streams.user_streams import OUTSIDE, describe_outside, is_outside, load_outside, size_outside

Part = Literal["continual", "search", "all"]
# default: the entry's; natural: the data set's; seed: another for each seed of the stream; n: RandomState(n), which
# from 3 on leaves the classes of the tasks kept for search where the default order has them
ClassOrder = int | Literal["default", "natural", "seed"]
_SEARCH_KEPT_FROM = 3  # the first of these orders; 0 to 2 permute all classes
_HELD_OUT = 5  # of so many training images of a search task, one is held out to score on
StreamScenario = Scenario | Literal["default"]


@dataclass(frozen=True)
class Entry:
    """One row of the protocol table."""

    source: str  # name of the data set; empty for a stream from outside
    text: str
    search: int  # first tasks, used for hyper-parameter search only
    continual: int
    train: int  # images per task
    test: int
    classes_per_task: int = 0  # 0: every task has all classes
    first_classes: int = 0  # of the first task, if it has another number
    class_order: int | Literal["natural"] = "natural"  # default class order of a split stream
    channels: int = 3  # of its images
    by_domain: bool = False  # tasks with all classes are the data set's domains, not permutations
    uneven: bool = False  # tasks differ in size; train and test are means

    @property
    def tasks(self) -> int:
        """Number of tasks of both parts."""
        return self.search + self.continual

    def train_of(self, part: str) -> int:
        """Training images per task of a part; tasks of split streams give some up to be scored on in search."""
        return self.train - self.train // _HELD_OUT if part == "search" and self.classes_per_task else self.train

    @property
    def scenarios(self) -> tuple[Scenario, ...]:
        """The scenarios that the stream may have, its default first."""
        return ("task", "class") if self.classes_per_task else ("domain",)


_ALL = (Digits(), Mnist(), CIFAR10, CIFAR100, MiniImageNet(), TinyImageNet(), Cub(), CORE50, CORE50_CATEGORIES)
SOURCES: dict[str, Source] = {source.name: source for source in _ALL}
"""All data sets by name."""

ENTRIES = {
    "digits": Entry("digits", "scikit-learn's 8x8 digits, pixels permuted", 3, 10, 1000, 500, channels=1),
    "pmnist": Entry("mnist", "MNIST, pixels permuted", 3, 20, 1000, 1000, channels=1),
    "scifar10": Entry("cifar10", "CIFAR-10, 2 classes per task", 0, 5, 10000, 2000, 2),
    "scifar100": Entry("cifar100", "CIFAR-100, 5 classes per task", 3, 17, 2500, 500, 5, class_order=0),
    "sminiimagenet": Entry("mini-imagenet", "mini-ImageNet, 5 classes per task", 3, 17, 2400, 600, 5, class_order=0),
    "split-digits": Entry(
        "digits", "scikit-learn's 8x8 digits, 2 classes per task", 0, 5, 259, 100, 2, channels=1, uneven=True
    ),
    "stinyimagenet": Entry("tiny-imagenet", "Tiny-ImageNet, 10 classes per task", 0, 20, 5000, 500, 10, class_order=0),
    "scub200": Entry(
        "cub-200", "CUB-200-2011 at 84x84, 20 classes per task", 0, 10, 599, 579, 20, class_order=0, uneven=True
    ),
    "core50-nc": Entry(
        "core50",
        "CORe50 at 64x64, new classes (10, then 5 per task)",
        *(0, 9, 13322, 250),
        classes_per_task=5,
        first_classes=10,
        class_order=0,
        uneven=True,
    ),
    "core50-ni": Entry(
        "core50", "CORe50 at 64x64, 50 objects in new sessions", 0, 8, 14987, 2250, by_domain=True, uneven=True
    ),
    "core50-ni10": Entry(
        "core50-10", "CORe50 at 64x64, 10 categories in new sessions", 0, 8, 14987, 2250, by_domain=True, uneven=True
    ),
}

_read: dict[tuple[str, Path, int | None], Arrays] = {}
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
    size = f"{'about ' if e.uneven else ''}{e.train} training and {e.test} test images"
    return f"{e.text}: {tasks} of {size}; scenario {' or '.join(e.scenarios)}"


def source_of(name: str) -> Source:
    """The data set of a stream of the catalog."""
    found = entry(name)
    if not found.source:
        raise ConfigError(f"{name} is a stream from outside; it has no data set of the catalog")
    return SOURCES[found.source]


def load_arrays(
    name: str,
    root: str | os.PathLike[str] | None = None,
    *,
    size: int | None = None,
    progress: Progress | None = None,
) -> Arrays:
    """The data set of a stream, read once per process, data root and size of images."""
    source = _sized(name, size)
    folder = Path() if source.embedded else data_root(root).absolute()
    with _reading:
        key = source.name, folder, size
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
    scenario: StreamScenario = "default",
    class_order: ClassOrder = "default",
    part: Part = "continual",
    tasks: int | None = None,
    boundaries: Boundaries = "told",
) -> Stream:
    """The stream `name` over `arrays`: the first `tasks` tasks of one part; the arguments are those of `load`.

    The search part is tested on training images that its tasks hold out, so that nothing is chosen by test images.
    """
    e = entry(name)
    kind = _scenario(name, scenario)
    first, count = _range(name, part)
    if tasks is not None and not 1 <= tasks <= count:
        raise ConfigError(f"tasks is {tasks}; the {part} part of {name} has {count}, so take 1 to {count}")
    count = tasks or count
    order = _order(e, class_order, seed)
    if e.classes_per_task:
        sizes = [e.first_classes or e.classes_per_task, *[e.classes_per_task] * (e.tasks - 1)]
        whole = split(arrays, classes_per_task=sizes, order=order, seed=seed, name=name)
        made = assemble(name, kind, seed, whole.arrays, whole.tasks[first : first + count])
        if part == "search":
            made = held_out(made, e.train // _HELD_OUT)
    elif e.by_domain:  # every task has all classes: a class order has no effect
        made = by_domain(arrays, seed=seed, name=name).first(count)
    else:
        more = min(e.test, len(arrays.x_train) - e.train) if part == "search" else 0  # to score on
        made = permuted(arrays, tasks=count, train=e.train + more, test=e.test, seed=seed, name=name, first_task=first)
        made = held_out(made, more) if more else made
    return replace(made, boundaries=boundaries)


def load(
    name: str,
    *,
    seed: int = 0,
    root: str | os.PathLike[str] | None = None,
    scenario: StreamScenario = "default",
    class_order: ClassOrder = "default",
    part: Part = "continual",
    tasks: int | None = None,
    size: int | None = None,
    boundaries: Boundaries = "told",
    progress: Progress | None = None,
) -> Stream:
    """The stream `name`: its data set is read and its tasks are built.

    Args:
        name: a name of `names()`, or `module:function` or `file.py:function` for a function `(seed: int) -> Stream`.
        seed: decides draws and the order of arrival.
        root: the data root; see `data_root`.
        scenario: "class" for one head for all classes, on a stream whose tasks have different classes; by default
            "task" there, and "domain" where all tasks have the same classes.
        class_order: order in which tasks get their classes: "default", "natural", the seed of another order, or "seed"
            for an order that differs between seeds. Orders from 3 on permute only the classes of continual tasks; the
            tasks kept for search have theirs of the default order.
        part: "continual", "search" (tested on held-out training images) or "all" tasks.
        tasks: number of tasks, from the first on; all by default.
        size: height and width to resize images to, where the data set has image files; by default its entry's.
        boundaries: whether learners are told where tasks begin: "told", "hidden", or "detect".
        progress: called while images are read.
    """
    if name not in ENTRIES and is_outside(name):
        if class_order != "default" or part == "search":
            raise ConfigError(f"class_order and part are for streams of the catalog; {name} has neither")
        if scenario != "default" or size is not None:
            raise ConfigError(f"the function of {name} decides scenario and size of its stream; leave them out")
        made = load_outside(name, seed=seed, tasks=tasks)
        return made if boundaries == "told" else replace(made, boundaries=boundaries)
    _range(name, part)  # check the arguments before reading a data set
    _scenario(name, scenario)
    arrays = load_arrays(name, root, size=size, progress=progress)
    kind, order = scenario, class_order
    return build(
        name, arrays, seed=seed, scenario=kind, class_order=order, part=part, tasks=tasks, boundaries=boundaries
    )


def _scenario(name: str, scenario: StreamScenario) -> Scenario:
    """The scenario of a stream; ConfigError unless the stream can have it."""
    possible = entry(name).scenarios
    if scenario == "default":
        return possible[0]
    if scenario not in possible:
        differ = "their classes" if "class" in possible else "their inputs, and all have the same classes"
        raise ConfigError(f"scenario is {scenario!r}; tasks of {name} differ in {differ}: take {' or '.join(possible)}")
    return scenario


def _sized(name: str, size: int | None) -> Source:
    """The data set of a stream, to be read at this size."""
    source = source_of(name)
    if size is None:
        return source
    if not isinstance(source, Resizable):
        raise ConfigError(f"size is {size}; the images of {name} are read at the size that they have, so leave it out")
    return source.at(size)


def _range(name: str, part: str) -> tuple[int, int]:
    """Number of the first task and number of tasks of a part."""
    e = entry(name)
    ranges = {"continual": (e.search, e.continual), "search": (0, e.search), "all": (0, e.tasks)}
    if part not in ranges:
        raise ConfigError(f"part is {part!r}; it must be continual, search or all")
    if ranges[part][1] == 0:
        raise ConfigError(f"{name} has no {part} part: all its {e.tasks} tasks are in the continual part")
    return ranges[part]


def _order(e: Entry, class_order: ClassOrder, seed: int) -> Order:
    if class_order == "default":
        return e.class_order
    if class_order == "seed":
        return seed
    if class_order == "natural":
        return "natural"
    if not isinstance(class_order, int) or isinstance(class_order, bool) or not 0 <= class_order < 2**32:
        raise ConfigError(f"class_order is {class_order!r}; it must be default, natural, seed, or a seed of at least 0")
    if class_order < _SEARCH_KEPT_FROM or not e.search or not e.classes_per_task:
        return class_order
    usual = class_permutation(e.class_order, e.tasks * e.classes_per_task)
    kept = e.search * e.classes_per_task
    others = class_permutation(class_order, len(usual) - kept)
    return [*usual[:kept].tolist(), *usual[kept:][others].tolist()]
