"""Forgetting: rows become free, nothing else is lost, and free slots are filled before a sample is replaced."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from scale_cl.memory import Budget, PolicyName
from tests.memory.numbered_memory import filled, held, memory, numbered, write
from tests.memory.test_budgets import PAIRS, check, end_task, every_pair, stored


@given(
    st.sampled_from(PAIRS),
    st.integers(6, 12),  # a slot for each of the two classes of three tasks
    st.lists(st.tuples(st.integers(0, 2), st.integers(1, 20), st.integers(0, 2**12 - 1)), min_size=1, max_size=6),
    st.booleans(),
    st.booleans(),
)
@settings(max_examples=60)
def test_only_what_is_forgotten_leaves_and_its_slots_are_used_again(
    pair: tuple[Budget, PolicyName], slots: int, visits: list[tuple[int, int, int]], on_host: bool, late: bool
) -> None:
    budget, policy = pair
    kept = memory(slots, policy=policy, budget=budget, tasks=1)
    kept.on_host = on_host
    came: dict[int, tuple[int, int]] = {}
    for number, (task, n, chosen) in enumerate(visits):
        kept.open(task, 2)
        x, y = numbered(100 * number, n, 2)
        write(kept, x, y)
        came |= {int(a): (task, int(b)) for a, b in zip(x, y, strict=True)}
        if late:
            end_task(kept, task)
        rows = kept.stored.nonzero().flatten()
        gone = rows[[bool(chosen >> i % 12 & 1) for i in range(len(rows))]]
        before, left = sum(kept.seen), set(stored(kept)) - {s for i, s in enumerate(stored(kept)) if rows[i] in gone}
        kept.forget(gone)
        assert set(stored(kept)) == left
        assert sum(kept.seen) == before - len(gone)
        assert not kept.replayable[gone].any()
        assert not any(r.width[gone].any() for r in kept.logits.values())
        assert kept.available(current=True) <= len(left)
        kept.open(task, 2)
        free = min(len(kept.open_rows) - int(kept.stored[kept.open_rows].sum()), 3)
        if not kept.by_class and free:
            x, y = numbered(100 * number + 50, free, 2)
            write(kept, x, y)
            came |= {int(a): (task, int(b)) for a, b in zip(x, y, strict=True)}
            assert left < set(stored(kept)), "free slots first"
            assert len(stored(kept)) == len(left) + free
        write(kept, *numbered(100 * number + 60, 5, 2))
        came |= {100 * number + 60 + i: (task, i % 2) for i in range(5)}
        check(kept, budget, slots, came)
        assert kept.available(current=True) <= len(stored(kept))
        if not late:
            end_task(kept, task)
            assert kept.available() == len(stored(kept))


def test_a_boundary_found_late_moves_samples_to_the_new_task() -> None:
    for policy in ("ring", "reservoir", "balanced"):
        kept = memory(8, policy=policy)
        kept.open(0, 3)
        write(kept, *numbered(0, 6))
        write(kept, *numbered(100, 2))  # of the next task, as is found out later
        kept.forget((kept.x.flatten() >= 100).nonzero().flatten())
        kept.close()
        kept.open(1, 3)
        write(kept, *numbered(100, 2))
        kept.close()
        assert (sorted(held(kept, 0)), sorted(held(kept, 1))) == ([0, 1, 2, 3, 4, 5], [100, 101]), policy
        assert kept.seen == [6, 2]


@pytest.mark.parametrize("on_host", [True, False])
@pytest.mark.parametrize("came", [6, 10])
def test_a_ring_goes_on_as_if_its_last_samples_had_not_come(on_host: bool, came: int) -> None:
    kept, other = memory(6), memory(6)
    kept.on_host = other.on_host = on_host
    for ring in (kept, other):
        ring.open(0, 3)
        write(ring, *numbered(0, came))
    write(kept, *numbered(100, 3))
    kept.forget((kept.x.flatten() >= 100).nonzero().flatten())
    assert sorted(held(kept, 0)) == sorted(held(other, 0))[3:]
    assert int(kept.x[kept.latest()]) == came - 1
    for start in (200, 203, 206):
        for ring in (kept, other):
            write(ring, *numbered(start, 3))
        newest = [*range(came), *range(200, start + 3)][-6:]
        assert sorted(held(other, 0)) == newest
        assert sorted(held(kept, 0)) == newest
    kept.close()
    kept.open(0, 3)
    write(kept, *numbered(300, 4))
    assert sorted(held(kept, 0)) == [207, 208, 300, 301, 302, 303]


def test_a_reservoir_stays_uniform_after_samples_were_forgotten() -> None:
    """Two of four samples are forgotten; the others and those that follow are equally likely to stay."""
    counts: Counter[int] = Counter()
    runs = 500
    for seed in range(runs):
        kept = memory(4, policy="reservoir", seed=seed, tasks=1)
        kept.open(0, 3)
        write(kept, *numbered(0, 4))
        kept.forget(torch.tensor([1, 2]))
        for start in (4, 10):
            write(kept, *numbered(start, 6))
        counts.update(held(kept, 0))
    own = [0, 3, *range(4, 16)]
    assert sum(counts.values()) == 4 * runs
    assert counts[1] == counts[2] == 0
    expected = runs * 4 / len(own)
    assert sum((counts[number] - expected) ** 2 / expected for number in own) < 40  # 13 degrees of freedom


def test_balance_returns_after_a_class_was_forgotten() -> None:
    kept = memory(12, policy="balanced", budget="total")
    kept.open(0, 3)
    write(kept, *numbered(0, 60))
    kept.forget((kept.stored & (kept.y == 1)).nonzero().flatten())
    assert kept.available() == 8
    for start in range(60, 160, 5):
        write(kept, *numbered(start, 5))
    counts = Counter(label for _, label, _ in stored(kept))
    assert sum(counts.values()) == 12
    assert max(counts.values()) - min(counts.values()) <= 1


@every_pair
def test_a_state_with_free_rows_goes_on_to_the_bit(budget: Budget, policy: PolicyName) -> None:
    straight, loaded = (filled(memory(18, policy=policy, budget=budget, tasks=1, seed=seed), [9]) for seed in (0, 7))
    straight.open(1, 3)
    write(straight, *numbered(500, 30))
    straight.forget(straight.stored.nonzero().flatten()[::3])
    loaded.load_state_dict(straight.state_dict())
    loaded.generator.set_state(straight.generator.get_state())
    for kept in (straight, loaded):
        for start in (700, 711):
            write(kept, *numbered(start, 11))
        end_task(kept, 1)
    one, other = straight.state_dict(), loaded.state_dict()
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert straight.available() == loaded.available()
