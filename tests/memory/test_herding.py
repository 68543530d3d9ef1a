"""Herding: the order by a plain re-computation, and old classes that shrink to their share of a total budget."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from torch import Tensor

from scale_cl.errors import ConfigError
from scale_cl.learners import Er, ErConfig
from scale_cl.memory.policies import herding_order
from scale_cl.streams import TaskInfo
from tests.learners.tiny import SPLIT, batch
from tests.memory.numbered_memory import memory, numbered, write
from tests.memory.test_budgets import stored


def plain_order(features: Tensor) -> list[int]:
    """Algorithm 4 of iCaRL, one candidate at a time, in Python numbers."""
    unit = [(f / f.norm()).tolist() for f in features.double()]
    width = len(unit[0])
    mean = [sum(f[i] for f in unit) / len(unit) for i in range(width)]
    chosen: list[int] = []
    while len(chosen) < len(unit):
        distances = {}
        for candidate in set(range(len(unit))) - set(chosen):
            picked = [unit[i] for i in (*chosen, candidate)]
            centre = [sum(f[i] for f in picked) / len(picked) for i in range(width)]
            distances[candidate] = sum((a - b) ** 2 for a, b in zip(mean, centre, strict=True))
        chosen.append(min(distances, key=lambda i: distances[i]))
    return chosen


@pytest.mark.parametrize("n", [1, 2, 3, 25])
def test_the_order_is_that_of_the_definition(n: int) -> None:
    features = torch.randn(n, 6, generator=torch.Generator().manual_seed(n)) + 1
    assert herding_order(features).tolist() == plain_order(features)


def test_no_samples_have_no_order() -> None:
    assert herding_order(torch.zeros(0, 4)).tolist() == []


def test_samples_are_ranked_within_their_class_and_task() -> None:
    kept = memory(12, policy="herding")
    for task in range(2):
        kept.open(task, 3)
        write(kept, *numbered(100 * task, 12))
        kept.close()
        rows = kept.rows_of(task)
        features = torch.randn(12, 5, generator=torch.Generator().manual_seed(task))
        before = kept.rank.clone()
        kept.herd(task, features)
        for label in range(3):
            own = (kept.y[rows] == label).nonzero().flatten()
            ranked = sorted(own.tolist(), key=lambda i: int(kept.rank[rows[i]]))
            assert ranked == [int(own[i]) for i in plain_order(features[own])]
        others = [row for row in range(len(before)) if row not in rows.tolist()]
        assert torch.equal(kept.rank[others], before[others])


def test_old_classes_shrink_to_their_share_of_a_total_budget_by_rank() -> None:
    slots, kept = 24, memory(24, policy="herding", budget="total")
    kept.keep_logits("class", torch.arange(slots), torch.ones(slots, 2))
    first: dict[tuple[int, int], list[int]] = {}  # numbers of each class, best first
    for task in range(4):
        kept.open(task, 2)
        quota = slots // (2 * task + 2)
        for pair, count in Counter((t, y) for t, y, _ in stored(kept)).items():
            assert count == min(quota, len(first[pair])), "as many as each class would have"
            left = {number for t, y, number in stored(kept) if (t, y) == pair}
            assert left == set(first[pair][:count]), "the first in rank stay"
        assert int(kept.stored.sum()) <= slots - 2 * quota, "the new classes have their share"
        assert not bool(kept.logits["class"].width[~kept.stored].any()) or task == 0, "logits leave with their samples"
        for start in range(0, 60, 10):
            write(kept, *numbered(1000 * task + start, 10, 2))
            assert int(kept.stored.sum()) <= slots
        assert int(kept.stored.sum()) == slots, "the open task fills what the others leave"
        kept.close()
        rows = kept.rows_of(task)
        features = torch.randn(len(rows), 5, generator=torch.Generator().manual_seed(task))
        kept.herd(task, features)
        for label in range(2):
            own = (kept.y[rows] == label).nonzero().flatten()
            first[task, label] = [int(kept.x[rows[own[i]]]) for i in plain_order(features[own])]


def test_a_budget_that_leaves_no_slot_for_a_new_class_is_refused() -> None:
    kept = memory(2, policy="herding", budget="total")
    for task in range(2):
        kept.open(task, 1)
        write(kept, *numbered(10 * task, 2, 1))
        kept.close()
        kept.herd(task, torch.randn(len(kept.rows_of(task)), 3))
    with pytest.raises(ConfigError, match="memory 2 in total is less than one slot per class; take a larger memory"):
        kept.open(2, 1)


def test_a_learner_ranks_what_a_task_has_stored_when_it_ends() -> None:
    learner = Er(SPLIT, ErConfig(memory=12, memory_policy="herding"), seed=1)
    learner.begin_task(TaskInfo("a", 3))
    for seed in range(4):
        learner.observe(*batch(SPLIT, 6, seed=seed))
    learner.end_task()
    kept = learner.memory
    rows = kept.rows_of(0)
    features = learner.features(kept.x[rows], "a")
    for label in range(3):
        own = (kept.y[rows] == label).nonzero().flatten()
        ranked = sorted(own.tolist(), key=lambda i: int(kept.rank[rows[i]]))
        assert ranked == [int(own[i]) for i in plain_order(features[own])]


def test_a_learner_with_herding_and_a_total_budget_gives_no_class_more_than_its_share() -> None:
    learner = Er(SPLIT, ErConfig(memory=24, memory_policy="herding", memory_budget="total"), seed=1)
    for task in range(4):
        learner.begin_task(TaskInfo(str(task), 2))
        counts = Counter((t, y) for t, y, _ in learners_samples(learner))
        assert max(counts.values(), default=0) <= 24 // (2 * task + 2), "no class has more than its share"
        assert len(counts) == 2 * task
        for seed in range(6):
            learner.observe(*batch(SPLIT, 10, 2, seed=10 * task + seed))
        learner.end_task()
        assert int(learner.memory.stored.sum()) == 24


def learners_samples(learner: Er) -> list[tuple[int, int, int]]:
    kept = learner.memory
    return [(int(kept.task[row]), int(kept.y[row]), int(row)) for row in kept.stored.nonzero().flatten()]
