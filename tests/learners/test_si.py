"""SI against a plain re-computation; its path integral is what the loss falls by."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from scale_cl.learners import Si, SiConfig
from scale_cl.streams import InputSpec, TaskInfo
from tests.learners.plain import IMAGE, SPLIT, VECTOR, in_double
from tests.learners.reference_networks import Parameters
from tests.learners.side_by_side_net import Beside, PlainMethod, some_tasks
from tests.learners.tiny import batch


class PlainSi(PlainMethod):
    """omega, the way of each weight and where it started."""

    def __init__(self, learner: Si) -> None:
        super().__init__(learner)
        self.omega: Parameters = {}
        self.start: Parameters = {}
        self.path: Parameters = {}

    def began(self) -> None:
        self.start = self.values()
        self.path = {name: torch.zeros_like(p) for name, p in self.start.items()}

    def step(self, x: Tensor, y: list[int]) -> None:
        before = self.values()
        super().step(x, y)
        for name, p in self.values().items():
            self.path[name] = self.path[name] - self.alone[name] * (p - before[name])

    def penalty(self) -> Tensor:
        total = super().penalty()
        for name, omega in self.omega.items():
            total = total + self.config.penalty * (omega * (self.net.base[name] - self.start[name]) ** 2).sum()
        return total

    def ended(self) -> None:
        for name, p in self.values().items():
            gained = self.path[name] / ((p - self.start[name]) ** 2 + self.config.damping)
            self.omega[name] = self.omega.get(name, torch.zeros(())) + gained.clamp(min=0)


@pytest.mark.parametrize("spec", [VECTOR, SPLIT], ids=["one head", "a head per task"])
def test_steps_are_those_of_the_plain_computation(spec: InputSpec) -> None:
    Beside(Si(spec, SiConfig(lr=0.05, penalty=0.3, implicit=False)), PlainSi).run(some_tasks(spec))


def test_resnet_steps_are_those_of_the_plain_computation() -> None:
    Beside(Si(IMAGE, SiConfig(lr=0.01, penalty=0.1, implicit=False)), PlainSi).run([("a", 2, 2), ("b", 3, 1)])


def test_a_weight_whose_way_raised_the_loss_gains_no_importance() -> None:
    learner = Si(VECTOR, SiConfig())
    learner.begin_task(TaskInfo("a", 3))
    for w in learner.path.tensors:
        w.fill_(-1)
        w[0] = 1
    learner.end_task()
    assert all(bool((omega[0] > 0).all()) and not omega[1:].any() for omega in learner.importance.tensors)


def test_on_a_quadratic_the_path_integral_is_the_loss_that_each_weight_took_away() -> None:
    learner = in_double(Si(VECTOR, SiConfig(lr=1e-3)))
    learner.begin_task(TaskInfo("a", 3))
    theta = learner.held.tensors
    curvature = [1 + p.detach().abs() for p in theta]
    start = [p.detach().clone() for p in theta]
    for _ in range(300):
        gradient = [a * p.detach() for a, p in zip(curvature, theta, strict=True)]
        learner.after_gradient(gradient, gradient)
        learner.held.move(gradient, learner.config.lr)
    for a, p, q, w in zip(curvature, start, theta, learner.path.tensors, strict=True):
        torch.testing.assert_close(w, a / 2 * (p**2 - q.detach() ** 2), rtol=2e-3, atol=1e-12)


def test_in_small_steps_the_path_integrals_of_all_weights_add_up_to_what_the_loss_falls_by() -> None:
    linear, missing = InputSpec((6,), None, "domain"), []
    for steps in (20, 40):
        learner = in_double(Si(linear, SiConfig(lr=0.8 / steps), backbone=nn.Flatten()))
        learner.begin_task(TaskInfo("a", 3))
        x, y = batch(linear, 8)
        before = float(learner.observe(x, y)["ce"])
        for _ in range(steps - 1):
            learner.observe(x, y)
        total = float(sum(w.sum() for w in learner.path.tensors))
        missing.append(total / (before - float(learner.observe(x, y)["ce"])) - 1)
    assert 0 < missing[1] < 0.05
    assert 0.4 < missing[1] / missing[0] < 0.6, "half the rate, half the error"
