"""Steps with the gradients written out: where they are taken, and that they are the steps of automatic differentiation.

SCALE's are held to the independent re-computation as well (`test_scale_reference.py`), both ways.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from scale_cl.learners import Compute, Er, ErConfig, Scale, ScaleConfig
from scale_cl.learners.replay import Samples
from scale_cl.streams import TaskInfo
from tests.learners.tiny import COLOUR, DOMAIN, SPLIT, batch, teach

OTHERS: list[dict[str, Any]] = [
    {"adversary": False},
    {"generator": False},
    {"second_order": True},
    {"adversarial": "fake"},
    {"film": "sum"},
    {"discriminator_on": "film"},
    {"discriminator_steps": 2},
]


@pytest.mark.parametrize("values", [{}, {"derpp": False}, {"ce": "added"}, {"inner_steps": 2, "weight_average": 0.9}])
def test_scale_takes_its_step_by_hand_with_one_head(values: dict[str, Any]) -> None:
    assert Scale(DOMAIN, ScaleConfig(**values))._by_hand is not None


@pytest.mark.parametrize("values", OTHERS, ids=str)
def test_settings_that_are_not_written_out_leave_it_to_autograd(values: dict[str, Any]) -> None:
    assert Scale(DOMAIN, ScaleConfig(**values))._by_hand is None


def test_other_networks_and_precisions_leave_it_to_autograd() -> None:
    assert Scale(SPLIT)._by_hand is None
    assert Scale(COLOUR)._by_hand is None
    bf16 = Compute(precision="bf16")
    assert Scale(DOMAIN, compute=bf16)._by_hand is None
    learner = Er(DOMAIN, compute=bf16)
    learner.begin_task(TaskInfo("first", 3))
    assert learner._by_hand is None


def test_a_method_that_changes_a_part_of_the_step_has_that_part_called() -> None:
    class OwnScale(Scale):
        def _loss(self, *args: Any, **keywords: Any) -> Any:
            called.append("scale")
            return super()._loss(*args, **keywords)

    class OwnEr(Er):
        def _loss(self, samples: Samples) -> Tensor:
            called.append("er")
            return super()._loss(samples)

    called: list[str] = []
    teach(OwnScale(DOMAIN), tasks=1, steps=1)
    teach(OwnEr(DOMAIN), tasks=1, steps=1)
    assert called == ["scale"] * 2 + ["er"] * 3


@pytest.mark.parametrize("values", [{}, {"outer_steps": 2, "ce": "together"}, {"weight_average": 0.9}], ids=str)
def test_scale_by_hand_and_by_autograd_learn_and_say_the_same(values: dict[str, Any]) -> None:
    learners = [Scale(DOMAIN, ScaleConfig(memory=5, replay=8, **values), seed=3) for _ in range(2)]
    learners[1]._by_hand = None
    _compare(*learners)


@pytest.mark.parametrize(
    "values", [{}, {"replay": 4}, {"weight_average": 0.9}], ids=["paper", "equal parts", "average"]
)
def test_er_by_hand_and_by_autograd_learn_and_say_the_same(values: dict[str, Any]) -> None:
    class ByAutograd(Er):
        def _refresh(self, *, force: bool = False) -> None:
            super()._refresh(force=force)
            self._by_hand = None

    config = ErConfig(memory=5, **values)
    _compare(Er(DOMAIN, config, seed=3), ByAutograd(DOMAIN, config, seed=3))


def _compare(one: Scale | Er, other: Scale | Er) -> None:
    for learner in (one, other):
        teach(learner, tasks=3)
        learner.begin_task(TaskInfo("last", 3))
    mine, theirs = (learner.observe(*batch(DOMAIN, 4)) for learner in (one, other))
    assert list(mine) == list(theirs)
    for name, value in theirs.items():
        torch.testing.assert_close(mine[name], value, rtol=1e-4, atol=1e-6, msg=name)
    state, expected = one.state_dict()["tensors"], other.state_dict()["tensors"]
    assert state.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(state[name], value, rtol=1e-4, atol=1e-6, msg=name)
