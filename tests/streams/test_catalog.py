"""The named streams against the protocol table."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from scale_cl import streams
from scale_cl.errors import ConfigError, DataError, StreamError
from scale_cl.streams import Arrays, Stream, catalog


class Row(NamedTuple):
    """A row of the protocol table, typed out by hand."""

    search: int
    continual: int
    classes: int
    train: int
    test: int
    shape: tuple[int, int, int]


PROTOCOL = {
    "digits": Row(3, 10, 10, 1000, 500, (1, 8, 8)),
    "pmnist": Row(3, 20, 10, 1000, 1000, (1, 28, 28)),
    "scifar10": Row(0, 5, 2, 10000, 2000, (3, 32, 32)),
    "scifar100": Row(3, 17, 5, 2500, 500, (3, 32, 32)),
    "sminiimagenet": Row(3, 17, 5, 2400, 600, (3, 84, 84)),
    "stinyimagenet": Row(0, 20, 10, 5000, 500, (3, 64, 64)),
}
UNEVEN = {  # tasks, scenario: streams whose tasks differ in size
    "split-digits": (5, "task or class"),
    "scub200": (10, "task or class"),
    "core50-nc": (9, "task or class"),
    "core50-ni": (8, "domain"),
    "core50-ni10": (8, "domain"),
}
SIZES = {  # classes, training and test images a class
    "digits": (10, 130, 50),
    "pmnist": (10, 6000, 1000),
    "scifar10": (10, 5000, 1000),
    "scifar100": (100, 500, 100),
    "sminiimagenet": (100, 480, 120),
    "stinyimagenet": (200, 500, 50),
}


def synthetic(name: str) -> Arrays:
    """Arrays of the data set's true size that take no memory: every pixel is the same byte."""
    classes, train, test = SIZES[name]
    pixel = torch.zeros(1, dtype=torch.uint8)
    y_train, y_test = (torch.arange(classes).repeat(n) for n in (train, test))
    x_train, x_test = (pixel.expand(len(y), *PROTOCOL[name].shape) for y in (y_train, y_test))
    return Arrays(x_train, y_train, x_test, y_test, tuple(f"c{i:02}" for i in range(classes)), 255.0)


def check_protocol(name: str, arrays: Arrays) -> None:
    row = PROTOCOL[name]
    whole = streams.build(name, arrays, seed=0, part="all")
    parts = [streams.build(name, arrays, seed=0, part="search")] if row.search else []
    parts.append(streams.build(name, arrays, seed=0))
    assert [len(part) for part in parts] == [n for n in (row.search, row.continual) if n]
    tasks = [task for part in parts for task in part.tasks]
    for task, same in zip(tasks, whole.tasks, strict=True):
        assert (task.name, task.classes) == (same.name, same.classes)
        assert len(task.classes) == row.classes
    for task, same in zip(parts[-1].tasks, whole.tasks[row.search :], strict=True):
        assert torch.equal(task.train, same.train)
        assert len(set(task.train.tolist())) == len(task.train) == row.train
        assert len(set(task.test.tolist())) == len(task.test) == row.test
    assert len({task.name for task in tasks}) == row.search + row.continual
    for k in (0, len(parts[-1]) - 1):
        x, y = parts[-1].train_data(k)
        assert tuple(x.shape) == (row.train, *row.shape)
        assert set(y.tolist()) == set(range(row.classes))
    assert parts[-1].spec.shape == row.shape
    if name.startswith("s"):
        check_disjoint(whole, arrays)
    else:
        assert len({tuple(task.permutation.tolist()) for task in tasks if task.permutation is not None}) == len(tasks)


def check_disjoint(whole: Stream, arrays: Arrays) -> None:
    assert whole.scenario == "task"
    names = [name for task in whole.tasks for name in task.classes]
    assert sorted(names) == sorted(arrays.class_names)
    for part, y in (("train", arrays.y_train), ("test", arrays.y_test)):
        rows = torch.cat([getattr(task, part) for task in whole.tasks])
        assert torch.equal(rows.sort().values, torch.arange(len(y)))
        for task in whole.tasks:
            classes = {arrays.class_names[c] for c in set(y[getattr(task, part)].tolist())}
            assert classes == set(task.classes)


@pytest.mark.parametrize("name", list(PROTOCOL))
def test_synthetic_data_of_true_size_make_the_protocol_table(name: str) -> None:
    check_protocol(name, synthetic(name))


def test_the_embedded_digits_make_the_protocol_table() -> None:
    arrays = streams.load_arrays("digits")
    check_protocol("digits", arrays)
    assert (len(arrays.x_train), len(arrays.x_test)) == (1297, 500)
    assert (arrays.pixel_max, int(arrays.x_train.max())) == (16.0, 16)


def real_data(*inside: str) -> Path | None:
    """A data root that holds one of `inside`: SCALE_CL_DATA, or shared/data beside the checkout."""
    beside = Path(__file__).parents[2].parent / "shared" / "data"
    roots = [Path(r) for r in (os.environ.get("SCALE_CL_DATA"), beside) if r]
    return next((root for root in roots if any((root / i).is_dir() for i in inside)), None)


