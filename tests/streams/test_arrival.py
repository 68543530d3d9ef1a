"""Streams that leave samples out, and streams whose tasks overlap in time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from scale_cl.errors import StreamError
from scale_cl.streams import Arrays, Stream, blurred, from_dataset, load, permuted, split, thinned
from scale_cl.training.learnt_streams import fingerprint


def numbered(classes: int = 8, each: int = 30) -> Arrays:
    """Features whose first number is the class and whose second is the row, for training and for test."""
    y = torch.arange(classes).repeat(each)
    x = torch.stack([y.float(), torch.arange(len(y)).float(), torch.full((len(y),), -1.0)], 1)
    return Arrays(x, y, x, y, tuple("abcdefghij"[:classes]), None)


def four_tasks(seed: int = 0) -> Stream:
    return split(numbered(), classes_per_task=2, scenario="class", seed=seed)


def samples(stream: Stream) -> list[tuple[int, int]]:
    """Task and row of every training sample in order of arrival."""
    return [
        pair
        for k, task in enumerate(stream.tasks)
        for pair in zip(stream.origin(k).tolist(), task.train.tolist(), strict=True)
    ]


@given(st.lists(st.integers(1, 9), min_size=2, max_size=5), st.floats(0, 1), st.integers(0, 99))
def test_every_sample_arrives_once_and_the_asked_share_in_other_stages(
    sizes: list[int], share: float, seed: int
) -> None:
    rows = [c for c, n in enumerate(sizes) for _ in range(n + 2)]
    y = torch.tensor(rows)
    x = torch.arange(len(y)).float().reshape(-1, 1)
    classes = tuple(map(str, range(len(sizes))))
    plain = split(Arrays(x, y, x, y, classes, None), classes_per_task=1, scenario="class", seed=seed)
    made = blurred(plain, share=share)
    assert sorted(samples(made)) == sorted(samples(plain))
    for k, task in enumerate(plain.tasks):
        stayed = int((made.origin(k) == k).sum())
        assert len(task.train) - stayed == round(share * len(task.train))
        assert torch.equal(made.tasks[k].test, task.test)


@pytest.mark.parametrize("share", [0.1, 0.5, 1.0])
def test_stages_of_equal_tasks_keep_their_size_and_take_from_all_others(share: float) -> None:
    made = blurred(four_tasks(), share=share)
    for k in range(4):
        counts = made.origin(k).bincount(minlength=4).tolist()
        assert sum(counts) == 60
        others = [n for j, n in enumerate(counts) if j != k]
        assert max(others) - min(others) <= 1
    assert samples(made) == samples(blurred(four_tasks(), share=share))
    assert samples(made) != samples(blurred(four_tasks(seed=1), share=share))


def test_gaussian_arrivals_spread_around_each_task_and_keep_the_order_within_it() -> None:
    plain = four_tasks()
    made = blurred(plain, schedule="gaussian", width=0.6)
    assert sorted(samples(made)) == sorted(samples(plain))
    assert [len(task.train) for task in made.tasks] == [60] * 4
    for j in range(4):
        assert [row for origin, row in samples(made) if origin == j] == plain.tasks[j].train.tolist()
    stages = [torch.cat([torch.full((int((made.origin(k) == j).sum()),), k) for k in range(4)]) for j in range(4)]
    means = [float(of.float().mean()) for of in stages]
    assert means == sorted(means)
    assert 0.3 < float(stages[1].float().std()) < 0.9
    narrow = blurred(plain, schedule="gaussian", width=1e-6)
    assert samples(narrow) == samples(plain)


@pytest.mark.parametrize("how", [{"share": 0.02}, {"share": 0.6}, {"schedule": "gaussian", "width": 0.7}])
def test_the_head_of_a_stage_has_every_class_that_has_arrived_and_those_of_its_tests(how: dict[str, Any]) -> None:
    made = blurred(four_tasks(), **how)
    arrived: set[str] = set()
    before: tuple[str, ...] = ()
    for k, task in enumerate(made.tasks):
        assert task.classes[: len(before)] == before
        before = task.classes
        x, y = made.train_data(k)
        assert [task.classes[label] for label in y] == ["abcdefgh"[int(c)] for c in x[:, 0]]
        arrived |= {task.classes[label] for label in y}
        own = {"abcdefgh"[2 * j + i] for j in range(k + 1) for i in range(2)}
        assert set(task.classes) == arrived | own
        x, y = made.test_data(k)
        assert [task.classes[label] for label in y] == ["abcdefgh"[int(c)] for c in x[:, 0]]


def test_a_permuted_sample_keeps_the_permutation_of_its_task() -> None:
    plain = permuted(numbered(), tasks=3, train=40, test=10, seed=2)
    made = blurred(plain, share=0.5).to("cpu")
    for k in range(3):
        x, y = made.train_data(k)
        for i, (origin, row) in enumerate(zip(made.origin(k).tolist(), made.tasks[k].train.tolist(), strict=True)):
            permutation = plain.tasks[origin].permutation
            assert permutation is not None
            assert torch.equal(x[i], plain.arrays.x_train[row][permutation])
            assert int(y[i]) == int(plain.arrays.y_train[row])
        assert torch.equal(made.test_data(k)[0], plain.test_data(k)[0])
    assert len({fingerprint(made), fingerprint(plain), fingerprint(blurred(plain, share=0.4))}) == 3


def of_iterables() -> Stream:
    """Two tasks that are read as they come, whose labels are not known before."""

    class Arriving:
        def __iter__(self) -> Iterator[tuple[np.ndarray, int]]:
            return ((np.full(3, i, np.float32), i % 2) for i in range(9))

    pairs = [(Arriving(), Arriving())] * 2
    return from_dataset(pairs, classes=[0, 1], lengths=[(9, 9)] * 2, scenario="domain", workers=0)


def test_boundaries_outlast_blurring() -> None:
    assert blurred(load("split-digits", scenario="class", boundaries="hidden"), share=0.1).boundaries == "hidden"


@pytest.mark.parametrize(
    ("stream", "how", "message"),
    [
        (
            split(numbered(), classes_per_task=2),
            {"share": 0.1},
            "each has its own head: use scenario 'class'$",
        ),
        (four_tasks(), {"share": 1.1}, "blur is 1.1; it must be from 0 to 1"),
        (four_tasks(), {"schedule": "sine"}, "schedule is 'sine'; it must be 'steps' or 'gaussian'"),
        (four_tasks(), {"schedule": "gaussian", "width": 0.0}, "width is 0.0; it must be above 0"),
        (four_tasks(), {"schedule": "gaussian", "share": 0.1}, "which is for the schedule 'steps'"),
        (four_tasks().first(1), {"share": 0.1}, "has one task; at least two are needed"),
        (blurred(four_tasks(), share=0.1), {"share": 0.1}, "is blurred already"),
        (of_iterables(), {"share": 0.1}, "is read in order only, and its labels are not known before"),
    ],
)
def test_what_cannot_be_blurred_is_refused_in_one_line(stream: Stream, how: dict[str, Any], message: str) -> None:
    with pytest.raises(StreamError, match=message):
        blurred(stream, **how)


def test_a_blurred_stream_is_not_cut() -> None:
    with pytest.raises(StreamError, match="take the first 2 before blurring"):
        blurred(four_tasks(), share=0.1).first(2)


def test_a_share_of_each_class_is_drawn_by_the_seed_and_keeps_its_order() -> None:
    plain = four_tasks()
    less = thinned(plain, 0.9)
    for whole, part in zip(plain.tasks, less.tasks, strict=True):
        assert plain.train_labels[part.train].bincount()[-2:].tolist() == [27, 27]
        kept = set(part.train.tolist())
        assert [row for row in whole.train.tolist() if row in kept] == part.train.tolist()
        assert torch.equal(part.test, whole.test)
    assert samples(thinned(plain, 0.9)) == samples(less)
    drawn = [np.sort(thinned(four_tasks(seed), 0.9).tasks[0].train.numpy()).tolist() for seed in (0, 1)]
    assert drawn[0] != drawn[1]
    assert [len(task.train) for task in thinned(plain, 1e-9).tasks] == [2] * 4
    for share in (0.0, 1.5, float("nan")):
        with pytest.raises(StreamError, match="above 0 and at most 1"):
            thinned(plain, share)
