"""NPC against a plain re-computation: importance of neurons, their rates, and batch norms at their pace."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from scale_cl.learners import Finetune, FinetuneConfig, Npc, NpcConfig
from scale_cl.streams import TaskInfo
from tests.learners.plain import in_double
from tests.learners.tiny import (
    COLOUR,
    DOMAIN,
    SMALL_COLOUR,
    batch,
    maps_of_two_convolutions,
    teach,
    two_convolutions,
)


def test_mlp_steps_are_those_of_the_plain_computation() -> None:
    c = NpcConfig(lr=0.1, alpha=0.05, beta=0.4, inertia=0.6)
    learner = in_double(Npc(DOMAIN, c))
    learner.importance.data = learner.importance.data.double()
    learner.begin_task(TaskInfo("a", 3))
    layers = [f"backbone.layers.{i}" for i in (0, 1)]
    base = {name: p.detach().clone() for name, p in learner.net.base_parameters().items()}
    importance = [torch.zeros(256, dtype=torch.float64) for _ in layers]
    for step in range(4):
        x, y = batch(DOMAIN, 5, seed=step)
        learner.observe(x, y)
        own = {name: p.requires_grad_() for name, p in base.items()}
        h, activations = x.double().flatten(1) / 255, []
        for layer in layers:
            h = (h @ own[f"{layer}.weight"].T + own[f"{layer}.bias"]).clamp(min=0)
            activations.append(h)
        logits = h @ own["heads.weight.data"][0].T + own["heads.bias.data"][0]
        loss = -logits.log_softmax(1)[range(5), y].mean()
        found = torch.autograd.grad(loss, [*own.values(), *activations])
        gradient = dict(zip(own, found, strict=False))
        rates = {name: torch.full((), c.lr, dtype=torch.float64) for name in own}
        for i, (layer, a, g) in enumerate(zip(layers, activations, found[len(own) :], strict=True)):
            taylor = (a * g).abs().mean(0)
            taylor = taylor / taylor.square().mean().sqrt()
            importance[i] = (c.inertia * importance[i] + (1 - c.inertia) * taylor).detach()
            rate = torch.tensor([rate_of(float(n), c) for n in importance[i]], dtype=torch.float64)
            rates |= {f"{layer}.weight": rate[:, None], f"{layer}.bias": rate}
        base = {name: (p - rates[name] * gradient[name]).detach() for name, p in own.items()}
        torch.testing.assert_close(learner.importance, torch.cat(importance), rtol=1e-5, atol=1e-9)
        for name, p in learner.net.base_parameters().items():
            torch.testing.assert_close(p.detach(), base[name], rtol=1e-5, atol=1e-8)
    assert 0 < int((learner.paces() < 1).sum()) < 512, "some neurons are slow, some are not"


def test_steps_of_convolutions_are_those_of_the_plain_computation() -> None:
    c = NpcConfig(lr=0.1, alpha=0.05, beta=0.4, inertia=0.6)
    learner = in_double(Npc(SMALL_COLOUR, c, backbone=two_convolutions))
    learner.importance.data = learner.importance.data.double()
    learner.begin_task(TaskInfo("a", 3))
    base = {name: p.detach().clone() for name, p in learner.net.base_parameters().items()}
    importance = [torch.zeros(width, dtype=torch.float64) for width in (7, 5)]
    mean, variance = torch.zeros(7, dtype=torch.float64), torch.ones(7, dtype=torch.float64)
    slow = []
    for step in range(4):
        x, y = batch(SMALL_COLOUR, 5, seed=step)
        learner.observe(x, y)
        own = {name: p.requires_grad_() for name, p in base.items()}
        maps = maps_of_two_convolutions(own, x)
        features = maps[1].clamp(min=0).mean((2, 3))
        logits = features @ own["heads.weight.data"][0].T + own["heads.bias.data"][0]
        found = torch.autograd.grad(-logits.log_softmax(1)[range(5), y].mean(), [*own.values(), *maps])
        gradient, rates = dict(zip(own, found, strict=False)), dict.fromkeys(own, torch.tensor(c.lr))
        for i, (a, g) in enumerate(zip(maps, found[len(own) :], strict=True)):
            taylor = (a * g).abs().mean((0, 2, 3))
            taylor = taylor / taylor.square().mean().sqrt()
            importance[i] = (c.inertia * importance[i] + (1 - c.inertia) * taylor).detach()
        each = [torch.tensor([rate_of(float(n), c) for n in own], dtype=torch.float64) for own in importance]
        rates |= {f"backbone.module.{i}.weight": each[i > 0].view(-1, 1, 1, 1) for i in (0, 3)}
        rates |= {f"backbone.module.1.{name}": each[0] for name in ("weight", "bias")}
        rates |= {"backbone.module.3.bias": each[1]}
        before = F.conv2d(x.double() / 255, base["backbone.module.0.weight"].detach(), stride=2)
        share = 0.1 * each[0] / c.lr  # of the batch in running statistics, at the neuron's pace
        mean = mean + share * (before.mean((0, 2, 3)) - mean)
        variance = variance + share * (before.var((0, 2, 3)) - variance)
        base = {name: (p - rates[name] * gradient[name]).detach() for name, p in own.items()}
        torch.testing.assert_close(learner.importance, torch.cat(importance), rtol=1e-5, atol=1e-9)
        for name, p in learner.net.base_parameters().items():
            torch.testing.assert_close(p.detach(), base[name], rtol=1e-5, atol=1e-8)
        for name, expected in (("running_mean", mean), ("running_var", variance)):
            kept = learner.net.get_buffer(f"backbone.module.1.{name}")
            torch.testing.assert_close(kept, expected, rtol=1e-5, atol=1e-8)
        slow += [int((own < c.lr).sum()) for own in each]
    assert 0 < sum(slow) < 4 * 12, "some neurons are slow, some are not"


def rate_of(importance: float, c: NpcConfig) -> float:
    if importance == 0 or c.beta / importance > 700:
        return c.lr
    return min(c.lr, c.alpha * math.sqrt(math.exp(c.beta / importance) - 1))


def taught(learner: Npc | Finetune) -> dict[str, Tensor]:
    return teach(learner, tasks=2).net.state_dict()


def test_where_no_neuron_is_slow_it_is_fine_tuning_to_the_bit() -> None:
    npc = taught(Npc(COLOUR, NpcConfig(lr=0.02, alpha=1e6)))
    plain = taught(Finetune(COLOUR, FinetuneConfig(lr=0.02)))
    assert [name for name, value in plain.items() if not torch.equal(npc[name], value)] == []


def test_a_neuron_that_is_held_keeps_its_weights_and_its_batch_norm() -> None:
    learner = Npc(COLOUR, NpcConfig(lr=0.02, inertia=0.9999))
    learner.begin_task(TaskInfo("a", 3))
    learner.importance.fill_(1e-9)  # of no importance
    learner.importance[:20:2] = 1e9  # every other neuron of the first layer
    before = {name: t.clone() for name, t in learner.net.backbone.state_dict().items()}
    learner.observe(*batch(COLOUR, 5))
    for name in ("conv.weight", "norm.weight", "norm.bias", "norm.running_mean", "norm.running_var"):
        moved = (learner.net.backbone.state_dict()[name] - before[name]).flatten(1 if "conv" in name else 0).abs()
        moved = moved.sum(1) if moved.dim() > 1 else moved
        assert float(moved[::2].max()) < 1e-4 * float(moved[1::2].max())
        assert bool((moved[1::2] > 0).all())


def test_a_layer_is_a_convolution_with_its_batch_norm() -> None:
    learner = Npc(COLOUR)
    norms = sum("norm" in name and name.endswith("weight") for name in learner.net.backbone.state_dict())
    shortcuts = 3
    assert len(learner.layers) == norms + shortcuts == 20
    assert all(len(layer.parts) == 2 for layer in learner.layers)
    assert [layer.parts for layer in Npc(DOMAIN).layers] == [("layers.0",), ("layers.1",)]
