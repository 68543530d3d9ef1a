"""NPC against a plain re-computation: importance of neurons, their rates, and batch norms at their pace."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from scale_cl.learners import Finetune, FinetuneConfig, Npc, NpcConfig
from scale_cl.streams import TaskInfo
from tests.learners.plain import in_double
from tests.learners.tiny import COLOUR, DOMAIN, batch, teach


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


def rate_of(importance: float, c: NpcConfig) -> float:
    if importance == 0 or c.beta / importance > 700:
        return c.lr
    return min(c.lr, c.alpha * math.sqrt(math.exp(c.beta / importance) - 1))


def taught(learner: Npc | Finetune) -> dict[str, Tensor]:
    return teach(learner, tasks=2).net.state_dict()


def test_where_no_neuron_is_slow_it_is_fine_tuning_to_the_bit() -> None:
    npc = taught(Npc(COLOUR, NpcConfig(lr=0.02, alpha=1e6)))
    plain = taught(Finetune(COLOUR, FinetuneConfig(lr=0.02)))
    for name, value in plain.items():
        torch.testing.assert_close(npc[name], value, rtol=1e-6, atol=1e-7)


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
