"""ISYANA against a plain re-computation: what neurons and classes share, nearness, omega, rates and penalty."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.stats import pearsonr
from torch import Tensor

from scale_cl.errors import CheckpointError
from scale_cl.learners import Isyana, IsyanaConfig
from scale_cl.learners.isyana import relevance
from scale_cl.streams import TaskInfo
from tests.learners.plain import in_double
from tests.learners.sameness import differences
from tests.learners.tiny import (
    COLOUR,
    DOMAIN,
    SMALL_COLOUR,
    SPLIT,
    batch,
    maps_of_two_convolutions,
    new,
    teach,
    two_convolutions,
)


def plain_relevance(a: np.ndarray, b: np.ndarray) -> float:
    """R of two variables, by the textbook."""
    if len(a) < 2 or a.std() == 0 or b.std() == 0:
        return 0.0
    rho = float(pearsonr(a, b).statistic)
    if rho**2 > 1 - 1e-6:
        return 1.0
    entropies = [max(0.0, 0.5 * (1 + math.log(2 * math.pi * v.var(ddof=1)))) for v in (a, b)]
    return min(1.0, 2 * -0.5 * math.log(1 - rho**2) / (sum(entropies) + 0.01))


def test_relevance_is_mutual_information_relative_to_the_entropies() -> None:
    generator = torch.Generator().manual_seed(3)
    h = torch.randn(8, 6, generator=generator).relu() * torch.tensor([0.0, 0.1, 1, 3, 10, 1])
    o = torch.randn(8, 3, generator=generator) * 4 + h[:, 3:4]
    o[:, 2] = 2 * h[:, 4] - 1  # the same information
    found = relevance(h, o)
    wanted = [[plain_relevance(h[:, j].double().numpy(), o[:, c].double().numpy()) for j in range(6)] for c in range(3)]
    torch.testing.assert_close(found, torch.tensor(wanted), rtol=1e-3, atol=1e-5)
    assert found[2, 4] == 1
    assert not found[:, 0].any(), "a neuron that is constant has nothing in common with a class"
    assert not relevance(h[:1], o[:1]).any()
    missing = o.clone()
    missing[:, 1] = -torch.inf
    assert not relevance(h, missing)[1].any()


def of_mlp(own: dict[str, Tensor], x: Tensor) -> list[Tensor]:
    h, found = x.double().flatten(1) / 255, []
    for i in (0, 1):
        h = (h @ own[f"backbone.layers.{i}.weight"].T + own[f"backbone.layers.{i}.bias"]).clamp(min=0)
        found.append(h)
    return found


def of_convolutions(own: dict[str, Tensor], x: Tensor) -> list[Tensor]:
    return [h.clamp(min=0).mean((2, 3)) for h in maps_of_two_convolutions(own, x)]


@pytest.mark.parametrize("kind", ["mlp", "convolutions"])
def test_steps_are_those_of_the_plain_computation(kind: str) -> None:
    c = IsyanaConfig(lr=0.2, other_lr=0.05, penalty=0.7, sharing=2.0, backbone="mlp-7-5" if kind == "mlp" else "auto")
    spec, activations, incoming = DOMAIN, of_mlp, [f"backbone.layers.{i}.weight" for i in (0, 1)]
    if kind == "convolutions":
        spec, activations = SMALL_COLOUR, of_convolutions
        incoming = [f"backbone.module.{i}.weight" for i in (0, 3)]
    learner = in_double(Isyana(spec, c, backbone=None if kind == "mlp" else two_convolutions))
    seen: dict[tuple[int, int], list[Tensor]] = {}  # features of each task and class
    relevant: dict[int, list[np.ndarray]] = {}  # R of each task, batch by batch
    before: dict[str, Tensor] = {}
    for task in range(3):
        learner.begin_task(TaskInfo(str(task), 3))
        for step in range(3):
            own = {n: p.detach().clone().requires_grad_() for n, p in learner.net.base_parameters().items()}
            x, y = batch(spec, 6, seed=10 * task + step)
            stats = learner.observe(x, y)
            layers = activations(own, x)
            logits = layers[1] @ own["heads.weight.data"][0].T + own["heads.bias.data"][0]
            gradient = torch.autograd.grad(-logits.log_softmax(1)[range(6), y].mean(), list(own.values()))
            hidden, out = torch.cat(layers, 1).detach().numpy(), logits.detach().numpy()
            relevant.setdefault(task, []).append(
                np.array([[plain_relevance(hidden[:, j], out[:, k]) for j in range(12)] for k in range(3)])
            )
            for feature, label in zip(layers[1].detach(), y.tolist(), strict=True):
                seen.setdefault((task, label), []).append(feature)
            omega = torch.tensor(plain_omega(task, seen, relevant, c.sharing))
            penalty = 0.0
            for (name, p), g in zip(own.items(), gradient, strict=True):
                wanted = p - c.other_lr * g
                if name in incoming:
                    held = omega[:7] if name == incoming[0] else omega[7:]
                    held = held.view(-1, *[1] * (p.dim() - 1))
                    way = (p - before[name] if before else torch.zeros_like(p)).detach()
                    penalty += float((c.penalty * held * way**2).sum()) if before else 0.0
                    wanted = p - c.lr * torch.exp(-held - 0.1) * (g + 2 * c.penalty * held * way)
                now = learner.net.base_parameters()[name]
                torch.testing.assert_close(now.detach(), wanted.detach(), rtol=1e-5, atol=1e-7)
            assert float(stats["penalty"]) == pytest.approx(penalty, rel=1e-4, abs=1e-9)
        learner.end_task()
        before = {n: p.detach().clone() for n, p in learner.net.base_parameters().items()}
    assert 0 < float(omega.min()) < float(omega.max()) <= 1


def plain_omega(
    task: int, seen: dict[tuple[int, int], list[Tensor]], relevant: dict[int, list[np.ndarray]], sharing: float
) -> np.ndarray:
    others = [key for key in seen if key[0] != task]
    if not others:
        return np.zeros(12)
    now = torch.stack([f for key, own in seen.items() if key[0] == task for f in own]).mean(0)
    total = np.zeros(12)
    for k, label in others:
        mean = torch.stack(seen[k, label]).mean(0)
        distance = max(0.01, float((mean - now).norm() / (mean.norm() + now.norm())))
        total += np.mean(relevant[k], axis=0)[label] / distance / len(others)
    return np.exp(-sharing * total)


def test_without_holding_only_the_rates_differ_from_fine_tuning_and_in_the_first_task_nothing_is_held() -> None:
    learner = Isyana(SPLIT)
    learner.begin_task(TaskInfo("a", 3))
    learner.observe(*batch(SPLIT, 4))
    assert all(not o.any() for o in learner.omegas())
    learner.end_task()
    learner.begin_task(TaskInfo("b", 3))
    learner.observe(*batch(SPLIT, 4, seed=1))
    assert all(bool((o > 0).all()) and bool((o <= 1).all()) for o in learner.omegas())


def test_a_task_that_comes_back_is_not_one_of_the_others() -> None:
    learner = teach(Isyana(SPLIT), tasks=1)
    learner.begin_task(TaskInfo("task 0", 3))
    learner.observe(*batch(SPLIT, 4))
    assert all(not o.any() for o in learner.omegas())
    assert learner.kept_map().running_batches.tolist() == [3]


def test_channels_are_the_neurons_of_a_resnet() -> None:
    learner = teach(Isyana(COLOUR), tasks=2, steps=1)
    assert len(learner.held.tensors) == len(learner.layers) == 20
    assert {w.dim() for w in learner.held.tensors} == {4}


@pytest.mark.parametrize(("name", "table"), [("isyana", "map.running_relevance"), ("hal", "anchors.x")])
def test_a_table_of_other_classes_than_are_counted_is_refused(name: str, table: str) -> None:
    learner, other = (teach(new(name), tasks=2) for _ in range(2))
    state = other.state_dict()
    state["tensors"][table] = state["tensors"][table][:, :2]
    with pytest.raises(CheckpointError, match=rf"{table.partition('.')[2]} of .* is not of 2 tasks and 3 classes"):
        learner.load_state_dict(state)
    assert differences(learner, other) == []
