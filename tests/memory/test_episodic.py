"""The episodic memory: its budget, its policies, and draws that are uniform and without replacement."""

from __future__ import annotations

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from scale_cl.errors import CheckpointError
from scale_cl.memory import PolicyName
from scale_cl.memory.ragged_rows import RaggedRows
from tests.memory.numbered_memory import CPU, POLICIES, filled, held, little_room, memory, numbered, write  # noqa: F401


def stored_logits(kept: RaggedRows, row: int) -> list[float]:
    """The values of one row, read as anyone may: in more columns than it has, zeros follow."""
    if not int(kept.width[row]):
        return []
    width = int(kept.width[row])
    for columns in (width, width + 3):
        values, exists = kept.get(torch.tensor([[row]]), columns)
        assert values.shape == (1, 1, columns)
        if exists is None:
            assert columns == width
        else:
            assert exists.flatten().tolist() == [True] * width + [False] * (columns - width)
            assert not values.flatten()[width:].any()
    return [float(value) for value in values.flatten()[:width]]


# ---- what is kept ----------------------------------------------------------------------------------------------------


@given(
    st.sampled_from(POLICIES),
    st.integers(1, 9),
    st.integers(1, 4),
    st.lists(st.tuples(st.integers(0, 3), st.lists(st.integers(1, 15), max_size=5)), min_size=1, max_size=5),
)
@settings(max_examples=60)
def test_memory_never_holds_more_than_its_budget(
    policy: PolicyName, slots: int, classes: int, visits: list[tuple[int, list[int]]]
) -> None:
    kept = memory(slots, policy=policy, tasks=1)
    came: dict[int, list[tuple[int, int]]] = {}
    number = 0
    for task, batches in visits:
        kept.open(task, classes)
        for n in batches:
            x, y = numbered(number, n, classes)
            came.setdefault(task, []).extend((int(a), int(b)) for a, b in zip(x, y, strict=True))
            write(kept, x, y)
            number += n
            assert len(kept.rows_of(task)) <= slots
        kept.close()
    assert int(kept.stored.sum()) == kept.available() <= slots * len(came)
    for task in range(max(task for task, _ in visits) + 1):
        rows = kept.rows_of(task)
        pairs = [(int(a), int(b)) for a, b in zip(kept.x[rows], kept.y[rows], strict=True)]
        assert set(pairs) <= set(came.get(task, [])), "a sample stands with its own label, in its own task"
        assert len(set(pairs)) == len(pairs), "no sample is kept twice"
        assert (kept.task[rows] == task).all()
        if policy != "class-ring":
            assert len(pairs) == min(slots, len(came.get(task, [])))


@given(st.integers(1, 8), st.lists(st.integers(1, 20), min_size=1, max_size=6))
def test_a_ring_keeps_the_last_samples(slots: int, batches: list[int]) -> None:
    kept, number = memory(slots), 0
    kept.open(0, 3)
    for n in batches:
        write(kept, *numbered(number, n))
        number += n
    kept.close()
    assert sorted(held(kept, 0)) == list(range(max(0, number - slots), number))


@given(st.integers(1, 4), st.integers(1, 4), st.lists(st.integers(1, 12), min_size=1, max_size=5), st.integers(0, 99))
def test_a_ring_per_class_keeps_the_last_samples_of_each_class(
    per_class: int, classes: int, batches: list[int], seed: int
) -> None:
    kept, labels, number = memory(per_class * classes, policy="class-ring"), random.Random(seed), 0
    kept.open(0, classes)
    last: dict[int, list[int]] = {label: [] for label in range(classes)}
    for n in batches:
        x, _ = numbered(number, n)
        y = [labels.randrange(classes) for _ in range(n)]
        for value, label in zip(range(number, number + n), y, strict=True):
            last[label] = [*last[label], value][-per_class:]
        write(kept, x, torch.tensor(y))
        number += n
    kept.close()
    assert sorted(held(kept, 0)) == sorted(value for values in last.values() for value in values)


def test_a_task_that_goes_on_writes_where_it_stopped() -> None:
    for policy in POLICIES:
        through, broken = memory(6, policy=policy), memory(6, policy=policy)
        through.open(0, 3)
        broken.open(0, 3)
        for start in (0, 5, 10):
            for kept in (through, broken):
                write(kept, *numbered(start, 5))
            broken.close()
            broken.open(0, 3)
        assert held(through, 0) == held(broken, 0), policy
        assert broken.seen == [15]


# ---- growth, logits, state -------------------------------------------------------------------------------------------


