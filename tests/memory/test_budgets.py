"""Budgets of the memory: so many slots per task, per class or in total, whatever the policy and the order of tasks."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from scale_cl.errors import CheckpointError, ConfigError
from scale_cl.memory import BUDGETS, Budget, EpisodicMemory, PolicyName
from tests.memory.numbered_memory import POLICIES, filled, held, little_room, memory, numbered, write  # noqa: F401

PAIRS: list[tuple[Budget, PolicyName]] = [
    (budget, policy)
    for budget in ("task", "class", "total")
    for policy in POLICIES
    if (budget, policy) != ("total", "class-ring")
]
every_pair = pytest.mark.parametrize(("budget", "policy"), PAIRS)


def stored(kept: EpisodicMemory) -> list[tuple[int, int, int]]:
    """(task, label, number) of every sample that is kept."""
    rows = kept.stored.nonzero().flatten()
    return [(int(kept.task[row]), int(kept.y[row]), int(kept.x[row])) for row in rows]


def end_task(kept: EpisodicMemory, task: int) -> None:
    """Close the open task, with ranks by herding of features that are the samples themselves."""
    kept.close()
    rows = kept.rows_of(task)
    kept.herd(task, torch.stack([kept.x[rows].flatten(), torch.ones(len(rows))], 1))


visits = st.lists(
    st.tuples(st.integers(0, 3), st.integers(1, 3), st.lists(st.integers(1, 15), max_size=4)), min_size=1, max_size=6
)


@given(st.sampled_from(PAIRS), st.integers(8, 20), visits, st.booleans())
@settings(max_examples=120)
def test_no_more_is_kept_than_the_budget_and_a_row_knows_its_task(
    pair: tuple[Budget, PolicyName], slots: int, visited: list[tuple[int, int, list[int]]], on_host: bool
) -> None:
    budget, policy = pair
    kept = memory(slots, policy=policy, budget=budget, tasks=1)
    kept.on_host = on_host
    came: dict[int, tuple[int, int]] = {}  # task and label of every number
    classes: dict[int, int] = {}
    number = 0
    for task, width, batches in visited:
        classes[task] = max(width, classes.get(task, 0))
        kept.open(task, classes[task])
        for n in batches:
            x, y = numbered(number, n, classes[task])
            write(kept, x, y)
            came |= {int(a): (task, int(b)) for a, b in zip(x, y, strict=True)}
            number += n
            check(kept, budget, slots, came)
        end_task(kept, task)
        check(kept, budget, slots, came)
        assert kept.available() == len(stored(kept))
        rows = kept.draws(1, kept.available())[0].tolist()
        assert sorted(rows) == kept.stored.nonzero().flatten().tolist(), "a draw of all there is has every sample once"


def check(kept: EpisodicMemory, budget: Budget, slots: int, came: dict[int, tuple[int, int]]) -> None:
    found = stored(kept)
    assert all(came[number] == (task, label) for task, label, number in found), "a sample keeps its task and label"
    assert len({number for _, _, number in found}) == len(found), "no sample is kept twice"
    keys: dict[Budget, list[object]] = {
        "task": [t for t, _, _ in found],
        "class": [s[:2] for s in found],
        "total": [0] * len(found),
    }
    assert all(count <= slots for count in Counter(keys[budget]).values())


@every_pair
def test_slots_that_are_free_are_filled_before_any_sample_is_lost(budget: Budget, policy: PolicyName) -> None:
    kept = memory(6, policy=policy, budget=budget)
    kept.open(0, 3)
    write(kept, *numbered(0, 4))
    assert sorted(held(kept, 0)) == [0, 1, 2, 3]
    write(kept, *numbered(4, 2))
    assert sorted(held(kept, 0)) == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("policy", POLICIES)
def test_each_class_has_slots_of_its_own(policy: PolicyName) -> None:
    kept = filled(memory(2, policy=policy, budget="class"), [40, 1, 40])
    count = Counter((task, label) for task, label, _ in stored(kept))
    assert count == {(0, 0): 2, (0, 1): 2, (0, 2): 2, (1, 1000 % 3): 1, (2, 0): 2, (2, 1): 2, (2, 2): 2}


def test_a_task_that_goes_on_with_more_classes_has_slots_for_the_new_ones() -> None:
    kept = filled(memory(2, budget="class"), [6, 6])
    kept.open(0, 5)
    write(kept, *numbered(5000, 10, 5))
    kept.close()
    by_class = {label: sorted(n for t, b, n in stored(kept) if (t, b) == (0, label)) for label in range(5)}
    assert by_class == {label: [5000 + label, 5005 + label] for label in range(5)}, "5000 + k is of class k"
    assert len(held(kept, 1)) == 6, "and nothing of the other task is lost"


def test_a_reservoir_with_a_class_budget_keeps_every_sample_of_a_class_with_the_same_chance() -> None:
    counts: Counter[int] = Counter()
    runs, slots, came = 1500, 2, 12  # of each of two classes
    for seed in range(runs):
        kept = memory(slots, policy="reservoir", budget="class", seed=seed, tasks=1)
        kept.open(0, 2)
        for start in range(0, 2 * came, 5):
            write(kept, *numbered(start, min(5, 2 * came - start), 2))
        counts.update(held(kept, 0))
    expected = runs * slots / came
    assert sum(counts.values()) == runs * 2 * slots
    assert sum((counts[i] - expected) ** 2 / expected for i in range(2 * came)) < 60  # 22 degrees of freedom


@pytest.mark.parametrize("on_host", [True, False])
def test_a_total_budget_with_a_reservoir_keeps_a_uniform_sample_of_the_whole_stream(on_host: bool) -> None:
    counts: Counter[int] = Counter()
    runs, slots, sizes = 1200, 5, (3, 20, 7, 10)  # tasks of different lengths: each sample counts alike
    for seed in range(runs):
        kept = memory(slots, policy="reservoir", budget="total", seed=seed)
        kept.on_host = on_host
        number = 0
        for task, size in enumerate(sizes):
            kept.open(task, 3)
            for start in range(0, size, 4):
                n = min(4, size - start)
                write(kept, *numbered(number, n))
                number += n
            kept.close()
        counts.update(n for _, _, n in stored(kept))
    expected = runs * slots / sum(sizes)
    assert sum(counts.values()) == runs * slots
    assert sum((counts[i] - expected) ** 2 / expected for i in range(sum(sizes))) < 80  # 39 degrees of freedom


def test_a_total_budget_with_a_ring_keeps_the_last_samples_of_the_stream() -> None:
    kept = memory(5, policy="ring", budget="total")
    for task, (start, n) in enumerate([(0, 3), (3, 4), (7, 1)]):
        kept.open(task, 3)
        write(kept, *numbered(start, n))
        kept.close()
    assert sorted((number, task) for task, _, number in stored(kept)) == [(3, 1), (4, 1), (5, 1), (6, 1), (7, 2)]


def test_a_total_budget_replays_what_the_open_task_has_stored_too() -> None:
    kept = memory(6, policy="reservoir", budget="total")
    kept.open(0, 3)
    assert kept.available() == 0
    write(kept, *numbered(0, 4))
    assert kept.available() == 4
    assert sorted(kept.draws(1, 4)[0].tolist()) == [0, 1, 2, 3]


def test_a_ring_per_class_needs_a_budget_that_has_classes() -> None:
    with pytest.raises(ConfigError, match="class-ring needs memory_budget task or class; with total take balanced"):
        memory(6, policy="class-ring", budget="total")


def test_an_unknown_policy_or_budget_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^memory_policy is 'rings'; it must be one of ring, class-ring, reservoir"):
        memory(6, policy="rings")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"^memory_budget is 'tasks'; it must be one of task, class, total$"):
        memory(6, budget="tasks")  # type: ignore[arg-type]


@every_pair
@pytest.mark.parametrize("is_open", [False, True])
def test_a_state_goes_on_as_if_it_had_not_been_saved(budget: Budget, policy: PolicyName, is_open: bool) -> None:
    straight, loaded = (memory(18, policy=policy, budget=budget, tasks=1, seed=seed) for seed in (0, 77))
    for task, n in enumerate([9, 4, 13]):
        straight.open(task, 3)
        write(straight, *numbered(100 * task, n))
        end_task(straight, task)
    straight.open(1, 3)
    write(straight, *numbered(500, 4))
    if not is_open:
        end_task(straight, 1)
    filled(loaded, [3, 3])
    loaded.load_state_dict(straight.state_dict())
    loaded.generator.set_state(straight.generator.get_state())
    for kept in (straight, loaded):
        if not is_open:
            kept.open(3, 4)
        write(kept, *numbered(700, 11, 3))
        kept.close()
    one, other = straight.state_dict(), loaded.state_dict()
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert straight.available() == loaded.available()
    assert straight.draws(2, 9).tolist() == loaded.draws(2, 9).tolist()


@pytest.mark.parametrize("budget", BUDGETS)
def test_a_state_of_another_budget_is_refused(budget: Budget) -> None:
    for other in BUDGETS:
        state = filled(memory(6, policy="reservoir", budget=other), [2, 3]).state_dict()  # type: ignore[arg-type]
        if other == budget:
            memory(6, policy="reservoir", budget=budget).load_state_dict(state)
        else:
            with pytest.raises(CheckpointError):
                memory(6, policy="reservoir", budget=budget).load_state_dict(state)
