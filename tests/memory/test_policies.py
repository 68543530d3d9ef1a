"""Policies: the host's short way and the device's fixed-shape way put every sample in the same slot."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from scale_cl.memory import POLICIES as POLICY_CLASSES
from scale_cl.memory import Budget, PolicyName
from tests.memory.numbered_memory import memory, numbered, write
from tests.memory.test_budgets import PAIRS, end_task


@given(
    st.sampled_from(sorted(POLICY_CLASSES)),
    st.integers(1, 9),
    st.integers(0, 40),
    st.integers(0, 12),
    st.floats(0, 1, exclude_max=True),
)
def test_a_place_is_the_same_on_host_and_device(name: str, room: int, came: int, held: int, chance: float) -> None:
    policy = POLICY_CLASSES[name]()
    drawn = torch.tensor([chance], dtype=torch.float64) if policy.random else None
    on_device = policy.places(torch.tensor([came]), torch.tensor([held]), room, drawn)
    assert on_device.tolist() == [policy.place(came, held, room, chance)]
    assert 0 <= int(on_device) <= room


@pytest.mark.parametrize(("budget", "policy"), PAIRS)
def test_what_is_stored_and_drawn_is_the_same_on_host_and_device(budget: Budget, policy: PolicyName) -> None:
    short, long = (memory(12, policy=policy, budget=budget, seed=4) for _ in range(2))
    long.on_host = False
    for task, sizes in enumerate([(4, 1, 3), (6, 6), (20, 5, 1, 1, 1), (2,), (7,)]):
        for kept in (short, long):
            kept.open(task, 2)
            for number, n in enumerate(sizes):
                write(kept, *numbered(1000 * task + 100 * number, n, 2))
        assert short.available() == long.available()
        assert short.draws(3, short.available()).tolist() == long.draws(3, long.available()).tolist()
        if budget != "total":
            whole = short.available(current=True)
            assert whole == long.available(current=True)
            assert short.draws(2, whole, current=True).tolist() == long.draws(2, whole, current=True).tolist()
        for kept in (short, long):
            end_task(kept, task)
        mine, theirs = short.state_dict(), long.state_dict()
        assert mine.keys() == theirs.keys()
        assert all(torch.equal(mine[name], theirs[name]) for name in theirs)
