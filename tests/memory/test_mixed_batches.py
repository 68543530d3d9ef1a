"""Batches with samples of several tasks: each row has its sample's task, and all of them can be replayed at the end."""

from __future__ import annotations

import random

import pytest
import torch

from scale_cl.memory import Batch, Budget, EpisodicMemory, PolicyName
from tests.memory.numbered_memory import memory
from tests.memory.test_budgets import every_pair, stored


def mixed(start: int, n: int, seed: int, tasks: int = 3) -> Batch:
    """Samples whose task and label follow from their number; the last tasks have more classes than the first."""
    x = torch.arange(start, start + n, dtype=torch.float32).view(-1, 1)
    picked = random.Random(seed)
    task = torch.tensor([picked.randrange(tasks) for _ in range(n)])
    return Batch(x, torch.arange(start, start + n) % (task + 2), task)


def fill(kept: EpisodicMemory) -> dict[int, tuple[int, int]]:
    """Three tasks, each open while samples of all of them come; (task, label) by number."""
    came: dict[int, tuple[int, int]] = {}
    for opened in range(3):
        kept.open(opened, opened + 2)
        for step, n in enumerate((3, 8, 5)):
            batch = mixed(100 * opened + 20 * step, n, seed=10 * opened + step)
            kept.write(batch)
            came |= {int(x): (int(t), int(y)) for x, y, t in zip(batch.x, batch.y, batch.task, strict=True)}
            size = kept.available(current=True)
            for row in kept.draws(3, size, current=True).flatten().tolist():
                assert bool(kept.stored[row]), "what is promised to a draw is there"
        kept.close()
        assert kept.available() == len(stored(kept)), "all that was written can be replayed"
    return came


@every_pair
@pytest.mark.parametrize("on_host", [True, False])
def test_a_row_has_the_task_of_its_sample(budget: Budget, policy: PolicyName, on_host: bool) -> None:
    kept = memory(12, policy=policy, budget=budget, tasks=1, seed=2)
    kept.on_host = on_host
    came = fill(kept)
    found = stored(kept)
    assert all(came[number] == (task, label) for task, label, number in found)
    assert len({number for _, _, number in found}) == len(found)
    assert {task for task, _, _ in found} == {0, 1, 2}
    rows = torch.cat([kept.rows_of(task) for task in range(3)])
    assert sorted(rows.tolist()) == kept.candidates.tolist()


@every_pair
def test_both_forms_store_the_same(budget: Budget, policy: PolicyName) -> None:
    short, long = (memory(12, policy=policy, budget=budget, seed=4) for _ in range(2))
    long.on_host = False
    fill(short)
    fill(long)
    one, other = short.state_dict(), long.state_dict()
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_labels_that_mean_the_same_in_all_tasks_share_the_slots_of_their_class() -> None:
    """Class-incremental: the open task's classes are all so far, and a class keeps its slots whatever task is open."""
    kept = memory(3, policy="reservoir", budget="class", shared_labels=True, tasks=1)
    for task in range(4):
        kept.open(task, 2 * task + 2)
        for step in range(5):
            y = torch.tensor([2 * task, 2 * task + 1, 0, 1])
            x = torch.arange(4).float().view(-1, 1) + 4 * step + 100 * task
            kept.write(Batch(x, y, torch.full_like(y, task)))
            assert kept.available() <= len(kept.candidates) == len(stored(kept))
        kept.close()
        assert sorted(label for _, label, _ in stored(kept)) == sorted(3 * list(range(2 * task + 2)))
        assert kept.available() == len(stored(kept))
    kept.open(1, 4)  # an earlier task goes on, with fewer classes than there are by now
    kept.write(Batch(torch.zeros(1, 1), torch.tensor([7]), torch.tensor([3])))
    assert len(stored(kept)) == 24
    assert kept.state_dict()["x"].shape == (24, 1), "as many slots as there are classes"


def test_stored_logits_of_samples_that_have_none_are_said_not_to_exist() -> None:
    """A learner keeps logits of a task's samples as it ends; a sample of another task in its slots has none."""
    kept = memory(4, policy="ring")
    kept.open(0, 2)
    kept.write(Batch(torch.zeros(4, 1), torch.zeros(4, dtype=torch.int64), torch.tensor([0, 0, 1, 0])))
    kept.close()
    rows = kept.rows_of(0)
    kept.keep_logits("class", rows, torch.ones(3, 2))
    kept.open(1, 2)
    _, exists = kept.stored_logits(torch.arange(4), 2)
    assert exists is not None
    assert exists.all(1).tolist() == [True, True, False, True]
