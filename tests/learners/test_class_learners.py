"""Learners of the class scenario against plain re-computations: ER-ACE, GDumb and SLDA."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from scale_cl.engine import STREAM
from scale_cl.errors import ConfigError, DivergenceError
from scale_cl.learners import registry
from scale_cl.learners.er_ace import ErAce, ErAceConfig
from scale_cl.learners.gdumb import Gdumb, GdumbConfig
from scale_cl.learners.scr import contrastive_loss
from scale_cl.learners.slda import Slda
from scale_cl.streams import InputSpec, TaskInfo
from tests.learners.replay_reference import Part, PlainReplay, SideBySide
from tests.learners.sameness import differences
from tests.learners.tiny import DOMAIN, batch

CLASS = InputSpec((1, 5, 5), 255.0, "class")
UNBOUNDED = replace(CLASS, boundaries=False)


class PlainErAce(PlainReplay):
    """The batch competes among its own classes, the replay among all."""

    def step(self, batch: Part) -> None:
        for _ in range(self.config.updates):
            logits = self.net.logits(batch.x, batch.tasks)
            present = sorted(set(batch.y))
            own = [o[present] for o in logits]
            terms = [-F.log_softmax(o, 0)[present.index(y)] for o, y in zip(own, batch.y, strict=True)]
            loss = torch.stack(terms).mean()
            replayed = self.replayed()
            if replayed is not None:
                loss = loss + self.config.replay_weight * self.ce(replayed)
            self.descend(self.gradient(loss), self.config.lr)
            self.moved()


def test_er_ace_steps_are_those_of_the_plain_computation() -> None:
    config = ErAceConfig(memory=5, replay=7, lr=0.1, updates=2, replay_weight=0.7)
    SideBySide(ErAce(DOMAIN, config), PlainErAce).some_tasks(DOMAIN)


def test_slda_has_the_means_and_the_pooled_covariance_of_all_samples() -> None:
    learner = Slda(CLASS)
    parts = []
    for task in range(2):
        learner.begin_task(TaskInfo(f"task {task}", 2 * task + 2))
        for step in range(6):
            x, y = batch(CLASS, 5, 2, seed=10 * task + step)
            parts.append((x, y + 2 * task))
            learner.observe(*parts[-1])
        learner.end_task()
    x, y = (torch.cat(part) for part in zip(*parts, strict=True))
    z = learner.features(x).double()
    means = torch.stack([z[y == k].mean(0) for k in range(4)])
    scatter = torch.eye(z.shape[1], dtype=torch.float64) + (z - means[y]).T @ (z - means[y])
    precision = len(z) * torch.linalg.inv(scatter)
    probe = batch(CLASS, 9, seed=99)[0]
    f = learner.features(probe).double()
    scores = f @ precision @ means.T - 0.5 * ((means @ precision) * means).sum(1)
    torch.testing.assert_close(learner.predict(probe).double(), scores, rtol=1e-3, atol=1e-2)


def test_gdumb_trains_a_new_network_on_its_memory_alone() -> None:
    config = GdumbConfig(memory=12, passes=3, size=5, lr=0.1, clip=1.0)
    learner = Gdumb(CLASS, config)
    learner.begin_task(TaskInfo("first", 3))
    before = learner.network.base.copy()
    for step in range(4):
        learner.observe(*batch(CLASS, 5, 3, seed=step))
    assert all(torch.equal(a, b) for a, b in zip(before, learner.network.base.tensors, strict=True))
    weights_rng, rng = learner.engine.weights_rng.get_state(), learner.engine.rng.get_state()
    learner.end_task()
    after = learner.network.base.copy()
    learner.engine.weights_rng.set_state(weights_rng)
    plain = [w.clone().requires_grad_() for w in learner.engine.fresh_weights()]
    order = torch.Generator().set_state(rng)
    for number in range(3):
        rows = torch.randperm(12, generator=order)
        for half in range(2):
            step = 2 * number + half
            rate = 0.0005 + (0.1 - 0.0005) * 0.5 * (1 + math.cos(math.pi * step / 6))
            own = rows[5 * half : 5 * half + 5]
            h = learner.memory.x[own].flatten(1) / 255
            for layer in range(2):
                h = torch.relu(F.linear(h, plain[2 * layer], plain[2 * layer + 1]))
            loss = F.cross_entropy(F.linear(h, plain[4][0], plain[5][0]), learner.memory.y[own])
            gradient = torch.autograd.grad(loss, plain)
            length = torch.stack([g.norm() for g in gradient]).norm().clamp(min=1.0)
            plain = [(w - rate * g / length).detach().requires_grad_() for w, g in zip(plain, gradient, strict=True)]
    for ours, theirs in zip(after, plain, strict=True):
        torch.testing.assert_close(ours, theirs.detach(), rtol=1e-4, atol=1e-5)


def test_without_boundaries_gdumb_trains_for_a_prediction_as_at_the_end_of_a_task() -> None:
    config = GdumbConfig(memory=12, passes=3, weight_average=0.5)
    told, asked, seldom = (Gdumb(spec, config) for spec in (CLASS, UNBOUNDED, UNBOUNDED))
    for learner, name in ((told, "first"), (asked, STREAM), (seldom, STREAM)):
        learner.begin_task(TaskInfo(name, 3))
    x = batch(CLASS, 9, seed=99)[0]
    for step in range(4):
        for learner in (told, asked, seldom):
            learner.observe(*batch(CLASS, 5, 3, seed=step))
        asked.predict(x)
    assert differences(asked, seldom) == []  # a prediction leaves the state as it is
    told.end_task()
    resumed = Gdumb(UNBOUNDED, config, seed=1)
    resumed.load_state_dict(seldom.state_dict())
    for learner in (asked, seldom, resumed):
        assert torch.equal(learner.predict(x), told.predict(x, "first"))
        assert torch.equal(learner.features(x), told.features(x, "first"))
    diverging = Gdumb(UNBOUNDED, GdumbConfig(memory=12, lr=1e30, clip=0))
    diverging.observe(*batch(CLASS, 12, 3))
    with pytest.raises(DivergenceError, match="gdumb diverged in training for a prediction; lower lr"):
        diverging.predict(x)


def test_what_does_not_apply_is_refused_with_what_would() -> None:
    with pytest.raises(ConfigError, match="gem must be told where tasks begin and end; tell it, have boundaries"):
        registry.make("gem", UNBOUNDED)
    with pytest.raises(ConfigError, match="memory_budget is task; a stream without boundaries needs total"):
        registry.make("er", UNBOUNDED)


def test_the_contrastive_loss_is_that_of_plain_loops() -> None:
    generator = torch.Generator().manual_seed(0)
    z = F.normalize(torch.randn(6, 4, generator=generator, dtype=torch.float64))
    y = [0, 1, 0, 2, 1, 0]
    total = torch.zeros((), dtype=torch.float64)
    for i in range(6):
        others = [j for j in range(6) if j != i]
        below = torch.stack([torch.exp(z[i] @ z[j] / 0.2) for j in others]).sum()
        alike = [j for j in others if y[j] == y[i]]
        terms = [-torch.log(torch.exp(z[i] @ z[j] / 0.2) / below) for j in alike]
        total += sum(terms) / max(1, len(terms))
    labels = torch.tensor(y)
    torch.testing.assert_close(contrastive_loss(z, labels.unsqueeze(1) == labels, 0.2), total / 6)
