"""Extras of every learner: an average whose decay warms up, consistency with it, predictions averaged over flips."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor

from scale_cl.errors import ConfigError
from scale_cl.export.export_task import subject_of
from scale_cl.learners import Finetune, FinetuneConfig
from scale_cl.losses import squared_distance
from scale_cl.streams import InputSpec, TaskInfo
from tests.learners.plain import in_double
from tests.learners.tiny import DOMAIN, batch, new, teach

IMAGES = InputSpec((3, 8, 8), 255.0, "task")


def base(learner: Finetune) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in learner.net.base_parameters().items()}


def test_the_decay_of_an_average_warms_up_and_its_count_is_saved() -> None:
    config = FinetuneConfig(lr=0.5, weight_average=0.25, average_warmup=True)
    learner, other = Finetune(DOMAIN, config), Finetune(DOMAIN, config, seed=1)
    learner.begin_task(TaskInfo("a", 3))
    wanted = base(learner)
    for n in range(4):
        if n == 2:
            other.load_state_dict(learner.state_dict())
            learner = other
        learner.observe(*batch(DOMAIN, 5))
        decay = min(0.25, (1 + n) / (10 + n))
        wanted = {name: decay * wanted[name] + (1 - decay) * now for name, now in base(learner).items()}
    for name, found in learner.engine.average.items():
        torch.testing.assert_close(found, wanted[name])


def test_a_step_descends_the_cross_entropy_and_the_distance_to_the_averages_outputs() -> None:
    learner = in_double(Finetune(DOMAIN, FinetuneConfig(lr=0.1, weight_average=0.9, consistency=0.7)))
    learner.begin_task(TaskInfo("a", 3))
    x, y = batch(DOMAIN, 5)
    learner.observe(x, y)

    def outputs(weights: dict[str, Tensor]) -> Tensor:
        h = x.double().flatten(1) / 255
        for i in (0, 1):
            h = (h @ weights[f"backbone.layers.{i}.weight"].T + weights[f"backbone.layers.{i}.bias"]).clamp(min=0)
        return h @ weights["heads.weight.data"][0].T + weights["heads.bias.data"][0]

    before = {name: p.requires_grad_() for name, p in base(learner).items()}
    average = {name: t.clone() for name, t in learner.engine.average.items()}
    o = outputs(before)
    distance = (o - outputs(average).detach()).square().mean()
    wanted = -o.log_softmax(1)[range(5), y].mean() + 0.7 * distance
    gradient = torch.autograd.grad(wanted, list(before.values()))
    stats = learner.observe(x, y)
    assert distance.detach() > 0
    assert float(stats["consistency"]) == pytest.approx(float(distance.detach()))
    for (name, start), g in zip(before.items(), gradient, strict=True):
        torch.testing.assert_close(base(learner)[name], (start - 0.1 * g).detach())


def test_consistency_counts_the_outputs_that_exist() -> None:
    logits = torch.tensor([[0.0, 2.0, -torch.inf], [1.0, 2.0, 3.0]], requires_grad=True)
    found = squared_distance(logits, torch.tensor([[0.0, 0.0, -torch.inf], [1.0, 2.0, 0.0]]))
    assert float(found.detach()) == pytest.approx((4 / 2 + 9 / 3) / 2)
    (gradient,) = torch.autograd.grad(found, logits)
    assert bool(gradient.isfinite().all())


@pytest.mark.parametrize("name", ["scale", "icarl"])
def test_predictions_are_averaged_over_flips_also_in_an_exported_model(name: str) -> None:
    settings: dict[str, Any] = {"backbone": "mlp-8-8", "memory": 6}
    plain = teach(new(name, IMAGES, **settings), tasks=2)
    learner = new(name, IMAGES, **settings, average_flips=True)
    learner.load_state_dict(plain.state_dict())
    x = batch(IMAGES, 5)[0]
    mean = (plain.predict(x, "task 1") + plain.predict(x.flip(-1), "task 1")) / 2
    torch.testing.assert_close(learner.predict(x, "task 1"), mean)
    exported = subject_of(learner, "task 1").net()
    torch.testing.assert_close(exported(x), mean, rtol=1e-4, atol=1e-5)


def test_settings_of_the_average_need_one() -> None:
    for values in ({"average_warmup": True}, {"consistency": 0.1}):
        with pytest.raises(ConfigError, match="needs a weight average; set"):
            dataclasses.replace(FinetuneConfig(), **values)