def test_growth_keeps_samples_and_logits() -> None:
    kept = memory(3, tasks=1)
    for task in range(9):
        kept.open(task, 3)
        write(kept, *numbered(10 * task, 3))
        kept.close()
        rows = kept.rows_of(task)
        kept.keep_logits("class", rows, torch.full((3, 2), float(task)))
        kept.keep_logits("task", rows, torch.full((3, task + 2), -float(task)))
        for earlier in range(task + 1):
            assert held(kept, earlier) == [10 * earlier, 10 * earlier + 1, 10 * earlier + 2]
            for row in kept.rows_of(earlier):
                assert stored_logits(kept.logits["class"], int(row)) == [earlier] * 2
                assert stored_logits(kept.logits["task"], int(row)) == [-earlier] * (earlier + 2)


@given(st.lists(st.tuples(st.sets(st.integers(0, 11), min_size=1), st.integers(1, 60)), max_size=12))
def test_ragged_rows_hold_what_was_last_put_there(puts: list[tuple[set[int], int]]) -> None:
    ragged, expected = RaggedRows(12, CPU), dict[int, list[float]]()
    for number, (rows, width) in enumerate(puts):
        values = torch.randn(len(rows), width, generator=torch.Generator().manual_seed(number))
        ragged.put(torch.tensor(sorted(rows)), values)
        expected |= dict(zip(sorted(rows), values.tolist(), strict=True))
        for row in range(12):
            assert stored_logits(ragged, row) == expected.get(row, [])


def test_logits_that_come_with_their_samples_stay_with_them() -> None:
    for policy in POLICIES:
        kept = memory(6, policy=policy)
        for task in range(3):
            kept.open(task, 3)
            kept.reserve_logits(3)
            for start in (0, 5, 10):
                x, y = numbered(100 * task + start, 5)
                write(kept, x, y, torch.cat([x, -x, 2 * x], 1))
            kept.close()
        kept.open(1, 3)
        kept.reserve_logits(4)  # one class more: what is there stays
        for task in range(3):
            for row in kept.rows_of(task):
                value = float(kept.x[row])
                assert stored_logits(kept.logits["class"], int(row)) == [value, -value, 2 * value], policy


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("is_open", [False, True])
def test_a_state_goes_on_as_if_it_had_not_been_saved(policy: PolicyName, is_open: bool) -> None:
    straight = filled(memory(6, policy=policy, tasks=1), [9, 4, 13])
    straight.keep_logits("class", straight.rows_of(1), torch.randn(4, 700))
    straight.open(1, 3)
    write(straight, *numbered(500, 4))
    if not is_open:
        straight.close()
    loaded = memory(6, policy=policy, tasks=2, seed=77)
    filled(loaded, [3, 3, 3, 3, 3])
    loaded.keep_logits("class", loaded.rows_of(4), torch.randn(3, 9))
    loaded.load_state_dict(straight.state_dict())
    loaded.generator.set_state(straight.generator.get_state())
    for kept in (straight, loaded):
        if not is_open:
            kept.open(3, 4)
        write(kept, *numbered(700, 11, 3))
        kept.close()
    assert [held(straight, task) for task in range(4 - is_open)] == [held(loaded, task) for task in range(4 - is_open)]
    assert straight.available() == loaded.available()
    assert straight.draws(1, 9)[0].tolist() == loaded.draws(1, 9)[0].tolist()
    for row in range(min(len(straight.y), len(loaded.y))):
        assert stored_logits(straight.logits["class"], row) == stored_logits(loaded.logits["class"], row)


def test_a_state_of_another_shape_is_refused() -> None:
    with pytest.raises(CheckpointError, match="this learner keeps 5 per task"):
        memory(5).load_state_dict(filled(memory(4), [2]).state_dict())


@pytest.mark.parametrize("policy", ["ring", "reservoir"])
def test_the_short_way_to_write_on_a_cpu_stores_the_same(policy: PolicyName) -> None:
    short, long = (memory(6, policy=policy) for _ in range(2))
    long.on_host = False
    for task, sizes in enumerate([(4, 1, 3), (6, 6), (20, 5, 1, 1, 1), (2,), (7,)]):
        for kept in (short, long):
            kept.open(task, 3)
            for number, n in enumerate(sizes):
                write(kept, *numbered(1000 * task + 100 * number, n))
                if policy == "ring":
                    assert kept.latest().tolist() == [6 * task + (sum(sizes[: number + 1]) - 1) % 6]
            kept.close()
        mine, theirs = short.state_dict(), long.state_dict()
        assert all(torch.equal(mine[name], theirs[name]) for name in theirs)
    assert short.draws(1, 5)[0].tolist() == long.draws(1, 5)[0].tolist()  # both have asked for as many random numbers
