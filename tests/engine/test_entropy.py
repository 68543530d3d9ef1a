"""CPR: every loss that base weights descend is lowered by the entropy of the outputs it was computed from."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from scale_cl.errors import ConfigError
from scale_cl.learners import Finetune, FinetuneConfig, LearnToGrow, LearnToGrowConfig, registry
from scale_cl.losses import entropy
from scale_cl.streams import TaskInfo
from tests.learners.plain import in_double
from tests.learners.tiny import DOMAIN, SPLIT, batch, new, teach

NO_OUTPUTS = ("scr", "slda", "kiera", "adcn")  # they train no outputs of classes


def test_entropy_is_that_of_the_outputs_that_exist() -> None:
    logits = torch.tensor([[0.0, 0.0, -torch.inf], [1.0, 2.0, 3.0]], requires_grad=True)
    p = torch.tensor([1.0, 2.0, 3.0]).softmax(0)
    wanted = (torch.tensor(2.0).log() - (p * p.log()).sum()) / 2
    found = entropy(logits)
    torch.testing.assert_close(found, wanted)
    (gradient,) = torch.autograd.grad(found, logits)
    assert bool(gradient.isfinite().all())
    torch.testing.assert_close(gradient[0, :2], torch.zeros(2))  # the uniform distribution is the maximum


def test_a_step_descends_the_cross_entropy_less_the_weighted_entropy() -> None:
    learner = in_double(Finetune(DOMAIN, FinetuneConfig(lr=0.1, entropy=0.7)))
    learner.begin_task(TaskInfo("a", 3))
    x, y = batch(DOMAIN, 5)
    before = {name: p.detach().clone().requires_grad_() for name, p in learner.net.base_parameters().items()}
    h = x.double().flatten(1) / 255
    for i in (0, 1):
        h = (h @ before[f"backbone.layers.{i}.weight"].T + before[f"backbone.layers.{i}.bias"]).clamp(min=0)
    p = (h @ before["heads.weight.data"][0].T + before["heads.bias.data"][0]).softmax(1)
    wanted = -(p[range(5), y].log()).mean() - 0.7 * -(p * p.log()).sum(1).mean()
    gradient = torch.autograd.grad(wanted, list(before.values()))
    stats = learner.observe(x, y)
    assert float(stats["entropy"]) == pytest.approx(float(-(p * p.log()).sum(1).mean().detach()))
    for (name, start), g in zip(before.items(), gradient, strict=True):
        torch.testing.assert_close(learner.net.base_parameters()[name].detach(), (start - 0.1 * g).detach())


@pytest.mark.parametrize("name", [name for name in registry.names() if name not in NO_OUTPUTS])
def test_every_learner_has_it_and_is_the_same_without(name: str) -> None:
    values: dict[str, Any] = {"memory": 5} if "memory" in registry.config_class(name).__dataclass_fields__ else {}
    plain, zero, lowered = (
        teach(new(name, SPLIT, entropy=weight, **values), tasks=2).predict(batch(SPLIT, 5)[0], "task 1")
        for weight in (0.0, 1e-12, 0.5)
    )
    torch.testing.assert_close(zero, plain, rtol=1e-5, atol=1e-6)
    assert not torch.allclose(lowered, plain, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", NO_OUTPUTS)
def test_a_learner_that_trains_no_outputs_refuses_it(name: str) -> None:
    for setting in ("entropy", "consistency"):
        values: dict[str, Any] = {setting: 0.1, "weight_average": 0.9}
        with pytest.raises(ConfigError, match=f"learner.{setting} must be 0 for a learner that trains no outputs"):
            registry.config_class(name)(**values)


def test_a_step_in_which_trunk_and_heads_stay_leaves_no_term_for_the_next() -> None:
    learner = LearnToGrow(SPLIT, LearnToGrowConfig(backbone="mlp-6-5", search_steps=4, entropy=0.5))
    teach(learner, tasks=1)
    learner.begin_task(TaskInfo("next", 3))
    terms = [learner.observe(*batch(SPLIT, 4, seed=step)) for step in range(4)]
    assert ["entropy" in found for found in terms] == [True, False, True, False]  # every second step is alpha's
    assert 0 < float(terms[2]["entropy"]) <= torch.tensor(3.0).log(), "of one forward"
    learner.predicting_net()  # a copy, which no graph of a step is in the way of
