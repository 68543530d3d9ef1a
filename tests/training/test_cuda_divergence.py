"""Divergence on any device: found within fifty steps, in recorded graphs too, with step and term; the state stays good.

Pixels are always finite, so a bad sample is one of features; a learning rate that explodes needs no bad sample.
"""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from torch import Tensor

from scale_cl.errors import DivergenceError
from scale_cl.learners import Compute, Learner, registry
from scale_cl.streams import InputSpec, TaskInfo
from tests.training.devices import DEVICES, LEARNERS, make, samples

FEATURES = InputSpec((12,), None, "task")
GREY, COLOUR = InputSpec((1, 8, 8), 255.0, "task"), InputSpec((3, 16, 16), 255.0, "task")
BAD = 9  # the step, from 1, whose batch holds NaN
WITHIN = 50


def only_where_it_matters(device: str, capture: bool) -> None:
    if device == "cpu" and capture:
        pytest.skip("the CPU records nothing")


def learned(learner: Learner) -> list[Tensor]:
    """All that a step changes, rows and counts of memories included; the generator goes on."""
    tensors = [t.detach().clone() for t in learner.engine.learned()]
    return tensors + [t for name, t in learner.state_dict()["tensors"].items() if name != "rng"]


def same(a: list[Tensor], b: list[Tensor]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def new(name: str, spec: InputSpec, device: str, mode: Any, capture: bool, **values: Any) -> Learner:
    how = Compute("fp32", capture=capture, on_divergence=mode)
    return make(name, spec, device, how, memory=8, replay=8, candidates=8, **values)


def steps(learner: Learner, first: int, count: int) -> None:
    """Batches numbered from `first`; the one numbered BAD has a NaN in one of its samples."""
    for number in range(first, first + count):
        x, y = samples(learner.spec, 4, 3, seed=number)
        if number == BAD and learner.spec.pixel_max is None:
            x[1, 5] = torch.nan
        learner.observe(x.to(learner.device), y.to(learner.device))


def recorded(learner: Learner) -> bool:
    return learner.device.type != "cuda" or learner.engine.step.recorded > 0


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("capture", [True, False], ids=["recorded", "eager"])
@pytest.mark.parametrize("name", LEARNERS)
def test_a_sample_that_is_not_finite_ends_training_in_time_and_leaves_what_was_learned(
    name: str, capture: bool, device: str
) -> None:
    only_where_it_matters(device, capture)
    learner = new(name, FEATURES, device, "stop", capture)
    learner.begin_task(TaskInfo("first", 3))
    steps(learner, 1, BAD - 1)
    assert recorded(learner) or not capture
    good = learned(learner)
    with pytest.raises(
        DivergenceError, match=rf"seed 0, step {BAD}: sample 1 of the batch holds NaN; mend the data, or"
    ) as caught:
        steps(learner, BAD, WITHIN + 5)
    print(f"{name}, {device}: found after {learner.steps - BAD} more steps: {caught.value}")
    assert learner.steps <= BAD + WITHIN
    assert same(learned(learner), good), "the bad step and all after it had no effect"
    with pytest.raises(DivergenceError):
        learner.check_finite()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("capture", [True, False], ids=["recorded", "eager"])
@pytest.mark.parametrize("name", LEARNERS)
def test_a_skipped_step_has_no_effect_and_those_after_it_have(
    name: str, capture: bool, device: str, caplog: pytest.LogCaptureFixture
) -> None:
    only_where_it_matters(device, capture)
    learner = new(name, FEATURES, device, "skip", capture)
    learner.begin_task(TaskInfo("first", 3))
    steps(learner, 1, BAD - 1)
    good = learned(learner)
    with caplog.at_level(logging.WARNING):
        steps(learner, BAD, 1)
        assert same(learned(learner), good)
        before = learned(learner)
        steps(learner, BAD + 1, 5 if device == "cpu" else WITHIN)
        learner.check_finite()
    assert not same(learned(learner), before)
    assert all(bool(t.isfinite().all()) for t in learned(learner) if t.is_floating_point())
    assert learner.skipped_steps == 1
    (line,) = [record.getMessage() for record in caplog.records]
    assert f"step {BAD}: sample 1 of the batch holds NaN" in line


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("mode", ["stop", "skip"])
@pytest.mark.parametrize("spec", [GREY, COLOUR], ids=["mlp", "resnet"])
@pytest.mark.parametrize("name", ["scale", "er", "mer", "agem", "gem", "ctn", "acl", "finetune"])
def test_a_learning_rate_that_explodes_is_found_and_the_state_stays_finite(
    name: str, spec: InputSpec, mode: str, device: str
) -> None:
    fields = registry.config_class(name).__dataclass_fields__
    rates = {field: 1e30 for field in fields if field in ("lr", "inner_lr")}
    learner = new(name, spec, device, mode, True, **rates)
    learner.begin_task(TaskInfo("first", 3))
    if device == "cpu" and spec is COLOUR and name not in ("scale", "er"):
        pytest.skip("slow on the CPU, where others have shown it")
    few = 6 if device == "cpu" else WITHIN + 5
    if mode == "stop":
        with pytest.raises(DivergenceError, match=r"step \d+: .* is not a finite number, with .*lr 1e\+30") as caught:
            steps(learner, BAD + 1, few)
        print(f"{name}, {device}: {caught.value}")
        assert learner.steps <= WITHIN + 3
    else:
        steps(learner, BAD + 1, few)
        learner.end_task()
        assert learner.skipped_steps > 0
    assert all(bool(t.isfinite().all()) for t in learner.engine.learned())
    state = learner.state_dict()["tensors"]
    assert all(bool(t.isfinite().all()) for name, t in state.items() if t.is_floating_point())
