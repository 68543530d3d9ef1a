"""Divergence: the step that leaves NaN or infinity has no effect, and the host is told of it in time."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from torch import Tensor

from scale_cl.engine.divergence import POLL
from scale_cl.errors import DivergenceError, ScaleClError
from scale_cl.learners import Batch, Compute, Learner, Scale, registry
from scale_cl.streams import InputSpec, TaskInfo
from tests.learners.hardships import as_on_a_gpu
from tests.learners.sameness import differences
from tests.learners.tiny import COLOUR, SPLIT, batch, quick, teach

MODES = ("stop", "skip")
NO_AVERAGE = (
    "acl",
    "pnn",
    "independent",
    "den",
    "learn-to-grow",
    "bocl",
    "kiera",
    "adcn",
)  # all but the first refuse one


def make(name: str, mode: Any, on_host: bool, spec: InputSpec = SPLIT, **values: Any) -> Learner:
    compute = Compute(precision="fp32", capture=False, on_divergence=mode)
    learner = registry.make(name, spec, registry.config_class(name)(**quick(name) | values), compute=compute)
    return learner if on_host else as_on_a_gpu(learner)


def poison(learner: Learner, steps: set[int], *, term: str | None = None) -> None:
    """Make the updates of these steps (from 0) leave NaN in all that is learned, and in a loss term."""
    real = learner.update

    def update(batch: Batch) -> None:
        real(batch)
        if learner.steps in steps:
            for t in learner.engine.learned():
                t.detach()[(0,) * t.dim()] = torch.nan
            if term is not None:
                learner.log(**{term: torch.tensor(torch.inf)})

    learner.update = update  # type: ignore[method-assign]


def observe(learner: Learner, steps: int) -> None:
    for number in range(steps):
        learner.observe(*batch(SPLIT, 4, seed=number))


def learned(learner: Learner) -> list[Tensor]:
    return [t.detach().clone() for t in learner.engine.learned()]


def same(a: list[Tensor], b: list[Tensor]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("on_host", [True, False], ids=["by the host", "on the device"])
@pytest.mark.parametrize("name", registry.names())
def test_a_bad_step_leaves_what_was_learned_as_it_was(name: str, on_host: bool) -> None:
    learner = teach(make(name, "stop", on_host, SPLIT, weight_average=0.0 if name in NO_AVERAGE else 0.9), tasks=2)
    learner.begin_task(TaskInfo("open", 3))
    learner.observe(*batch(SPLIT, 4))
    good = learned(learner)
    poison(learner, {5})
    with pytest.raises(
        DivergenceError, match=r"seed 0, step 6: gradient is not a finite number(, with .*lr 0|; lower)"
    ):
        observe(learner, 2 * POLL)
    assert same(learned(learner), good), "the bad step and all after it had no effect"
    assert learner.steps <= 6 + 2 * POLL
    assert (learner.steps == 6) == on_host
    with pytest.raises(DivergenceError):
        learner.end_task()


@pytest.mark.parametrize("on_host", [True, False], ids=["by the host", "on the device"])
@pytest.mark.parametrize("name", ["scale", "scale-ema", "derpp", "acl", "gem", "joint"])
def test_skipped_steps_leave_the_others_effective(name: str, on_host: bool, caplog: pytest.LogCaptureFixture) -> None:
    learner, plain = (make(name, "skip", on_host) for _ in range(2))
    poison(learner, {2, 3, 7}, term="loss")
    for other in (learner, plain):
        other.begin_task(TaskInfo("first", 3))
    with caplog.at_level(logging.WARNING):
        for number in range(10):
            before = learned(learner)
            learner.observe(*batch(SPLIT, 4, seed=number))
            plain.observe(*batch(SPLIT, 4, seed=number))
            assert same(before, learned(learner)) == (number in {2, 3, 7})
            if number < 2:
                assert same(learned(plain), learned(learner))
        learner.end_task()
    assert learner.skipped_steps == 3
    (line,) = [record.getMessage() for record in caplog.records]
    assert "step 3: loss is not a finite number" in line
    assert all(torch.isfinite(t).all() for t in learned(learner))
    assert all(torch.isfinite(t).all() for n, t in learner.state_dict()["tensors"].items() if t.is_floating_point())


@pytest.mark.parametrize("on_host", [True, False])
def test_a_guard_changes_nothing_as_long_as_all_is_well(on_host: bool) -> None:
    guarded = make("scale", "stop", on_host, COLOUR)
    bare = Scale(COLOUR, compute=guarded.compute)
    bare.engine.learned = list  # type: ignore[method-assign]
    assert differences(teach(guarded), teach(bare)) == []


def test_the_running_statistics_are_set_back_too() -> None:
    learner = teach(make("scale", "skip", False, COLOUR), tasks=1)
    learner.begin_task(TaskInfo("open", 3))
    poison(learner, {learner.steps})
    before = {n: b.clone() for n, b in learner.net.named_buffers() if "running" in n}
    assert before
    learner.observe(*batch(COLOUR, 4))
    assert all(torch.equal(b, before[n]) for n, b in learner.net.named_buffers() if "running" in n)


def test_a_task_begun_after_good_steps_keeps_its_new_head_when_its_first_step_is_bad() -> None:
    learner = teach(make("er", "skip", False), tasks=1)
    poison(learner, {learner.steps})
    learner.begin_task(TaskInfo("new", 3))
    head = learner.net.heads.weight.data[1].clone()
    assert head.abs().sum() > 0
    learner.observe(*batch(SPLIT, 4))
    assert torch.equal(learner.net.heads.weight.data[1], head)


def test_a_loaded_learner_counts_its_steps_on() -> None:
    source = teach(make("er", "stop", True))
    learner = make("er", "stop", True)
    learner.load_state_dict(source.state_dict())
    poison(learner, {8})
    learner.begin_task(TaskInfo("more", 3))
    with pytest.raises(DivergenceError, match="step 9: gradient"):
        observe(learner, 5)


def test_the_first_term_that_is_not_finite_is_named() -> None:
    learner = make("scale", "stop", True)
    poison(learner, {0}, term="outer_ce")
    learner.begin_task(TaskInfo("first", 3))
    with pytest.raises(DivergenceError) as caught:
        learner.observe(*batch(SPLIT, 4))
    assert str(caught.value) == (
        "seed 0, step 1: outer_ce is not a finite number, with inner_lr 0.01, outer_lr 0.1, adversarial_lr 0.001; "
        'lower the rate, or let such steps be skipped (on_divergence="skip" in Compute)'
    )


@pytest.mark.parametrize("mode", MODES)
def test_what_diverges_when_a_task_ends_is_an_error_in_either_mode_and_no_state_is_given(mode: str) -> None:
    learner = make("gdumb", mode, True, lr=1e6, clip=0.0, passes=9)
    learner.begin_task(TaskInfo("first", 3))
    for step in range(3):
        learner.observe(*batch(SPLIT, 8, seed=step))
    with pytest.raises(DivergenceError) as caught:
        learner.end_task()
    assert str(caught.value) == (
        "seed 0: gdumb diverged when task 'first' ended: what it learned is not finite, "
        "with lr 1e+06, last_lr 0.0005; lower the rate"
    )
    with pytest.raises(ScaleClError, match="end_task was interrupted or failed half-way"):
        learner.state_dict()