@pytest.mark.skipif(real_data("mnist", "MNIST") is None, reason="MNIST is not there")
def test_the_real_mnist_makes_the_protocol_table() -> None:
    arrays = streams.load_arrays("pmnist", real_data("mnist", "MNIST"))
    check_protocol("pmnist", arrays)
    assert arrays.y_train[:10].tolist() == [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]
    assert arrays.y_train.bincount().tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert abs(float(arrays.x_train.double().mean()) / 255 - 0.1307) < 1e-4


@pytest.mark.skipif(real_data("cifar-100-binary") is None, reason="CIFAR-100 is not there")
def test_the_real_cifar_100_makes_the_protocol_table() -> None:
    arrays = streams.load_arrays("scifar100", real_data("cifar-100-binary"))
    check_protocol("scifar100", arrays)
    means = arrays.x_train[::10].double().mean((0, 2, 3)) / 255
    assert (means - torch.tensor([0.5071, 0.4865, 0.4409])).abs().max() < 0.01


def test_the_class_order_is_the_stream_s_own_unless_another_is_asked_for() -> None:
    def first_classes(name: str, **settings: Any) -> list[str]:
        stream = streams.build(name, synthetic(name), seed=0, part="all", tasks=2, **settings)
        return [c for task in stream.tasks for c in task.classes]

    def permuted(seed: int) -> list[str]:
        return [f"c{i:02}" for i in np.random.RandomState(seed).permutation(100)[:10]]

    assert first_classes("scifar10") == ["c00", "c01", "c02", "c03"]
    assert first_classes("scifar10", class_order=0) != ["c00", "c01", "c02", "c03"]
    assert first_classes("scifar100") == first_classes("scifar100", class_order=0) == permuted(0)
    assert first_classes("sminiimagenet") == permuted(0)
    assert first_classes("sminiimagenet", class_order=2) == permuted(2)
    assert first_classes("scifar100", class_order="natural") == [f"c{i:02}" for i in range(10)]


def test_orders_from_three_on_never_report_the_classes_of_the_search_tasks() -> None:
    arrays = synthetic("scifar100")

    def classes(part: Any, order: int) -> list[str]:
        stream = streams.build("scifar100", arrays, part=part, class_order=order)
        return [name for task in stream.tasks for name in task.classes]

    kept, usual = classes("search", 0), classes("continual", 0)
    found = [classes("continual", order) for order in (3, 4, 5)]
    for order, own in zip((3, 4, 5), found, strict=True):
        assert classes("search", order) == kept
        assert own == [usual[i] for i in np.random.RandomState(order).permutation(85)]
    assert len({tuple(own) for own in [usual, *found]}) == 4
    scifar10 = streams.build("scifar10", synthetic("scifar10"), class_order=3)  # it has no search tasks
    assert [c for t in scifar10.tasks for c in t.classes] == [
        f"c{i:02}" for i in np.random.RandomState(3).permutation(10)
    ]


@pytest.mark.parametrize("name", ["scifar100", "sminiimagenet", "pmnist", "digits"])
def test_search_tasks_score_training_images_that_they_do_not_learn(name: str) -> None:
    arrays = synthetic(name)
    whole, search = (streams.build(name, arrays, seed=1, part=part) for part in ("all", "search"))
    split = bool(catalog.entry(name).classes_per_task)
    scored = len(search.tasks[0].test)
    assert len(search.arrays.x_test) == len(search) * scored
    assert scored == {"scifar100": 500, "sminiimagenet": 480, "pmnist": 1000, "digits": 300}[name]
    for k, task in enumerate(search.tasks):
        same, n = whole.tasks[k], len(task.train)
        assert n == catalog.entry(name).train_of("search") == len(same.train) - scored * split
        learnt = search.arrays.y_train[task.train]
        assert torch.equal(learnt, arrays.y_train[same.train[:n]])  # the first of the task, as they arrive
        if split:
            assert torch.equal(search.arrays.y_test[task.test], arrays.y_train[same.train[n:]])


def test_no_test_image_of_digits_is_scored_in_search() -> None:
    arrays, search = streams.load_arrays("digits"), streams.load("digits", part="search")
    known, tested = ({x.numpy().tobytes() for x in part} for part in (arrays.x_train, arrays.x_test))
    for task in search.tasks:
        scored = {x.numpy().tobytes() for x in search.arrays.x_test[task.test]}
        assert scored <= known - tested
        assert not scored & {x.numpy().tobytes() for x in search.arrays.x_train[task.train]}


def test_all_twenty_tasks_of_cifar_100_are_class_incremental_in_an_order_of_each_seed() -> None:
    arrays = synthetic("scifar100")
    one, other = (
        streams.build("scifar100", arrays, seed=s, part="all", scenario="class", class_order="seed") for s in (0, 1)
    )
    assert [len(task.classes) for task in one.tasks] == list(range(5, 101, 5))
    assert one.tasks[-1].classes == tuple(f"c{i:02}" for i in np.random.RandomState(0).permutation(100))
    assert other.tasks[-1].classes == tuple(f"c{i:02}" for i in np.random.RandomState(1).permutation(100))
    for k, task in enumerate(one.tasks):
        labels = one.train_labels[task.train]
        assert (int(labels.min()), int(labels.max())) == (5 * k, 5 * k + 4)
    later = streams.build("scifar100", arrays, scenario="class")  # without the tasks for search
    assert later.tasks[0].classes == one.tasks[3].classes[15:]
    assert later.train_labels[later.tasks[0].train].unique().tolist() == [0, 1, 2, 3, 4]


