"""Streams from the data sets of other libraries, such as torchvision's and Hugging Face's.

A data set has a length and items, or is an iterable; items are (image, label) or dicts with both. None of these
libraries is imported.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scale_cl.errors import DataError, StreamError, one_line
from scale_cl.streams.builders import split
from scale_cl.streams.dataset_items import ItemFormat, Iterated, IteratedItems, MapItems, is_iterable
from scale_cl.streams.from_arrays import Label, from_arrays, from_labels
from scale_cl.streams.keeping import Keep, Reading
from scale_cl.streams.reading import LazyRows, OnError
from scale_cl.streams.stream import Scenario, Stream

NO_TEST: tuple[()] = ()  # in place of a test data set
WINDOW = 1000  # samples of an iterable within which the order of arrival is shuffled, by default


def from_dataset(
    tasks: Any,
    test: Any = None,
    *,
    classes_per_task: int | None = None,
    scenario: Scenario = "task",
    names: Sequence[str] | None = None,
    image: str | None = None,
    label: str | None = None,
    size: int | tuple[int, int] | None = None,
    shuffle: bool = True,
    seed: int = 0,
    name: str = "datasets",
    keep: Keep | int = "auto",
    workers: int | None = None,
    on_error: OnError = "stop",
    window: int | None = None,
    classes: Sequence[Label] | Sequence[Sequence[Label]] | None = None,
    lengths: Sequence[tuple[int, int]] | None = None,
) -> Stream:
    """A stream from data sets whose items are (image, label) or dicts with an image and a label.

    `from_dataset([(train, test), ...])` makes one task per pair; `from_dataset(train, test, classes_per_task=5)`
    splits the classes of one pair over tasks. If every test data set is None, the stream has no test samples and is
    judged by prequential accuracy alone.

    Iterables, such as Hugging Face's streaming data sets, are read as they come. They go in pairs, must start anew with
    every `iter()`, and need `classes` and `lengths`; their samples are shuffled within windows.

    Args:
        tasks: pairs of training and test data sets, or one training data set.
        test: the test data set that belongs to the one training data set, if there is one.
        classes_per_task: number of classes per task if one data set is split; it must divide the number of classes.
        scenario: "task": each task has a head for its own classes; "domain": all tasks share one head; "class": one
            head for all classes, numbered in the order in which tasks bring them.
        names: names of the tasks, for pairs; by default task-1, task-2, ...
        image: field of a dict that holds the image; by default "image", "img", "x" or "pixel_values".
        label: field of a dict that holds the label; by default "label", "labels", "fine_label" or "y".
        size: height and width to resize PIL images to; by default all images must have the same size.
        shuffle: False: samples arrive in the order of the data sets, for pairs.
        seed: decides the order of arrival.
        name: name of the stream.
        keep: "memory": read all items now; "disk": read each when it is needed; "auto": memory if they take less than
            half of the free memory, never for iterables; a number: memory if they take at most so many bytes.
        workers: processes that read items when they are needed; 0: a thread of this process; by default one per core,
            at most eight, and one for iterables.
        on_error: for an item that cannot be read when it is needed, and for samples that an iterable lacks: "stop" with
            an error, or "skip" them with a warning.
        window: shuffle only within each so many consecutive samples of a task; 1000 for iterables by default.
        classes: of iterables: the labels of all tasks, or one list of labels per task, as scenario "class" needs.
        lengths: of iterables: numbers of training and test samples, one pair per task; by default their `len()`. Those
            of a test data set that is None are ignored.
    """
    if test is not None and classes_per_task is None:
        raise StreamError("classes_per_task splits the classes of one training and one test data set; give all or none")
    pairs = list(tasks) if classes_per_task is None else [(tasks, test)]
    if any(not isinstance(pair, list | tuple) or len(pair) != 2 for pair in pairs):
        raise StreamError("give pairs of data sets [(train, test), ...], or one pair: from_dataset(train, test)")
    if classes_per_task is not None and scenario == "domain":
        raise StreamError(f"scenario is {scenario!r}; tasks of different classes are of scenario 'task' or 'class'")
    pairs = [(train, NO_TEST if tested is None else tested) for train, tested in pairs]
    how, reading = ItemFormat(image, label, size), Reading(keep, workers, on_error, window)
    called = [f"task-{k + 1}" for k in range(len(pairs))] if names is None else list(names)
    if not pairs or len(called) != len(pairs):
        raise StreamError(f"there are {len(pairs)} tasks and {len(called)} names; there must be as many, at least one")
    if once := [part for pair in pairs for part in pair if isinstance(part, Iterator)]:
        advice = "it can be iterated once only, give an object whose __iter__ starts anew"
        raise StreamError(f"a {type(once[0]).__name__} is no data set: {advice}")
    if any(is_iterable(dataset) for pair in pairs for dataset in pair):
        if keep == "memory":
            _check_lengths(lengths, len(pairs))
            pairs = [
                tuple(
                    _all_items(part, _what(i, called[k]), None if lengths is None else lengths[k][i])
                    if is_iterable(part)
                    else part
                    for i, part in enumerate(pair)
                )
                for k, pair in enumerate(pairs)
            ]
        elif classes_per_task is not None:
            raise StreamError(
                "the classes of an iterable cannot be split over tasks; give one pair of iterables per task"
            )
        else:
            options: dict[str, Any] = {"scenario": scenario, "shuffle": shuffle, "seed": seed, "name": name}
            return _iterated(pairs, called, how, reading, classes, lengths, **options)
    elif classes is not None or lengths is not None:
        raise StreamError("classes and lengths are for iterables; other data sets know theirs")
    shape, size_in_memory = _measured(pairs, how, on_error)
    if reading.in_memory(size_in_memory):
        if on_error == "skip":
            raise StreamError("on_error='skip' needs items that are read as they come; leave keep='memory' out")
        made = _in_memory(pairs, how)
        layout: Any = "NCHW" if made[0][0].ndim == 4 else "auto"
        stream = from_arrays(
            made, scenario=scenario, names=called, layout=layout, shuffle=shuffle, seed=seed, name=name
        )
    else:
        source = MapItems([pair[part] for part in (0, 1) for pair in pairs], how, shape)
        middle, end = (sum(len(pair[part]) for pair in pairs) for part in (0, 1))
        readers = reading.readers(source)
        stream = from_labels(
            (LazyRows(readers, 0, middle), LazyRows(readers, middle, end)),
            [(_labels(train, how, k), _labels(test, how, len(pairs) + k)) for k, (train, test) in enumerate(pairs)],
            called,
            scenario=scenario,
            pixel_max=255.0 if len(shape) == 3 else None,
            shuffle=shuffle,
            window=window,
            seed=seed,
            name=name,
        )
    if classes_per_task is None:
        return stream
    return split(stream.arrays, classes_per_task=classes_per_task, scenario=scenario, seed=seed, name=name)


def _measured(pairs: Sequence[Any], how: ItemFormat, on_error: OnError) -> tuple[tuple[int, ...], int]:
    """The shape of the first item that can be read, and the bytes of all items if they are like it."""
    for dataset in (dataset for pair in pairs for dataset in pair):
        if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
            raise StreamError(f"a {type(dataset).__name__} is no data set: it must have a length and items, or iterate")
        if len(dataset) == 0 and dataset is not NO_TEST:
            raise StreamError("a data set is empty; give samples, or None for the test data sets of all tasks")
    first = _first([train for train, _ in pairs], how, on_error)
    return first.shape, math.prod(first.shape) * first.itemsize * sum(len(part) for pair in pairs for part in pair)


def _first(datasets: Sequence[Any], how: ItemFormat, on_error: OnError) -> NDArray[Any]:
    """The input of the first item; where errors are skipped, of the first that can be read."""
    problem: StreamError | DataError | None = None
    for number, i in ((number, i) for number, dataset in enumerate(datasets) for i in range(len(dataset))):
        try:
            return how.item(datasets[number], i, number)[0]
        except (StreamError, DataError) as error:
            problem = problem or error
            if on_error == "stop":
                break
    assert problem is not None  # no data set is empty
    raise problem


def _in_memory(pairs: Sequence[Any], how: ItemFormat) -> list[tuple[NDArray[Any], ...]]:
    """For each pair x_train, y_train, and x_test, y_test if there is a test; labels are names if it has names."""
    groups = []
    for k, pair in enumerate(pairs):
        parts: list[NDArray[Any]] = []
        for number, dataset in ((k + i * len(pairs), part) for i, part in enumerate(pair) if part is not NO_TEST):
            rows = [how.item(dataset, i, number) for i in range(len(dataset))]
            shapes = {x.shape for x, _ in rows}
            if len(shapes) > 1:
                one, other = sorted(shapes)[:2]
                differ = f"a data set has images of {list(one)} and {list(other)}"
                raise StreamError(f"{differ}; give a size to resize all to")
            parts += np.stack([x for x, _ in rows]), _named(np.array([y for _, y in rows]), how.names(dataset))
        groups.append(tuple(parts))
    return groups


def _labels(dataset: Any, how: ItemFormat, number: int) -> NDArray[Any]:
    return _named(how.labels(dataset, number), how.names(dataset))


def _named(labels: NDArray[Any], names: Sequence[str] | None) -> NDArray[Any]:
    """Label numbers replaced by their names, if all have one."""
    if names is None or labels.dtype.kind not in "iu" or labels.min() < 0 or labels.max() >= len(names):
        return labels
    named: NDArray[Any] = np.array(names)[labels]
    return named


# ---- iterables -------------------------------------------------------------------------------------------------------
def _what(part: int, task: str) -> str:
    return f"the {('training', 'test')[part]} data of task {task!r}"


def _check_lengths(lengths: Any, tasks: int) -> None:
    if lengths is None:
        return
    if any(
        not isinstance(pair, list | tuple)
        or len(pair) != 2
        or not all(isinstance(length, int | np.integer | None) for length in pair)
        for pair in lengths
    ):
        raise StreamError(f"lengths is {lengths!r}; give one pair per task, [(training samples, test samples), ...]")
    if len(lengths) != tasks:
        raise StreamError(f"there are {tasks} tasks; give classes and lengths for each")


def _all_items(dataset: Any, what: str, length: int | None) -> list[Any]:
    """The items of an iterable, as many as it is said to have."""
    try:
        items = list(itertools.islice(dataset, length))
    except Exception as error:  # the code of others may raise anything
        raise DataError(f"{what} failed: {one_line(error)}") from None
    if length is not None and len(items) < length:
        raise DataError(f"{what} has {len(items)} samples and not {length}; say how many there are: lengths=...")
    return items


def _iterated(
    pairs: Sequence[Any],
    names: Sequence[str],
    how: ItemFormat,
    reading: Reading,
    classes: Sequence[Any] | None,
    lengths: Sequence[tuple[int, int]] | None,
    **options: Any,
) -> Stream:
    """A stream of iterables. Until a sample is read its label is not known: the stream holds stand-ins for labels."""
    if not classes:
        raise StreamError("the labels of an iterable are not known before it is read; give classes=[...]")
    per_task = isinstance(classes[0], list | tuple)
    if options["scenario"] == "class" and len(pairs) > 1 and not per_task:
        raise StreamError("scenario 'class' needs the classes of each task, one list per task: classes=[[...], [...]]")
    own = [list(c) for c in classes] if per_task else [list(classes)] * len(pairs)
    if len(own) != len(pairs):
        raise StreamError(f"there are {len(pairs)} tasks; give classes and lengths for each")
    _check_lengths(lengths, len(pairs))
    parts = []
    for i in range(2):
        for k, pair in enumerate(pairs):
            what, dataset = _what(i, names[k]), pair[i]
            if lengths is None and not hasattr(dataset, "__len__"):
                raise StreamError(f"{what} has no length; give lengths=[(training samples, test samples), ...]")
            length = len(dataset) if lengths is None or dataset is NO_TEST else lengths[k][i]
            if length < len(own[k]) and dataset is not NO_TEST:
                raise StreamError(
                    f"{what} has {length} samples; there must be at least as many as classes, {len(own[k])}"
                )
            parts.append(Iterated(dataset, length, what, {}, how.names(dataset)))
    x = parts[0].first(how, skip=reading.on_error == "skip")
    window = reading.window or WINDOW
    readers = reading.readers(IteratedItems(parts, how, x.shape, window))
    middle, end = (sum(part.length for part in parts[i : i + len(pairs)]) for i in (0, len(pairs)))
    stand_ins = [np.resize(np.array(own[i % len(pairs)]), part.length) for i, part in enumerate(parts)]
    stream = from_labels(
        (LazyRows(readers, 0, middle), LazyRows(readers, middle, end)),
        list(zip(stand_ins[: len(pairs)], stand_ins[len(pairs) :], strict=True)),
        names,
        classes=list(dict.fromkeys(c for task in own for c in task)),
        pixel_max=255.0 if x.ndim == 3 else None,
        window=window,
        files=hashlib.sha256(x.tobytes() + repr([part.length for part in parts]).encode()).hexdigest(),
        **options,
    )
    for i, part in enumerate(parts):
        part.head = {name: n for n, name in enumerate(stream.tasks[i % len(pairs)].classes)}
    return stream
