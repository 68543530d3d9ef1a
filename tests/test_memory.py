"""The episodic memory: its budget, its policies, and draws that are uniform and without replacement."""

from __future__ import annotations

import random
from collections import Counter
from itertools import combinations
from typing import Literal

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from scale_cl.errors import CheckpointError
from scale_cl.memory import EpisodicMemory, RaggedRows

CPU = torch.device("cpu")
POLICIES: tuple[Literal["ring", "class-ring", "reservoir"], ...] = ("ring", "class-ring", "reservoir")
policies = st.sampled_from(POLICIES)


def memory(
    slots: int, *, policy: Literal["ring", "class-ring", "reservoir"] = "ring", seed: int = 0, tasks: int | None = None
) -> EpisodicMemory:
    generator = torch.Generator().manual_seed(seed)
    return EpisodicMemory(slots, (1,), torch.float32, device=CPU, generator=generator, policy=policy, tasks=tasks)


def numbered(start: int, n: int, classes: int = 3) -> tuple[Tensor, Tensor]:
    """Samples that know their number; their labels go round."""
    x = torch.arange(start, start + n, dtype=torch.float32).view(-1, 1)
    return x, torch.arange(start, start + n) % classes


def write(kept: EpisodicMemory, x: Tensor, y: Tensor) -> None:
    kept.write(x, y)
    kept.wrote(len(y))


def filled(kept: EpisodicMemory, counts: list[int], classes: int = 3) -> EpisodicMemory:
    for task, n in enumerate(counts):
        kept.open(task, classes)
        if n:
            write(kept, *numbered(1000 * task, n, classes))
        kept.close()
    return kept


def held(kept: EpisodicMemory, task: int) -> list[int]:
    return [int(value) for value in kept.x[kept.rows_of(task)].flatten()]


# ---- what is kept ----------------------------------------------------------------------------------------------------


