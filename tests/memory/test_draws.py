"""Draws from the memory: uniform, without replacement, and the same whatever is allocated ahead."""

from __future__ import annotations

from collections import Counter
from itertools import combinations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from scale_cl.memory import PolicyName
from tests.memory.numbered_memory import POLICIES, filled, held, memory, numbered, write


@given(
    st.sampled_from(POLICIES), st.lists(st.integers(0, 12), min_size=1, max_size=5), st.integers(0, 2**31), st.data()
)
def test_a_draw_has_no_sample_twice_and_none_of_the_open_task(
    policy: PolicyName, counts: list[int], seed: int, data: st.DataObject
) -> None:
    kept = filled(memory(6, policy=policy, seed=seed), counts)
    kept.open(len(counts), 3)
    write(kept, *numbered(9000, 4))
    n = data.draw(st.integers(0, kept.available()))
    rows = kept.draws(1, n)[0].tolist()
    assert len(set(rows)) == len(rows) == n
    assert all(bool(kept.stored[row]) and int(kept.task[row]) < len(counts) for row in rows)
    if n == kept.available():
        assert sorted(rows) == sorted(row for task in range(len(counts)) for row in kept.rows_of(task).tolist())


@pytest.mark.parametrize("policy", POLICIES)
def test_every_stored_sample_is_drawn_equally_often(policy: PolicyName) -> None:
    kept = filled(memory(6, policy=policy, seed=3), [2, 6, 30, 5])
    stored = torch.cat([kept.rows_of(task) for task in range(4)]).tolist()
    draws, n = 4000, 7
    counts = Counter(row for _ in range(draws) for row in kept.draws(1, n)[0].tolist())
    assert counts.keys() == set(stored)
    expected = draws * n / len(stored)
    # 18 degrees of freedom; without replacement the statistic is smaller still
    assert _chi_square([counts[row] for row in stored], expected) < 45


def test_every_pair_of_samples_is_drawn_together_equally_often() -> None:
    kept = filled(memory(4, seed=5), [4, 4, 4])
    draws, n = 6000, 3
    pairs = Counter(pair for _ in range(draws) for pair in combinations(sorted(kept.draws(1, n)[0].tolist()), 2))
    expected = draws * 3 / 66
    assert _chi_square([pairs[pair] for pair in combinations(range(12), 2)], expected) < 120  # 65 degrees of freedom


def test_every_place_of_a_draw_is_uniform_too() -> None:
    kept = filled(memory(5, seed=8), [5, 5])
    drawn = torch.stack([kept.draws(1, 4)[0] for _ in range(3000)])
    for place in range(4):
        assert _chi_square(drawn[:, place].bincount(minlength=10).tolist(), 300) < 33  # 9 degrees of freedom


def test_the_rows_of_neighbouring_tasks_are_no_more_alike_than_others() -> None:
    """Sixty-four of 16 x 50: the share of each task follows the hypergeometric law's mean and spread."""
    kept = filled(memory(50, seed=1), [50] * 16)
    shares = torch.stack([(kept.draws(1, 64)[0] // 50).bincount(minlength=16) for _ in range(1500)]).double()
    torch.testing.assert_close(shares.mean(0), torch.full((16,), 4.0, dtype=torch.float64), atol=0.2, rtol=0)
    variance = 64 * (1 / 16) * (15 / 16) * (800 - 64) / (800 - 1)
    torch.testing.assert_close(shares.var(0), torch.full((16,), variance, dtype=torch.float64), atol=0.6, rtol=0)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_draw_does_not_depend_on_how_many_tasks_were_foreseen(
    policy: PolicyName,
) -> None:
    memories = [memory(6, policy=policy, seed=2, tasks=tasks) for tasks in (1, 2, 64)]
    for task in range(5):
        for kept in memories:
            kept.open(task, 3)
            write(kept, *numbered(100 * task, 4 + 3 * task))
        if task:
            size = memories[0].available() // 2
            first, *others = ([kept.draws(1, size)[0].tolist() for _ in range(5)] for kept in memories)
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
    assert sorted(kept.x[kept.draws(1, 7, current=True)[0]].flatten().tolist()) == [0, 1, 2, 3, 50, 51, 52]


def test_a_task_opened_again_is_no_candidate_until_it_is_closed() -> None:
    kept = filled(memory(3), [3, 3])
    kept.open(0, 3)
    assert kept.available() == 3
    assert sorted(kept.draws(1, 3)[0].tolist()) == [3, 4, 5]
    kept.close()
    assert kept.available() == 6


def test_several_draws_at_once_are_as_many_single_ones() -> None:
    one, other = (filled(memory(6, seed=4), [6, 6, 6]) for _ in range(2))
    assert one.draws(5, 7).tolist() == [other.draws(1, 7)[0].tolist() for _ in range(5)]


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


def _chi_square(counts: list[int], expected: float) -> float:
    return sum((count - expected) ** 2 / expected for count in counts)


@pytest.mark.parametrize("seed", range(5))
def test_the_short_way_on_a_cpu_draws_what_a_gpu_would_be_asked_for(seed: int) -> None:
    short, long = (filled(memory(50, seed=seed), [50, 30, 50, 7]) for _ in range(2))
    long.on_host = False
    for size in (0, 1, 64, short.available()):
        assert torch.equal(short.draws(3, size), long.draws(3, size))
