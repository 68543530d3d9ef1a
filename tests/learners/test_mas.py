"""MAS against a plain re-computation, and the sensitivity of a linear model in closed form."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from scale_cl.learners import Mas, MasConfig
from scale_cl.streams import InputSpec, TaskInfo
from tests.learners.plain import IMAGE, SPLIT, VECTOR, gradients
from tests.learners.reference_networks import Parameters
from tests.learners.side_by_side_net import Beside, PlainMethod, some_tasks
from tests.learners.tiny import batch

LINEAR = InputSpec((6,), None, "domain")


class PlainMas(PlainMethod):
    """Omega, and where the weights were when the last task ended."""

    def __init__(self, learner: Mas) -> None:
        super().__init__(learner)
        self.omega: Parameters = {}
        self.anchor: Parameters = {}

    def penalty(self) -> Tensor:
        total = super().penalty()
        for name, omega in self.omega.items():
            total = total + self.config.penalty * (omega * (self.net.base[name] - self.anchor[name]) ** 2).sum()
        return total

    def ended(self) -> None:
        self.anchor = self.values()
        for name in self.anchor:
            self.omega[name] = self.config.decay * self.omega.get(name, torch.zeros(()))
        for x, _ in self.samples():
            (outputs,) = self.net.logits(x, [self.task], training=False)
            found = gradients((outputs**2).sum(), self.net.base)
            for name in self.anchor:
                self.omega[name] = self.omega[name] + found[name].abs() / len(self.samples())


@pytest.mark.parametrize("spec", [VECTOR, SPLIT, IMAGE], ids=["one head", "a head per task", "resnet"])
def test_steps_are_those_of_the_plain_computation(spec: InputSpec) -> None:
    tasks = [("a", 2, 1), ("b", 3, 2)] if spec is IMAGE else some_tasks(spec)
    Beside(Mas(spec, MasConfig(lr=0.05, penalty=0.2, decay=0.7, implicit=False)), PlainMas).run(tasks)


def test_the_sensitivity_of_a_linear_model_is_known() -> None:
    learner = Mas(LINEAR, MasConfig(), backbone=nn.Flatten())
    learner.begin_task(TaskInfo("a", 3))
    x, y = batch(LINEAR, 20)
    learner.observe(x, y)
    learner.end_task()
    outputs = x @ learner.net.heads.weight.data[0].T + learner.net.heads.bias.data[0]
    wanted = (2 * outputs).abs().T @ x.abs() / 20  # |2 f_c x_i|
    torch.testing.assert_close(learner.importance.named["heads.weight.data"][0], wanted.detach())