@given(
    policies,
    st.integers(1, 9),
    st.integers(1, 4),
    st.lists(st.tuples(st.integers(0, 3), st.lists(st.integers(1, 15), max_size=5)), min_size=1, max_size=5),
)
@settings(max_examples=60)
def test_memory_never_holds_more_than_its_budget(
    policy: Literal["ring", "class-ring", "reservoir"], slots: int, classes: int, visits: list[tuple[int, list[int]]]
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
    assert sorted(held(kept, 0)) == sorted(sum(last.values(), []))


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


@pytest.mark.parametrize("batch", [3, 40])
def test_a_reservoir_keeps_every_sample_with_the_same_chance(batch: int) -> None:
    slots, came, runs = 5, 40, 1000
    counts: Counter[int] = Counter()
    for seed in range(runs):
        kept = memory(slots, policy="reservoir", seed=seed, tasks=1)
        kept.open(0, 3)
        for start in range(0, came, batch):
            write(kept, *numbered(start, min(batch, came - start)))
        counts.update(held(kept, 0))
    expected = runs * slots / came
    assert sum(counts.values()) == runs * slots
    assert _chi_square([counts[i] for i in range(came)], expected) < 80  # 39 degrees of freedom: p < 0.0002


# ---- draws -----------------------------------------------------------------------------------------------------------


@given(policies, st.lists(st.integers(0, 12), min_size=1, max_size=5), st.integers(0, 2**31), st.data())
def test_a_draw_has_no_sample_twice_and_none_of_the_open_task(
    policy: Literal["ring", "class-ring", "reservoir"], counts: list[int], seed: int, data: st.DataObject
) -> None:
    kept = filled(memory(6, policy=policy, seed=seed), counts)
    kept.open(len(counts), 3)
    write(kept, *numbered(9000, 4))
    n = data.draw(st.integers(0, kept.available()))
    rows = kept.draw(n).tolist()
    assert len(set(rows)) == len(rows) == n
    assert all(bool(kept.stored[row]) and int(kept.task[row]) < len(counts) for row in rows)
    if n == kept.available():
        assert sorted(rows) == sorted(row for task in range(len(counts)) for row in kept.rows_of(task).tolist())


@pytest.mark.parametrize("policy", POLICIES)
def test_every_stored_sample_is_drawn_equally_often(policy: Literal["ring", "class-ring", "reservoir"]) -> None:
    kept = filled(memory(6, policy=policy, seed=3), [2, 6, 30, 5])
    stored = torch.cat([kept.rows_of(task) for task in range(4)]).tolist()
    draws, n = 4000, 7
    counts = Counter(row for _ in range(draws) for row in kept.draw(n).tolist())
    assert counts.keys() == set(stored)
    expected = draws * n / len(stored)
    # 18 degrees of freedom; without replacement the statistic is smaller still
    assert _chi_square([counts[row] for row in stored], expected) < 45


def test_every_pair_of_samples_is_drawn_together_equally_often() -> None:
    kept = filled(memory(4, seed=5), [4, 4, 4])
    draws, n = 6000, 3
    pairs = Counter(pair for _ in range(draws) for pair in combinations(sorted(kept.draw(n).tolist()), 2))
    expected = draws * 3 / 66
    assert _chi_square([pairs[pair] for pair in combinations(range(12), 2)], expected) < 120  # 65 degrees of freedom


def test_every_place_of_a_draw_is_uniform_too() -> None:
    kept = filled(memory(5, seed=8), [5, 5])
    drawn = torch.stack([kept.draw(4) for _ in range(3000)])
    for place in range(4):
        assert _chi_square(drawn[:, place].bincount(minlength=10).tolist(), 300) < 33  # 9 degrees of freedom


def test_the_rows_of_neighbouring_tasks_are_no_more_alike_than_others() -> None:
    """Sixty-four of 16 x 50: the share of each task follows the hypergeometric law's mean and spread."""
    kept = filled(memory(50, seed=1), [50] * 16)
    shares = torch.stack([(kept.draw(64) // 50).bincount(minlength=16) for _ in range(1500)]).double()
    torch.testing.assert_close(shares.mean(0), torch.full((16,), 4.0, dtype=torch.float64), atol=0.2, rtol=0)
    variance = 64 * (1 / 16) * (15 / 16) * (800 - 64) / (800 - 1)
    torch.testing.assert_close(shares.var(0), torch.full((16,), variance, dtype=torch.float64), atol=0.6, rtol=0)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_draw_does_not_depend_on_how_many_tasks_were_foreseen(
    policy: Literal["ring", "class-ring", "reservoir"],
) -> None:
    memories = [memory(6, policy=policy, seed=2, tasks=tasks) for tasks in (1, 2, 64)]
    for task in range(5):
        for kept in memories:
            kept.open(task, 3)
            write(kept, *numbered(100 * task, 4 + 3 * task))
        if task:
            size = memories[0].available() // 2
            first, *others = ([kept.draw(size).tolist() for _ in range(5)] for kept in memories)
            assert all(other == first for other in others)
        for kept in memories:
            kept.close()
    contents = [[held(kept, task) for task in range(5)] for kept in memories]
    assert contents[0] == contents[1] == contents[2]


def test_the_open_task_is_drawn_from_when_that_is_asked_for() -> None:
    kept = filled(memory(4), [4])
    kept.open(1, 3)
    write(kept, *numbered(50, 3))
    assert (kept.available(), kept.available(current=True)) == (4, 7)
    assert sorted(kept.x[kept.draw(7, current=True)].flatten().tolist()) == [0, 1, 2, 3, 50, 51, 52]


def test_a_task_opened_again_is_no_candidate_until_it_is_closed() -> None:
    kept = filled(memory(3), [3, 3])
    kept.open(0, 3)
    assert kept.available() == 3
    assert sorted(kept.draw(3).tolist()) == [3, 4, 5]
    kept.close()
    assert kept.available() == 6


# ---- growth, logits, forgetting, state -------------------------------------------------------------------------------


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
            values, exists = kept.logits["task"].get(kept.rows_of(earlier), 12)
            assert exists.sum(1).tolist() == [earlier + 2] * 3
            assert (values[exists] == -earlier).all()
            assert not values[~exists].any()
    assert kept.version > 0


@given(st.lists(st.tuples(st.sets(st.integers(0, 11), min_size=1), st.integers(1, 60)), max_size=12))
def test_ragged_rows_hold_what_was_last_put_there(puts: list[tuple[set[int], int]]) -> None:
    ragged, expected = RaggedRows(12, CPU), dict[int, list[float]]()
    for number, (rows, width) in enumerate(puts):
        values = torch.randn(len(rows), width, generator=torch.Generator().manual_seed(number))
        ragged.put(torch.tensor(sorted(rows)), values)
        expected |= dict(zip(sorted(rows), values.tolist(), strict=True))
        stored, exists = ragged.get(torch.arange(12), 60)
        for row in range(12):
            assert stored[row][exists[row]].tolist() == expected.get(row, [])


def test_forgotten_samples_are_gone() -> None:
    kept = filled(memory(4), [4, 4])
    kept.keep_logits("class", kept.rows_of(0), torch.ones(4, 3))
    kept.forget(torch.tensor([1, 2]))
    assert held(kept, 0) == [0, 3]
    assert kept.available() == 6
    assert not {1, 2} & set(kept.draw(6).tolist())
    assert kept.logits["class"].get(torch.arange(4), 3)[1].any(1).tolist() == [True, False, False, True]
    assert not kept.x[1:3].any()


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("is_open", [False, True])
def test_a_state_goes_on_as_if_it_had_not_been_saved(
    policy: Literal["ring", "class-ring", "reservoir"], is_open: bool
) -> None:
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
    loaded._generator.set_state(straight._generator.get_state())
    for kept in (straight, loaded):
        if not is_open:
            kept.open(3, 4)
        write(kept, *numbered(700, 11, 3))
        kept.close()
    assert [held(straight, task) for task in range(4 - is_open)] == [held(loaded, task) for task in range(4 - is_open)]
    assert straight.available() == loaded.available()
    assert straight.draw(9).tolist() == loaded.draw(9).tolist()
    rows = torch.arange(24)
    for one, other in zip(straight.logits["class"].get(rows, 700), loaded.logits["class"].get(rows, 700), strict=True):
        assert torch.equal(one[: len(straight.y)], other[: len(straight.y)])


def test_a_state_of_another_shape_is_refused() -> None:
    with pytest.raises(CheckpointError, match="this learner keeps 5 a task"):
        memory(5).load_state_dict(filled(memory(4), [2]).state_dict())


def _chi_square(counts: list[int], expected: float) -> float:
    return sum((count - expected) ** 2 / expected for count in counts)
