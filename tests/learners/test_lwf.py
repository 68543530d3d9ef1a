"""LwF against a plain re-computation: distillation by hand, one head after another."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from scale_cl.learners import Lwf, LwfConfig
from scale_cl.streams import InputSpec
from tests.learners.plain import IMAGE, SPLIT, VECTOR, PlainNet
from tests.learners.side_by_side_net import Beside, PlainMethod, some_tasks


class PlainLwf(PlainMethod):
    """A copy of the network from before the task."""

    before: PlainNet | None = None

    def ce(self, x: Tensor, y: Sequence[int]) -> Tensor:
        """The whole loss, of one forward: batch statistics move once."""
        features = self.net.features(x, [self.task] * len(y))[1]
        own = 0 if self.net.one_head else self.task
        log_p = self.outputs(self.net, features, own).log_softmax(1)
        loss = -log_p[range(len(y)), y].mean()
        if self.before is not None:
            old = self.before.features(x, [0] * len(y), training=False)[1].detach()
            heads = [int(name.split(".")[1]) for name in self.before.base if name.endswith("weight") and "head" in name]
            for k in heads:
                if self.net.one_head or k != self.task:
                    loss = loss + self.config.distillation * self.divergence(features, old, k)
        return loss

    def outputs(self, net: PlainNet, features: Tensor, head: int) -> Tensor:
        return features @ net.base[f"head.{head}.weight"].T + net.base[f"head.{head}.bias"]

    def divergence(self, features: Tensor, old: Tensor, head: int) -> Tensor:
        """T^2 * mean over samples of sum over classes of p log(p / q)."""
        assert self.before is not None
        t = self.config.temperature
        p = (self.outputs(self.before, old, head) / t).softmax(1).detach()
        q = (self.outputs(self.net, features, head) / t).softmax(1)
        each: Tensor = t * t * (p * (p.log() - q.log())).sum(1)
        return each.mean()

    def ended(self) -> None:
        self.before = PlainNet.__new__(PlainNet)
        self.before.__dict__ |= {
            **self.net.__dict__,
            "base": dict(self.net.base),
            "resnet": copy.deepcopy(self.net.resnet),
        }


@pytest.mark.parametrize("spec", [VECTOR, SPLIT], ids=["one head", "a head per task"])
def test_steps_are_those_of_the_plain_computation(spec: InputSpec) -> None:
    Beside(Lwf(spec, LwfConfig(lr=0.1, distillation=0.7)), PlainLwf).run(some_tasks(spec))


def test_resnet_steps_are_those_of_the_plain_computation_with_a_teacher_in_evaluation_mode() -> None:
    Beside(Lwf(IMAGE, LwfConfig(lr=0.01)), PlainLwf).run([("a", 2, 1), ("b", 3, 1)])


def test_the_previous_network_stays_as_it_was() -> None:
    both = Beside(Lwf(SPLIT, LwfConfig(lr=0.1)), PlainLwf)
    both.run([("a", 3, 2)])
    teacher = both.learner.previous.module  # type: ignore[attr-defined]
    kept = [p.clone() for p in teacher.parameters()]
    for p, q in zip(kept, both.learner.net.parameters(), strict=True):
        assert torch.equal(p, q)
    both.run([("b", 3, 2)])
    assert not any(p.requires_grad for p in teacher.parameters())
    assert all(torch.equal(p, q) for p, q in zip(kept, teacher.parameters(), strict=True))
