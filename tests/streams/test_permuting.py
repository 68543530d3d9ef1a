"""Permuted streams."""

from __future__ import annotations

import pytest
import torch

from scale_cl.errors import StreamError
from scale_cl.streams import Arrays, Stream, permuted


@pytest.fixture(scope="module")
def arrays() -> Arrays:
    x = torch.arange(200 * 16, dtype=torch.int64).remainder(251).to(torch.uint8).reshape(200, 1, 4, 4)
    return Arrays(x[:150], torch.arange(150) % 5, x[150:], torch.arange(50) % 5, tuple("abcde"), 255.0)


def same(a: Stream, b: Stream, j: int, k: int) -> bool:
    return all(torch.equal(p, q) for p, q in zip(a.train_data(j), b.train_data(k), strict=True)) and all(
        torch.equal(p, q) for p, q in zip(a.test_data(j), b.test_data(k), strict=True)
    )


def test_tasks_have_the_sizes_asked_for_and_draw_without_replacement(arrays: Arrays) -> None:
    stream = permuted(arrays, tasks=4, train=40, test=20, seed=0)
    assert stream.scenario == "domain"
    for task in stream.tasks:
        assert task.classes == tuple("abcde")
        assert len(set(task.train.tolist())) == 40
        assert len(set(task.test.tolist())) == 20


def test_the_same_seed_gives_the_same_stream_and_another_seed_another(arrays: Arrays) -> None:
    one, again, other = (permuted(arrays, tasks=2, train=40, test=20, seed=s) for s in (5, 5, 6))
    assert same(one, again, 0, 0)
    assert same(one, again, 1, 1)
    assert not same(one, other, 0, 0)
    assert not same(one, one, 0, 1)


def test_a_task_does_not_depend_on_how_many_are_built(arrays: Arrays) -> None:
    all_five = permuted(arrays, tasks=5, train=40, test=20, seed=1)
    last_two = permuted(arrays, tasks=2, train=40, test=20, seed=1, first_task=3)
    assert [task.name for task in last_two.tasks] == ["task-4", "task-5"]
    assert same(all_five, last_two, 3, 0)
    assert same(all_five, last_two, 4, 1)


def test_test_images_do_not_depend_on_how_many_train(arrays: Arrays) -> None:
    few, many = (permuted(arrays, tasks=1, train=n, test=20, seed=1) for n in (10, 100))
    assert torch.equal(few.tasks[0].test, many.tasks[0].test)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"train": 151}, "151 training images per task were asked for; p has 150"),
        ({"test": 0}, "0 test images per task"),
        ({"tasks": 0}, "tasks is 0"),
        ({"seed": -1}, "seed is -1"),
        ({"seed": 1.5}, "seed is 1.5"),
    ],
)
def test_impossible_requests_are_refused(arrays: Arrays, settings: dict[str, int], message: str) -> None:
    wanted: dict[str, int] = {"tasks": 2, "train": 10, "test": 10, "seed": 0}
    with pytest.raises(StreamError, match=message):
        permuted(arrays, **(wanted | settings), name="p")
