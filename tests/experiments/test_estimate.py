"""Estimates: steps are exact, seconds are there for every learner."""

from __future__ import annotations

import pytest

from scale_cl import training
from scale_cl.experiments.planning import estimated_seconds, step_count
from scale_cl.learners import registry
from scale_cl.training.config import resolve
from scale_cl.training.events import Event, Started
from tests.experiments.small_runs import config


@pytest.mark.parametrize("learner", ["finetune", "joint"])
def test_steps_are_those_that_training_makes(learner: str) -> None:
    told: list[Event] = []
    options = {"run.batch_size": 300, "stream.tasks": 2, "run.device": "cpu"}
    short = resolve(stream="digits", learner=learner, options=options)
    training.run(short, on_event=told.append)
    (started,) = [event for event in told if isinstance(event, Started)]
    assert started.steps == step_count(short)
    assert step_count(config(tasks=3)) == 300


@pytest.mark.parametrize("stream", ["digits", "pmnist", "scifar10", "scifar100", "sminiimagenet"])
def test_every_learner_has_a_time_on_every_stream(stream: str) -> None:
    for learner in registry.names():
        plain = resolve(stream=stream, learner=learner)
        assert estimated_seconds(plain, gpu=False) > 0
        assert estimated_seconds(plain, gpu=True) > 0
