"""Steps of SCALE against an independent, plain re-computation: every parameter of every part, across task changes."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from scale_cl.learners import ScaleConfig
from tests.learners.side_by_side import IMAGES, PIXELS, SideBySide, parts_of

# each differs from the paper's settings in what it names
READINGS: dict[str, dict[str, Any]] = {
    "as the paper": {},
    "CE of batch and replay added": {"ce": "added"},
    "CE of batch and replay together": {"ce": "together"},
    "adversarial loss with a plus": {"adversarial": "plus"},
    "adversarial loss towards the fake task": {"adversarial": "fake"},
    "ablation A": {"adversary": False},
    "ablation B": {"derpp": False},
    "ablation C": {"generator": False},
    "ablations A and B": {"adversary": False, "derpp": False},
    "ablations A and C": {"adversary": False, "generator": False},
    "FiLM summed before the relu": {"film": "sum"},
    "discriminator on the FiLM-ed features": {"discriminator_on": "film"},
    "discriminator on the FiLM-ed features, fake": {"discriminator_on": "film", "adversarial": "fake"},
    "without noise": {"noise": False},
    "logits refreshed": {"refresh_logits": True},
    "separate forwards": {"forward": "separate"},
    "the last samples kept": {"memory_policy": "ring"},
    "running statistics left as they are": {"norm_on_memory": False},
    "two inner in two outer steps": {"inner_steps": 2, "outer_steps": 2},
    "two discriminator steps": {"discriminator_steps": 2},
    "two inner steps without a generator": {"inner_steps": 2, "outer_steps": 2, "generator": False},
    "weight average": {"weight_average": 0.9},
    "weight average and two inner steps": {"weight_average": 0.9, "inner_steps": 2, "refresh_logits": True},
    "second order": {"second_order": True},
    "second order, two inner in two outer steps": {"second_order": True, "inner_steps": 2, "outer_steps": 2},
    "second order with a weight average": {"second_order": True, "inner_steps": 2, "weight_average": 0.9},
    "second order without a generator": {"second_order": True, "generator": False},
    "other weights of the losses": {"lambda1": 0.3, "lambda2": 2.0, "lambda3": 0.9},
}
MLP_IS_ENOUGH = {
    "without noise",
    "CE of batch and replay added",
    "adversarial loss towards the fake task",
    "ablations A and C",
    "the last samples kept",
    "weight average and two inner steps",
    "adversarial loss with a plus",
    "discriminator on the FiLM-ed features, fake",
    "ablations A and B",
    "two discriminator steps",
    "two inner steps without a generator",
    "second order, two inner in two outer steps",
    "second order without a generator",
    "second order with a weight average",
    "other weights of the losses",
}
STRONG: dict[str, Any] = {
    "inner_lr": 0.1,
    "outer_lr": 0.1,
    "adversarial_lr": 0.1,
    "lambda3": 0.3,
}  # so that every part moves
STEADY: dict[str, Any] = STRONG | {"inner_lr": 0.01}  # batch norm over so few samples throws a larger step out


@pytest.mark.parametrize("reading", READINGS)
def test_mlp_steps_are_those_of_the_plain_computation(reading: str) -> None:
    both = SideBySide(PIXELS, ScaleConfig(memory=5, replay=8, **STRONG | READINGS[reading]))
    for task in "abc":
        both.task(task, 3, steps=2, batch=4)
    if both.learner.config.derpp:
        assert sorted(set(both.sizes)) == [5, 8]


@pytest.mark.parametrize("reading", [name for name in READINGS if name not in MLP_IS_ENOUGH])
def test_resnet_steps_are_those_of_the_plain_computation(reading: str) -> None:
    both = SideBySide(IMAGES, ScaleConfig(memory=5, replay=8, **STEADY | READINGS[reading]))
    for task, classes, steps in (("a", 2, 1), ("b", 3, 1), ("c", 2, 1)):  # heads of different widths
        both.task(task, classes, steps=steps, batch=5)
    if both.learner.config.derpp:
        assert sorted(set(both.sizes)) == [5, 8]


@pytest.mark.parametrize("ce", ["batch", "added"])
def test_the_papers_own_sizes_give_the_same_mlp_steps(ce: Any) -> None:
    both = SideBySide(PIXELS, ScaleConfig(ce=ce, inner_lr=0.1, outer_lr=0.01))
    for task, steps in enumerate((6, 5, 2, 2)):
        both.task(f"task {task}", 10, steps=steps, batch=10)
    assert sorted(set(both.sizes)) == [50, 64]


def test_the_papers_own_sizes_give_the_same_resnet_steps() -> None:
    both = SideBySide(IMAGES, ScaleConfig())
    for task, steps, batch in (("a", 2, 25), ("b", 2, 25), ("c", 1, 10)):
        both.task(task, 5, steps=steps, batch=batch)
    assert sorted(set(both.sizes)) == [50, 64]


@pytest.mark.parametrize("policy", ["reservoir", "ring"])
def test_tasks_of_unequal_batches_fill_a_memory_less_or_more(policy: Any) -> None:
    both = SideBySide(PIXELS, ScaleConfig(memory=7, replay=9, memory_policy=policy, **STRONG))
    both.task("short", 3, steps=1, batch=3)
    both.task("long", 3, steps=4, batch=5)
    both.task("wide", 3, steps=1, batch=11)
    both.task("last", 3, steps=1, batch=1)
    assert both.sizes == [3, 3] * 4 + [9, 9] * 2


def test_tasks_may_outnumber_the_samples_of_a_forward() -> None:
    both = SideBySide(PIXELS, ScaleConfig(memory=1, replay=2, **STRONG))
    for task in "abcdef":
        both.task(task, 3, steps=2, batch=1)


def test_every_part_moves_in_a_step() -> None:
    both = SideBySide(IMAGES, ScaleConfig(memory=5, replay=8, **STEADY))
    both.task("a", 2, steps=2, batch=4)
    before = parts_of(both.learner)
    both.task("b", 2, steps=1, batch=4)
    after = parts_of(both.learner)
    for one, other in (
        (before.base, after.base),
        (before.generator, after.generator),
        (before.discriminator, after.discriminator),
    ):
        for name, value in one.items():
            assert not torch.equal(value, other[name]), name
