"""Skipped steps are counted, and said at the end of a training."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch

from scale_cl.engine.divergence import DeviceGuard, HostGuard
from scale_cl.learners import Batch, Compute, Learner, registry
from scale_cl.training import train, train_many
from scale_cl.training.loop import skipped_line
from tests.training.small_streams import few_digits


def learner_that_diverges(bad: set[int], mode: Any = "skip", *, on_host: bool = True, seed: int = 0) -> Learner:
    """The steps with these numbers (from 0) leave infinity behind."""
    compute = Compute("fp32", capture=False, on_divergence=mode)
    learner = registry.make("finetune", few_digits().spec, compute=compute, seed=seed)
    learner.engine.guard = (HostGuard if on_host else DeviceGuard)(learner.device, mode)
    real = learner.update

    def update(batch: Batch) -> None:
        real(batch)
        if learner.steps in bad:
            next(learner.net.parameters()).data.fill_(torch.inf)

    learner.update = update  # type: ignore[method-assign]
    return learner


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [text for record in caplog.records if " skipped, because " in (text := record.getMessage())]


@pytest.mark.parametrize("on_host", [True, False])
def test_each_seed_that_skipped_steps_has_a_line(on_host: bool, caplog: pytest.LogCaptureFixture) -> None:
    bad: list[set[int]] = [{1, 2, 17}, set(), set(range(4, 18))]  # of 18 steps, over three tasks
    learners = [learner_that_diverges(steps, on_host=on_host, seed=seed) for seed, steps in enumerate(bad)]
    with caplog.at_level(logging.WARNING):
        train_many(learners, [few_digits(seed) for seed in range(3)])
    why = "were skipped, because a loss or gradient was not finite"
    assert told(caplog) == [
        f"scale-cl: warning: seed 0: 3 of 18 steps {why}",
        f"scale-cl: warning: seed 2: 14 of 18 steps {why}; the model is likely useless: lower the rate",
    ]


def test_what_a_learner_did_before_does_not_count(caplog: pytest.LogCaptureFixture) -> None:
    learner = learner_that_diverges({0, 1, 9})
    train(learner, few_digits(tasks=1))
    caplog.clear()
    train(learner, few_digits(tasks=1))
    assert [text.partition("seed 0: ")[2] for text in told(caplog)] == [
        "1 of 6 steps since step 6 was skipped, because a loss or gradient was not finite"
    ]


def test_a_training_without_such_steps_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    train(learner_that_diverges(set()), few_digits(tasks=1))
    assert told(caplog) == []


def test_half_of_the_steps_is_not_more_than_half() -> None:
    assert skipped_line(5, 10).endswith("5 of 10 steps were skipped, because a loss or gradient was not finite")
    assert skipped_line(6, 10).endswith("; the model is likely useless: lower the rate")


@pytest.mark.parametrize("on_host", [True, False])
def test_steps_that_nothing_is_watched_of_are_not_skipped(on_host: bool) -> None:
    learner = learner_that_diverges(set(), on_host=on_host)
    learner.engine.learned = list  # type: ignore[method-assign]
    train(learner, few_digits(tasks=1))
    assert (learner.steps, learner.skipped_steps) == (6, 0)
