"""Data sets in the style of other libraries as streams."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from scale_cl.errors import DataError, StreamError
from scale_cl.streams import Stream, from_dataset
from scale_cl.streams.reading import LazyRows

CLASSES = ["ant", "bee", "cat", "dog"]


class Pairs:
    """In the style of torchvision: (image, class number), names in `classes`."""

    def __init__(self, labels: list[int], *, form: str = "pil", classes: list[str] | None = CLASSES) -> None:
        self.labels, self.form = labels, form
        if classes is not None:
            self.classes = classes

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, i: int) -> tuple[Any, int]:
        if i >= len(self):
            raise IndexError
        pixels = np.full((4, 5, 3), 10 * i + self.labels[i], dtype=np.uint8)
        forms = {
            "pil": Image.fromarray(pixels),
            "grey": Image.fromarray(pixels[:, :, 0]),
            "palette": Image.fromarray(pixels).quantize(),
            "numpy": pixels,
            "tensor": torch.from_numpy(pixels).permute(2, 0, 1),
            "scaled": torch.from_numpy(pixels).permute(2, 0, 1) / 255,
            "vector": torch.arange(3.0) + i,
        }
        return forms[self.form], self.labels[i]


class Named:
    """In the style of Hugging Face: items are dicts, names of classes are in `features`."""

    class Feature:
        names = CLASSES

    def __init__(self, labels: list[int], fields: tuple[str, str] = ("image", "label")) -> None:
        self.pairs, self.fields = Pairs(labels), fields
        self.features = {fields[1]: self.Feature()}

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, i: int) -> dict[str, Any]:
        return dict(zip(self.fields, self.pairs[i], strict=True))


@pytest.mark.parametrize("form", ["pil", "grey", "palette", "numpy", "tensor", "scaled"])
def test_each_pair_of_data_sets_is_a_task(form: str) -> None:
    tasks = [
        (Pairs([0, 1, 0, 1], form=form), Pairs([1, 0], form=form)),
        (Pairs([2, 3], form=form), Pairs([3], form=form)),
    ]
    stream = from_dataset(tasks, names=["first", "second"], shuffle=False)
    assert [(t.name, t.classes) for t in stream.tasks] == [("first", ("ant", "bee")), ("second", ("cat", "dog"))]
    assert stream.spec.shape == (1 if form == "grey" else 3, 4, 5)
    x, y = stream.train_data(0)
    assert [int(image[0, 0, 0]) for image in x] == [0, 11, 20, 31]
    assert y.tolist() == [0, 1, 0, 1]
    assert stream.test_data(1)[1].tolist() == [1]


def test_the_classes_of_one_data_set_are_dealt_out_over_tasks() -> None:
    stream = from_dataset(Named([0, 1, 2, 3] * 3), Named([3, 2, 1, 0]), classes_per_task=2, name="insects")
    assert (stream.name, [t.classes for t in stream.tasks]) == ("insects", [("ant", "bee"), ("cat", "dog")])
    assert [len(t.train) for t in stream.tasks] == [6, 6]


def test_fields_of_other_names_are_named() -> None:
    odd = Named([0, 1], ("photo", "species"))
    stream = from_dataset([(odd, odd)], image="photo", label="species")
    assert stream.tasks[0].classes == ("ant", "bee")
    with pytest.raises(StreamError, match="items have fields photo, species; say which is the image: image="):
        from_dataset([(odd, odd)])


def test_vectors_and_numbers_without_names_stay_what_they_are() -> None:
    data = Pairs([0, 1], form="vector", classes=None)
    stream = from_dataset([(data, data)], scenario="domain", shuffle=False)
    assert stream.train_data(0)[0].tolist() == [[0, 1, 2], [1, 2, 3]]
    assert stream.tasks[0].classes == ("0", "1")


def test_images_are_resized_where_a_size_is_given() -> None:
    data = Pairs([0, 1])
    assert from_dataset([(data, data)], size=8).spec.shape == (3, 8, 8)


def test_what_is_no_data_set_is_said() -> None:
    data = Pairs([0, 1])
    mixed = [(np.zeros((4, 4), np.uint8), 0), (np.zeros((5, 4), np.uint8), 1)]
    wrong: list[tuple[Any, dict[str, Any], str]] = [
        ([data], {}, "give pairs of data sets"),
        ([(data, iter([]))], {}, "is no data set"),
        ([(data, [])], {}, "a data set is empty"),
        ([(data, [3])], {}, "an item is a int"),
        ([(data, mixed)], {}, "give a size"),
        ([(data, [(torch.full((3, 4, 5), -1.0), 0)])], {}, "within 0 and 1"),
        ([(data, [(np.zeros((2, 3, 4, 5)), 0)])], {}, r"shape \[2, 3, 4, 5\]"),
        (data, {"test": data}, "classes_per_task splits the classes of one training and one test data set"),
        (data, {"test": data, "classes_per_task": 1, "scenario": "domain"}, "scenario is 'domain'"),
    ]
    for tasks, options, message in wrong:
        with pytest.raises(StreamError, match=message):
            from_dataset(tasks, **options)


@pytest.mark.parametrize("keep", ["memory", "disk"])
def test_a_stream_needs_no_test_data(keep: Any) -> None:
    data = Named([0, 1, 2, 3] * 3)
    pairs = [(data, None), (data, None)]
    for stream, length in (
        (from_dataset(pairs, keep=keep, workers=0), 12),
        (from_dataset(data, classes_per_task=2, keep=keep, workers=0), 6),
        (from_dataset([(arriving(9), None)] * 2, classes=[0, 1], lengths=[(9, 0)] * 2, workers=0), 9),
    ):
        assert [(len(task.train), len(task.test)) for task in stream.tasks] == [(length, 0)] * 2
        assert stream.train_data(0)[0].shape[0] == length
    with pytest.raises(StreamError, match="'task-2' has no test samples, but others have"):
        from_dataset([(data, data), (data, None)], keep=keep, workers=0)


CPU = torch.device("cpu")


@pytest.mark.parametrize("kind", [Pairs, Named])
@pytest.mark.parametrize("classes_per_task", [None, 2])
def test_items_that_are_read_as_they_come_are_those_in_memory(kind: Any, classes_per_task: int | None) -> None:
    data = kind([0, 1, 2, 3] * 5)
    given = ([(data, data)], None) if classes_per_task is None else (data, data)
    here, there = (
        from_dataset(*given, classes_per_task=classes_per_task, keep=keep, workers=0, seed=2)
        for keep in ("memory", "disk")
    )
    assert isinstance(there.arrays.x_train, LazyRows)
    assert there.spec == here.spec
    for k, task in enumerate(here.tasks):
        assert there.tasks[k].classes == task.classes
        for one, other in zip(
            here.train_data(k) + here.test_data(k), there.train_data(k) + there.test_data(k), strict=True
        ):
            assert torch.equal(one, other)


def test_an_item_that_fails_is_named_or_skipped() -> None:
    class Failing(Pairs):
        def __getitem__(self, i: int) -> tuple[Any, int]:
            if i == 3 and self.fails:
                raise OSError("the share is gone")
            return super().__getitem__(i)

        fails = False
        targets: list[int]

    data = Failing([0, 1, 0, 1, 0])
    data.targets = data.labels
    stops, skips = (
        from_dataset([(data, data)], keep="disk", workers=0, shuffle=False, on_error=how) for how in ("stop", "skip")
    )
    Failing.fails = True
    assert len(stops.arrival(0, CPU).take(0, 3)[0]) == 3
    with pytest.raises(DataError, match=r"item 3 of data set 1 cannot be read: .*the share is gone"):
        stops.arrival(0, CPU).take(3, 5)
    assert skips.arrival(0, CPU).take(2, 5)[1].tolist() == [0, 0]
    with pytest.raises(DataError, match=r"^item 3 of data set 1 cannot be read: .*the share is gone$"):
        from_dataset([(data, data)], keep="memory")


def test_a_first_item_that_fails_is_named_or_skipped() -> None:
    class Failing(Pairs):
        def __getitem__(self, i: int) -> tuple[Any, int]:
            if i == 0:
                raise OSError("the share is gone")
            return super().__getitem__(i)

    data: Any = Failing([0, 1, 0, 1, 0])
    for keep in ("memory", "disk"):
        with pytest.raises(DataError, match=r"^item 0 of data set 1 cannot be read: .*the share is gone$"):
            from_dataset([(data, data)], keep=keep, workers=0)
    data.targets = data.labels
    stream = from_dataset([(data, data)], workers=0, shuffle=False, on_error="skip")
    assert stream.arrival(0, CPU).take(0, 5)[1].tolist() == [1, 0, 1, 0]


@dataclass
class Arriving:
    """In the style of a streaming data set: items come one after another, anew with each iteration."""

    items: list[Any]
    skips: bool = False
    begun: int = 0

    def __iter__(self) -> Iterator[Any]:
        self.begun += 1
        return iter(self.items)

    def __getattr__(self, name: str) -> Any:
        if name == "skip" and self.__dict__.get("skips"):
            return lambda n: Arriving(self.items[n:])
        raise AttributeError(name)


def arriving(count: int, first: int = 0, **options: Any) -> Arriving:
    """Samples whose pixels are their number and whose label is its parity."""
    return Arriving([(np.full((4, 4, 3), first + i, np.uint8), i % 2) for i in range(count)], **options)


def iterated(train: Arriving, tests: Arriving | None = None, **options: Any) -> Stream:
    values = {"classes": [0, 1], "lengths": [(50, 6)], "workers": 0, "window": 10, **options}
    return from_dataset([(train, tests or arriving(6))], **values)


@pytest.mark.parametrize("skips", [False, True])
def test_an_iterable_arrives_shuffled_within_windows_and_from_any_position(skips: bool) -> None:
    stream = iterated(arriving(50, skips=skips), seed=1)
    whole = stream.arrival(0, CPU).take(0, 50)
    numbers = whole[0][:, 0, 0, 0].tolist()
    assert numbers != sorted(numbers)
    assert [n // 10 for n in numbers] == [i // 10 for i in range(50)]
    assert whole[1].tolist() == [n % 2 for n in numbers]
    for start in (13, 20, 47):  # as after a resume
        x, y = stream.arrival(0, CPU).take(start, start + 5)
        assert torch.equal(x, whole[0][start : start + 5])
        assert torch.equal(y, whole[1][start : start + 5])
    samples = stream.arrival(0, CPU)
    assert torch.equal(torch.cat([samples.take(i, i + 7)[0] for i in range(0, 50, 7)]), whole[0])
    assert [y.tolist() for _, y in stream.test_batches(0, 4, CPU)] == [[0, 1, 0, 1], [0, 1]]


def test_an_iterable_that_goes_on_is_read_once() -> None:
    train = arriving(50)
    stream = iterated(train)
    train.begun = 0
    samples = stream.arrival(0, CPU)
    for start in range(0, 50, 3):
        samples.take(start, start + 3)
    assert train.begun == 1


def test_each_task_of_iterables_has_its_own_classes() -> None:
    named = [Arriving([{"image": np.full((4, 4, 3), i, np.uint8), "label": c} for i in range(9)]) for c in "xyz"]
    pairs = [(named[0], named[0]), (named[2], named[2])]
    stream = from_dataset(pairs, classes=[["x", "w"], ["y", "z"]], lengths=[(9, 9)] * 2, workers=0)
    assert [set(task.classes) for task in stream.tasks] == [{"w", "x"}, {"y", "z"}]
    heads = [stream.tasks[k].classes[int(stream.arrival(k, CPU).take(0, 1)[1])] for k in range(2)]
    assert heads == ["x", "z"]
    with pytest.raises(StreamError, match="scenario 'class' needs the classes of each task, one list per task"):
        from_dataset(pairs, scenario="class", classes=["w", "x", "y", "z"], lengths=[(9, 9)] * 2, workers=0)


def test_what_is_wrong_with_an_iterable_is_said(caplog: pytest.LogCaptureFixture) -> None:
    odd = arriving(50)
    odd.items[15] = (np.zeros((4, 5, 3), np.uint8), 0)
    odd.items[25] = (np.zeros((4, 4, 3), np.uint8), 7)
    for items, position, message in (
        (
            odd,
            10,
            r"sample 16 of the training data of task 'task-1' has shape \[3, 4, 5\], the first sample \[3, 4, 4\]",
        ),
        (odd, 20, "sample 26 of the training data of task 'task-1' has label 7, which is none of the task's classes"),
        (arriving(33), 30, "the training data of task 'task-1' ended before its 50 samples; say how many there are"),
    ):
        stream = iterated(items)
        assert len(stream.arrival(0, CPU).take(0, 10)[0]) == 10
        with pytest.raises(DataError, match=message):
            stream.arrival(0, CPU).take(position, position + 10)
    with caplog.at_level(logging.WARNING):
        samples = iterated(arriving(33), on_error="skip").arrival(0, CPU)
        assert [len(samples.take(start, start + 10)[0]) for start in range(0, 50, 10)] == [10, 10, 10, 3, 0]
    assert len(caplog.records) == 1
    for on_error in ("stop", "skip"):
        with pytest.raises(DataError, match=r"^the test data of task 'task-1' yields nothing; leave its task out"):
            next(iter(iterated(arriving(50), tests=Arriving([]), on_error=on_error).test_batches(0, 5, CPU)))
    for given, options, message in (
        (Arriving([]), {}, "the training data of task 'task-1' yields nothing"),
        (arriving(5), {"classes": None}, "give classes"),
        (arriving(5), {"lengths": None}, "has no length; give lengths"),
        (arriving(5), {"lengths": [(1, 6)]}, "at least as many as classes"),
        (arriving(50), {"lengths": (50, 6)}, r"lengths is \(50, 6\); give one pair per task"),
        (Arriving([(None, 0)] * 50), {}, r"^sample 1 of the training data of task 'task-1': an image has shape"),
    ):
        with pytest.raises(StreamError, match=message):
            iterated(given, **options)
    odd.items[0] = (None, 0)
    assert iterated(odd, on_error="skip").spec.shape == (3, 4, 4)


@pytest.mark.parametrize("keep", ["memory", "disk"])
def test_an_iterable_that_fails_is_named(keep: Any) -> None:
    class Failing(Arriving):
        def __iter__(self) -> Iterator[Any]:
            raise OSError("the share is gone")

    with pytest.raises(DataError, match=r"^the training data of task 'task-1' failed.*: OSError: the share is gone$"):
        iterated(Failing([]), keep=keep)


def test_an_iterable_in_memory_has_its_length() -> None:
    stream = iterated(arriving(60), arriving(9), keep="memory", classes=None)
    assert not isinstance(stream.arrays.x_train, LazyRows)
    assert (len(stream.tasks[0].train), len(stream.tasks[0].test)) == (50, 6)
    with pytest.raises(DataError, match=r"the training data of task 'task-1' has 40 samples and not 50"):
        iterated(arriving(40), keep="memory", classes=None)
