"""HAL: the step ahead and its derivative against finite differences, and how anchors are made."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call

from scale_cl.learners import Hal, HalConfig
from scale_cl.learners.hal import Anchors
from scale_cl.losses import NO_CLASS
from scale_cl.streams import InputSpec, TaskInfo
from tests.learners.plain import IMAGE, SPLIT, VECTOR, PlainNet, assert_same, base_of, gradients, in_double, mean_ce
from tests.learners.reference_networks import Parameters
from tests.learners.replay_reference import Part, PlainReplay, SideBySide
from tests.learners.tiny import COLOUR, DOMAIN, batch, teach

FEW: dict[str, Any] = {"forgetting_steps": 2, "anchor_steps": 2}


class PlainHal(PlainReplay):
    """The loss as a function of theta, whose gradient is measured along the direction in which the learner went."""

    anchors: tuple[Tensor, list[int]] | None = None  # inputs and tasks of those drawn in the last step

    def whole(self, base: Parameters, batch: Part, replayed: Part) -> Tensor:
        """l(B u R) + lambda * mean over anchors of |f_theta(e) - f_theta~(e)|^2, with theta~ = theta - a grad l."""
        first = {name: p.detach().requires_grad_() for name, p in base.items()}
        loss = self.joint(first, batch, replayed)
        found = torch.autograd.grad(loss, list(first.values()), allow_unused=True)
        pairs = zip(first.items(), found, strict=True)
        ahead = {name: p.detach() - self.config.lr * (0 if g is None else g) for (name, p), g in pairs}
        assert self.anchors is not None
        now, then = (self.outputs(theta, *self.anchors) for theta in (base, ahead))
        distance = torch.stack([((a - b) ** 2).sum() for a, b in zip(now, then, strict=True)]).mean()
        whole: Tensor = loss.detach() + self.config.anchoring * distance
        return whole

    def joint(self, base: Parameters, batch: Part, replayed: Part) -> Tensor:
        self.net.base = base
        x, tasks = torch.cat([batch.x, replayed.x]), batch.tasks + replayed.tasks
        return mean_ce(self.net.logits(x, tasks), batch.y + replayed.y)

    def outputs(self, base: Parameters, x: Tensor, tasks: list[int]) -> list[Tensor]:
        self.net.base = base
        return [o.detach() for o in self.net.logits(255 * x, tasks)]


class OneStep:
    """A step of the third task: what was drawn in it, and the parameters before and after it."""

    def __init__(self, spec: InputSpec, config: HalConfig) -> None:
        learner = in_double(Hal(spec, config))
        self.plain, drawn, rows = PlainHal(learner), learner.drawn, list[Tensor]()
        teach(learner, tasks=2)
        learner.begin_task(TaskInfo("open", 3))
        learner.observe(*batch(spec, 4, seed=1))
        self.plain.net.meet(learner)
        self.before = {name: p.detach().clone() for name, p in self.plain.net.base.items()}
        sets = learner.memory.draws

        def noted(times: int, n: int, *, current: bool = False) -> Tensor:
            rows.append(sets(times, n, current=current))
            return rows[-1]

        def noted_anchors() -> Any:
            found = drawn()
            self.plain.anchors = found[0].x[found[1]], found[0].task[found[1]].tolist()
            return found

        learner.memory.draws, learner.drawn = noted, noted_anchors  # type: ignore[method-assign]
        x, y = batch(spec, 4, seed=2)
        learner.observe(x, y)
        (which,) = rows[0]
        memory = learner.memory
        self.batch = Part(x, y.tolist(), [2] * 4, [])
        self.replayed = Part(memory.x[which], memory.y[which].tolist(), memory.task[which].tolist(), [])
        self.after = base_of(learner)


@pytest.mark.parametrize("spec", [VECTOR, SPLIT], ids=["one head", "a head per task"])
def test_a_step_descends_the_whole_loss_by_finite_differences(spec: InputSpec) -> None:
    config = HalConfig(memory=5, replay=7, lr=0.1, anchoring=1.0, **FEW)
    step = OneStep(spec, config)
    plain, before, parts = step.plain, step.before, (step.batch, step.replayed)
    way = {name: (before[name] - p) / config.lr for name, p in step.after.items()}  # the gradient taken
    length = sum(float(w.square().sum()) for w in way.values())
    eps = 1e-5
    forth, back = (
        plain.whole({name: p + sign * eps * way[name] for name, p in before.items()}, *parts) for sign in (1, -1)
    )
    slope = float(forth - back) / (2 * eps)  # along its own gradient, the slope is the gradient's square
    assert slope == pytest.approx(length, rel=1e-4)
    no_anchors = plain.joint(before, *parts)
    assert abs(float(plain.whole(before, *parts) - no_anchors)) > 1e-3, "anchors matter here"


@pytest.mark.parametrize("second_order", [False, True])
def test_a_step_of_either_order_is_that_of_the_plain_computation(second_order: bool) -> None:
    config = HalConfig(memory=5, replay=7, lr=0.1, anchoring=1.0, second_order=second_order, **FEW)
    step = OneStep(SPLIT, config)
    plain, other = (recomputed(step, config, second_order=order) for order in (second_order, not second_order))
    assert_same(step.after, plain)
    assert any(float((plain[name] - p).abs().max()) > 1e-3 for name, p in other.items()), "the order matters here"


def recomputed(step: OneStep, config: HalConfig, *, second_order: bool) -> Parameters:
    """The parameters after the step; in first order, the gradient in theta~ is a constant and theta is not."""
    theta, net = {name: p.clone().requires_grad_() for name, p in step.before.items()}, step.plain.net
    loss = step.plain.joint(theta, step.batch, step.replayed)
    found = torch.autograd.grad(loss, list(theta.values()), create_graph=True, allow_unused=True)
    gradient = {name: torch.zeros_like(theta[name]) if g is None else g for name, g in zip(theta, found, strict=True)}
    inner = {name: g if second_order else g.detach() for name, g in gradient.items()}
    ahead = {name: p - config.lr * inner[name] for name, p in theta.items()}
    assert step.plain.anchors is not None
    x, tasks = step.plain.anchors
    outputs = []
    for net.base in (theta, ahead):
        outputs.append(net.logits(255 * x, tasks))
    distance = torch.stack([((a - b) ** 2).sum() for a, b in zip(*outputs, strict=True)]).mean()
    held = gradients(distance, theta)
    taken = {name: g + config.anchoring * held[name] for name, g in gradient.items()}
    return {name: (p - config.lr * taken[name]).detach() for name, p in theta.items()}


@pytest.mark.parametrize("statistics", ["batch", "running"])
def test_batch_norm_on_anchors_uses_the_statistics_that_are_asked_for(statistics: Any) -> None:
    config = HalConfig(memory=5, replay=7, lr=0.1, anchor_statistics=statistics, **FEW)
    learner = in_double(Hal(COLOUR, config))
    teach(learner, tasks=2)
    learner.begin_task(TaskInfo("open", 3))
    er = in_double(Hal(COLOUR, replace(config, anchoring=0.0)))  # its step is the step ahead
    er.load_state_dict(learner.state_dict())
    found, drawn = list[Any](), learner.drawn
    learner.drawn = lambda: found.append(drawn()) or found[-1]  # type: ignore[method-assign, func-returns-value]
    before = copy.deepcopy(learner.net)
    x, y = batch(COLOUR, 4, seed=2)
    stats = learner.observe(x, y)
    e, counts = found[0]
    er.observe(x, y)
    nets = before, er.net
    moved = {name: b for name, b in learner.net.named_buffers() if "running" in name}  # by the batch, not by anchors
    for net in nets:
        net.train(statistics == "batch")
        for name, b in net.named_buffers():
            if name in moved:
                b.copy_(moved[name])
    with torch.no_grad():
        now, then = (net(e.x, e.task).logits for net in nets)
    each = torch.where(now == NO_CLASS, 0.0, now - then).square().sum(1)
    torch.testing.assert_close(stats["anchors"], each[counts].mean())


def test_the_first_task_is_er_with_one_mean_over_all_and_its_anchors_are_stored_samples() -> None:
    learner = Hal(DOMAIN, HalConfig(memory=6, **FEW))
    teach(learner, tasks=1, n=8)
    anchors = learner.kept_anchors()
    stored = learner.memory.x[learner.memory.rows_of(0)] / 255
    for label in range(3):
        if bool(anchors.exists[0, label]):
            assert any(torch.equal(anchors.x[0, label], x) for x in stored)
    assert bool(anchors.exists.any())


def test_anchors_of_later_tasks_start_at_the_class_mean_and_are_forgotten_more() -> None:
    learner = Hal(COLOUR, HalConfig(memory=8, forgetting_steps=3, anchor_steps=8, anchor_lr=0.02))
    teach(learner, tasks=1, n=6)
    learner.begin_task(TaskInfo("second", 3))
    data = [batch(COLOUR, 6, seed=seed) for seed in (1, 2)]
    for x, y in data:
        learner.observe(x, y)
    x, y = (torch.cat(parts) for parts in zip(*data, strict=True))
    kept = learner.kept_anchors()
    for label in range(3):
        torch.testing.assert_close(kept.running_image[label], (x[y == label] / 255).mean(0), rtol=1e-4, atol=1e-5)
    start, now = kept.running_image.clone(), copy.deepcopy(learner.net).eval()
    before = {name: t.clone() for name, t in learner.net.state_dict().items()}
    found: list[Any] = []
    make = learner.after_earlier_tasks

    def noted(rows: Tensor) -> Any:
        found.append(make(rows))
        return found[-1]

    learner.after_earlier_tasks = noted  # type: ignore[method-assign]
    learner.end_task()
    assert all(torch.equal(t, before[name]) for name, t in learner.net.state_dict().items()), "to the bit"
    labels, tasks = torch.arange(3), torch.ones(3, dtype=torch.int64)

    def objective(e: Tensor) -> float:
        out = now(e, tasks)
        after = functional_call(now, dict(zip(learner.network.base.named, found[0], strict=True)), (e, tasks))
        lost = F.cross_entropy(after.logits, labels) - F.cross_entropy(out.logits, labels)
        near = F.cosine_similarity(out.features, kept.running_features).mean()
        return float(lost - 0.1 * (1 - near))

    with torch.no_grad():
        assert objective(kept.x[1]) > objective(start)


@pytest.mark.parametrize("spec", [SPLIT, IMAGE], ids=["mlp", "resnet"])
def test_anchors_are_those_of_the_plain_computation(spec: InputSpec) -> None:
    c = HalConfig(memory=6, replay=5, lr=0.05, forgetting_steps=3, anchor_steps=4, anchor_lr=0.02, attraction=0.5)
    learner = teach(in_double(Hal(spec, c)), tasks=1, n=6)
    learner.begin_task(TaskInfo("second", 3))
    learner.observe(*batch(spec, 6, seed=1))
    kept, net, memory = learner.kept_anchors(), PlainNet(learner), learner.memory
    net.meet(learner)
    image, mean, random = kept.running_image.clone(), kept.running_features.clone(), torch.Generator()
    random.set_state(learner.engine.rng.get_state())
    learner.end_task()
    rows, theta, statistics = memory.rows_of(0), net.base, dict(net.resnet.running)
    for some in torch.randint(len(rows), (3, 5), generator=random):  # theta_M: SGD on what is stored of the first task
        found = gradients(net.loss(memory.x[rows[some]], memory.y[rows[some]].tolist(), [0] * 5), net.base)
        net.base = {name: (p - c.lr * found[name]).detach().requires_grad_() for name, p in net.base.items()}
        net.resnet.running = dict(statistics)
    theta_m = net.base
    for label in range(3):
        e, m, v = image[label], torch.zeros_like(image[label]), torch.zeros_like(image[label])
        for step in range(1, 5):  # Adam, upwards
            x = e.clone().requires_grad_()
            net.base = theta_m
            forgotten = mean_ce(net.logits(255 * x[None], [1], training=False), [label])
            net.base = theta
            known = mean_ce(net.logits(255 * x[None], [1], training=False), [label])
            phi = net.features(255 * x[None], [1], training=False)[1][0]
            apart = 1 - phi @ mean[label] / (phi.norm() * mean[label].norm())
            (g,) = torch.autograd.grad(forgotten - known - 0.5 * apart, x)
            m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
            e = e + c.anchor_lr * (m / (1 - 0.9**step)) / ((v / (1 - 0.999**step)).sqrt() + 1e-8)
        torch.testing.assert_close(kept.x[1, label], e, rtol=1e-5, atol=1e-7)
        assert float((e - image[label]).abs().max()) > 0.01


def test_mean_features_decay_with_each_batch_that_has_the_class() -> None:
    anchors = Anchors((2,), 3)
    anchors.ensure_task(0, 2, generator=torch.Generator())
    f = torch.arange(12.0).view(4, 3)
    anchors.note(torch.zeros(2, 2), torch.tensor([0, 0]), f[:2], 0.75)
    anchors.note(torch.zeros(1, 2), torch.tensor([1]), f[2:3], 0.75)
    anchors.note(torch.ones(1, 2), torch.tensor([0]), f[3:], 0.75)
    torch.testing.assert_close(anchors.running_features, torch.stack([0.75 * f[:2].mean(0) + 0.25 * f[3], f[2]]))
    torch.testing.assert_close(anchors.running_image, torch.tensor([[1 / 3, 1 / 3], [0, 0]]))
    assert anchors.running_count.tolist() == [3, 1]


class PlainReplayPart(PlainReplay):
    """HAL without anchoring is ER with one mean over batch and replay."""

    def step(self, batch: Part) -> None:
        replayed = self.replayed()
        x, y, tasks = batch.x, batch.y, batch.tasks
        if replayed is not None:
            x, y, tasks = torch.cat([x, replayed.x]), y + replayed.y, tasks + replayed.tasks
        self.descend(self.gradient(self.net.loss(x, y, tasks)), self.config.lr)
        self.moved()


@pytest.mark.parametrize("spec", [VECTOR, IMAGE], ids=["mlp", "resnet"])
def test_without_anchoring_it_is_er(spec: InputSpec) -> None:
    config = HalConfig(memory=5, lr=0.02, anchoring=0.0, weight_average=0.8, **FEW)
    both = SideBySide(Hal(spec, config), PlainReplayPart)
    both.task("a", 3, steps=2, n=4)
    both.task("b", 3, steps=2, n=4)


def test_steps_on_earlier_tasks_that_diverge_leave_the_weights_and_no_anchor(monkeypatch: pytest.MonkeyPatch) -> None:
    learner = teach(Hal(SPLIT, HalConfig(**FEW)), tasks=1)
    learner.begin_task(TaskInfo("second", 3))
    learner.observe(*batch(SPLIT, 6, seed=1))
    before = learner.network.base.copy()
    descend = learner.network.base.descend
    monkeypatch.setattr(learner.network.base, "descend", lambda loss, rate, **more: descend(loss, torch.inf, **more))
    learner.end_task()
    assert all(torch.equal(p, old) for p, old in zip(learner.network.base.tensors, before, strict=True))
    kept = learner.kept_anchors()
    assert kept.exists.any(1).tolist() == [True, False]
    assert bool(kept.x.isfinite().all())
