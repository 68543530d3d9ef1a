"""Steps of MER against a plain re-computation, and what it must bear."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from scale_cl.errors import ConfigError
from scale_cl.learners import Mer, MerConfig, registry
from scale_cl.learners.er import Er, ErConfig
from scale_cl.streams import InputSpec
from tests.learners import hardships
from tests.learners.plain import IMAGE, SPLIT, with_heads
from tests.learners.replay_reference import Part, PlainReplay, SideBySide
from tests.learners.tiny import teach


class PlainMer(PlainReplay):
    """SGD on batch and draws, then theta_0 + rate * (theta - theta_0)."""

    def step(self, batch: Part) -> None:
        if self.config.sample_wise:
            draws, self._draws = self._draws, []
            for i in range(len(batch.y)):
                self._draws += draws[: self.config.updates]
                del draws[: self.config.updates]
                self._one_sample(Part(batch.x[i : i + 1], batch.y[i : i + 1], [self.task], []))
            return
        start = dict(self.net.base)
        for _ in range(self.config.updates):
            replayed = self.replayed()
            if replayed is None:
                loss = self.ce(batch)
            elif self.config.ce == "added":
                loss = self.ce(batch) + self.ce(replayed)
            else:
                x = torch.cat([batch.x, replayed.x])
                loss = self.net.loss(x, batch.y + replayed.y, batch.tasks + replayed.tasks)
            self.descend(self.gradient(loss), self.config.lr)
        self._interpolate(start, self.config.reptile_rate)
        self.moved()

    def _one_sample(self, one: Part) -> None:
        """Algorithm 1: the sample, then the draw, each a step; Reptile after each draw and after all."""
        before = dict(self.net.base)
        for _ in range(self.config.updates):
            start = dict(self.net.base)
            replayed = self.replayed()
            parts = [one]
            if replayed is not None:
                parts += [self.part([sample]) for sample in replayed.samples]
            for part in parts:
                self.descend(self.gradient(self.ce(part)), self.config.lr)
            self._interpolate(start, self.config.reptile_rate)
        self._interpolate(before, self.config.across_rate)
        self.moved()

    def _interpolate(self, start: dict[str, torch.Tensor], rate: float) -> None:
        for name, p in self.net.base.items():
            self.net.base[name] = (start[name] + rate * (p - start[name])).detach().requires_grad_()


ORIGINAL: dict[str, Any] = {
    "sample_wise": True,
    "across_rate": 0.4,
    "memory_policy": "reservoir",
    "replay_current": True,
    "updates": 2,
    "replay": 3,
}


def make(spec: InputSpec) -> Mer:
    return Mer(spec, MerConfig(memory=5))


@with_heads(
    [{}, {"replay": 4}, {"ce": "together"}, {"updates": 1, "weight_average": 0.8}, {"replay_current": True}, ORIGINAL],
    ids=["as the paper", "parts of equal size", "together", "average", "current", "as the original"],
)
def test_mlp_steps_are_those_of_the_plain_computation(spec: InputSpec, values: dict[str, Any]) -> None:
    config = MerConfig(**{"memory": 5, "replay": 7, "lr": 0.1, **values})
    SideBySide(Mer(spec, config), PlainMer).some_tasks(spec)


@pytest.mark.parametrize("ce", ["added", "together"])
def test_resnet_steps_are_those_of_the_plain_computation(ce: Any) -> None:
    config = MerConfig(memory=5, replay=6, lr=0.05, updates=2, ce=ce, weight_average=0.8)
    SideBySide(Mer(IMAGE, config), PlainMer).some_tasks(IMAGE)


def test_the_defaults_are_the_papers() -> None:
    c = MerConfig()
    assert (c.lr, c.replay, c.updates, c.reptile_rate, c.memory) == (0.05, 64, 3, 0.3, 50)
    assert registry.preset_settings("mer", "pmnist") == {"lr": 0.03}
    assert (c.sample_wise, c.memory_policy, c.replay_current) == (False, "ring", False)


def test_going_all_the_way_is_er() -> None:
    er = teach(Er(SPLIT, ErConfig(replay=6), seed=2), n=5)
    mer = teach(Mer(SPLIT, MerConfig(replay=6, reptile_rate=1.0, lr=0.03), seed=2), n=5)
    for name, p in er.net.base_parameters().items():
        torch.testing.assert_close(mer.net.base_parameters()[name], p)


def test_the_original_bears_odd_tasks() -> None:
    hardships.bears_odd_tasks(lambda spec: Mer(spec, MerConfig(**{**ORIGINAL, "updates": 1, "replay": 2})))


def test_the_original_goes_on_after_loading_and_leaves_the_host_alone() -> None:
    hardships.goes_on_after_loading(lambda spec: Mer(spec, MerConfig(memory=5, **ORIGINAL)), SPLIT)
    hardships.leaves_the_host_alone(lambda spec: Mer(spec, MerConfig(memory=5, **ORIGINAL)), SPLIT)


@pytest.mark.parametrize(
    "values",
    [{"lr": 0.0}, {"updates": 0}, {"reptile_rate": 0.0}, {"reptile_rate": 1.1}, {"across_rate": 2.0}, {"ce": "batch"}],
)
def test_settings_out_of_range_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(values))):
        MerConfig(**values)