def test_split_digits_is_embedded_and_takes_either_scenario_and_hidden_boundaries() -> None:
    task = streams.load("split-digits")
    assert (task.scenario, [t.classes for t in task.tasks][1:3]) == ("task", [("2", "3"), ("4", "5")])
    hidden = streams.load("split-digits", scenario="class", boundaries="hidden")
    assert (hidden.spec.scenario, hidden.spec.boundaries) == ("class", False)
    assert [t.train.tolist() for t in hidden.tasks] == [t.train.tolist() for t in task.tasks]
    with pytest.raises(StreamError, match=r"hidden boundaries .* scenario class has one head"):
        streams.load("split-digits", boundaries="hidden")
    assert streams.load("split-digits", boundaries="detect").spec.boundaries


def test_fewer_tasks_are_the_first_ones_of_the_part() -> None:
    arrays = streams.load_arrays("digits")
    some, all_ten = streams.build("digits", arrays, seed=4, tasks=3), streams.build("digits", arrays, seed=4)
    assert [task.name for task in some.tasks] == ["task-4", "task-5", "task-6"]
    for k in range(3):
        for mine, other in zip(some.train_data(k), all_ten.train_data(k), strict=True):
            assert torch.equal(mine, other)


def test_other_seeds_are_other_streams_over_the_same_arrays() -> None:
    one, again, other = (streams.load("digits", seed=s, tasks=1) for s in (0, 0, 1))
    assert one.arrays is again.arrays is other.arrays
    assert torch.equal(one.train_data(0)[0], again.train_data(0)[0])
    assert not torch.equal(one.train_data(0)[0], other.train_data(0)[0])


def test_the_catalog_names_and_describes_its_streams() -> None:
    assert set(streams.names()) == {*PROTOCOL, *UNEVEN}
    for name, row in PROTOCOL.items():
        text = streams.describe(name)
        assert f"{row.search + row.continual} tasks" in text
        assert str(row.train) in text
    for name, (tasks, scenario) in UNEVEN.items():
        assert f": {tasks} tasks of about " in streams.describe(name)
        assert streams.describe(name).endswith(f"; scenario {scenario}")


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("pmnits", {}, "unknown stream 'pmnits': did you mean pmnist?"),
        ("xyz", {}, "unknown stream 'xyz': there are digits, pmnist"),
        ("scifar10", {"part": "search"}, "scifar10 has no search part: all its 5 tasks are in the continual part"),
        ("digits", {"part": "first"}, "part is 'first'; it must be continual, search or all"),
        ("digits", {"tasks": 11}, "tasks is 11; the continual part of digits has 10, so take 1 to 10"),
        ("digits", {"tasks": 0}, "tasks is 0"),
        ("digits", {"class_order": "random"}, "class_order is 'random'"),
        ("digits", {"class_order": -1}, "class_order is -1"),
        ("digits", {"class_order": True}, "class_order is True"),
        ("digits", {"scenario": "class"}, "tasks of digits differ in their inputs, and all .* classes: take domain"),
        ("digits", {"scenario": "task"}, "scenario is 'task'; tasks of digits differ in their inputs"),
        ("split-digits", {"scenario": "domain"}, "differ in their classes: take task or class"),
        ("scifar10", {"size": 16}, "size is 16; the images of scifar10 are read at the size that they have"),
    ],
)
def test_what_the_catalog_does_not_have_is_refused(name: str, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        streams.load(name, **settings)


def test_missing_data_say_how_to_get_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, title in (("pmnist", "MNIST"), ("scifar10", "CIFAR-10"), ("scifar100", "CIFAR-100")):
        with pytest.raises(DataError, match=f"{title} is not in {tmp_path}: run `scale-cl data get"):
            streams.load(name, root=tmp_path)
    monkeypatch.setenv("SCALE_CL_DATA", str(tmp_path / "elsewhere"))
    with pytest.raises(DataError, match=f"mini-ImageNet is not in {tmp_path / 'elsewhere'}: place it yourself"):
        streams.load("sminiimagenet")


def test_a_data_set_is_read_once_for_each_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[Path] = []

    class Counted:
        name, title, embedded = "mnist", "MNIST", False

        def read(self, root: Path, progress: object) -> Arrays:
            reads.append(root)
            return synthetic("pmnist")

    monkeypatch.setitem(catalog.SOURCES, "mnist", Counted())
    one, again = (streams.load_arrays("pmnist", tmp_path / "a") for _ in range(2))
    other = streams.load_arrays("pmnist", tmp_path / "b")
    assert one is again is not other
    assert reads == [tmp_path / "a", tmp_path / "b"]
