"""The weight average: an exponential moving average that predicts, while training goes on with the raw parameters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from scale_cl.learners import Finetune, FinetuneConfig, Scale, ScaleConfig, registry
from scale_cl.streams import TaskInfo
from tests.learners.sameness import content
from tests.learners.tiny import COLOUR, DOMAIN, SPLIT, batch, teach


@pytest.mark.parametrize("spec", [DOMAIN, SPLIT, COLOUR], ids=["domain", "split", "resnet"])
def test_training_goes_on_with_the_raw_parameters(spec: Any) -> None:
    raw = teach(Finetune(spec, FinetuneConfig(), seed=1))
    averaged = teach(Finetune(spec, FinetuneConfig(weight_average=0.9), seed=1))
    states = content(raw.state_dict()), content(averaged.state_dict())
    assert all(torch.equal(t, states[1][name]) for name, t in states[0].items())
    x, _ = batch(spec, 4)
    assert not torch.equal(raw.predict(x, "task 1"), averaged.predict(x, "task 1"))


def test_the_average_is_the_one_of_the_definition() -> None:
    learner = Finetune(SPLIT, FinetuneConfig(weight_average=0.75, updates=2))
    learner.begin_task(TaskInfo("a", 3))
    names = ["backbone.layers.0.weight", "heads.weight.data"]
    expected = {n: learner.net.base_parameters()[n].detach().clone() for n in names}
    moved = learner.network.base.moved
    assert moved is not None

    def watched(values: Sequence[Tensor]) -> None:
        moved(values)
        for n in names:
            expected[n] = 0.75 * expected[n] + 0.25 * learner.net.base_parameters()[n].detach()

    learner.network.base.moved = watched
    for seed in range(4):
        learner.observe(*batch(SPLIT, 4, seed=seed))
    for n in names:
        torch.testing.assert_close(learner.engine.average[n], expected[n])


@pytest.mark.parametrize("weight_average", [0.0, 0.9])
def test_a_new_head_predicts_alike_with_and_without_an_average_before_its_first_step(weight_average: float) -> None:
    learner = Finetune(SPLIT, FinetuneConfig(weight_average=weight_average))
    for task in range(40):  # beyond what is allocated at first
        learner.begin_task(TaskInfo(str(task), 2 + task % 3))
    heads = learner.net.heads
    average = learner.engine.average.get("heads.weight.data", heads.weight.data)
    assert torch.equal(average[:40], heads.weight.data[:40])


@pytest.mark.parametrize("spec", [SPLIT, DOMAIN], ids=["split", "domain"])
def test_outputs_that_a_head_gains_enter_the_average_as_they_are(spec: Any) -> None:
    learner = Finetune(spec, FinetuneConfig(weight_average=0.9))
    for name, classes in (("a", 2), ("b", 5 if spec is SPLIT else 2)):
        learner.begin_task(TaskInfo(name, classes))
        for seed in range(3):
            learner.observe(*batch(spec, 4, 2, seed=seed))
    learner.begin_task(TaskInfo("a", 5))
    weight, average = learner.net.heads.weight.data[0], learner.engine.average["heads.weight.data"][0]
    assert torch.equal(average[2:5], weight[2:5])
    assert not torch.equal(average[:2], weight[:2])


def test_stored_logits_are_those_of_the_average() -> None:
    learner = Scale(SPLIT, ScaleConfig(weight_average=0.9, memory=6))
    teach(learner, tasks=1, steps=3)
    kept = learner.memory.logits["class"]
    rows = learner.memory.rows_of(0)
    stored = torch.stack([kept.flat[int(kept.start[row]) :][:3] for row in rows])
    torch.testing.assert_close(stored, learner.predict(learner.memory.x[rows], "task 0"))
    raw = Scale(SPLIT, ScaleConfig(memory=6))
    state = {n: t for n, t in learner.state_dict()["tensors"].items() if not n.startswith("average.")}
    raw.load_state_dict({"tensors": state, "meta": learner.state_dict()["meta"]})
    assert not torch.allclose(stored, raw.predict(learner.memory.x[rows], "task 0"))


def test_the_catalog_has_scale_with_an_average_and_without() -> None:
    assert "weight_average" not in registry.preset_settings("scale", "pmnist")
    assert registry.preset_settings("scale-ema", "pmnist")["weight_average"] == 0.95
    assert registry.preset_settings("scale-ema", "scifar100")["weight_average"] == 0.99
    assert ScaleConfig().weight_average == 0
