"""EWC in its three modes against plain re-computations, and the Fisher information of a linear model in closed form."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from scale_cl.errors import ConfigError
from scale_cl.learners import Ewc, EwcConfig
from scale_cl.streams import InputSpec, TaskInfo
from tests.learners import hardships
from tests.learners.plain import IMAGE, SPLIT, VECTOR, gradients, in_double, mean_ce
from tests.learners.reference_networks import Parameters
from tests.learners.side_by_side_net import Beside, PlainMethod, some_tasks
from tests.learners.tiny import COLOUR, batch, teach

LINEAR = InputSpec((6,), None, "domain")


class PlainEwc(PlainMethod):
    """A list of penalties, one per task."""

    factor = 0.5

    def __init__(self, learner: Ewc) -> None:
        super().__init__(learner)
        self.penalties: list[tuple[Parameters, Parameters]] = []  # F and theta*

    def penalty(self) -> Tensor:
        """lambda / 2 * sum of F (theta - theta*)^2 over all tasks."""
        total = super().penalty()
        for fisher, anchor in self.penalties:
            for name, f in fisher.items():
                total = (
                    total + self.factor * self.config.penalty * (f * (self.net.base[name] - anchor[name]) ** 2).sum()
                )
        return total

    def ended(self) -> None:
        fisher = self.fisher()
        if self.config.mode == "online" and self.penalties:
            before = self.penalties.pop()[0]
            fisher = {name: self.config.decay * before.get(name, torch.zeros(())) + f for name, f in fisher.items()}
        self.penalties.append((fisher, self.values()))

    def fisher(self) -> Parameters:
        """One sample after another."""
        total = {name: torch.zeros_like(p) for name, p in self.values().items()}
        for x, label in self.samples():
            log_p = -mean_ce(self.net.logits(x, [self.task], training=False), [label])
            for name, g in gradients(log_p, self.net.base).items():
                if name in total:
                    total[name] += g.square() / len(self.samples())
        return total


class PlainRunning(PlainEwc):
    """EWC++: squared gradients of batches, averaged in intervals."""

    factor = 1.0

    def __init__(self, learner: Ewc) -> None:
        super().__init__(learner)
        self.steps = 0
        self.recent: list[Parameters] = []
        self.average: Parameters = {}

    def step(self, x: Tensor, y: list[int]) -> None:
        super().step(x, y)
        self.recent.append({name: self.alone[name] ** 2 for name in self.held()})
        self.steps += 1
        if self.steps % self.config.interval == 0:
            self.fold()

    def fold(self) -> None:
        share = self.config.share * len(self.recent) / self.config.interval
        for name in self.held():
            mean = torch.stack([squares[name] for squares in self.recent]).mean(0) if self.recent else 0.0
            self.average[name] = (1 - share) * self.average.get(name, torch.zeros(())) + share * mean
        self.recent = []

    def ended(self) -> None:
        self.fold()
        low = min(float(f.min()) for f in self.average.values())
        high = max(float(f.max()) for f in self.average.values())
        scaled = {name: (f - low) / (high - low) for name, f in self.average.items()}
        self.penalties = [(scaled, self.values())]


@pytest.mark.parametrize("spec", [VECTOR, SPLIT], ids=["one head", "a head per task"])
@pytest.mark.parametrize("mode", ["separate", "online", "running"])
def test_steps_are_those_of_the_plain_computation(mode: Any, spec: InputSpec) -> None:
    config = EwcConfig(mode=mode, lr=0.1, penalty=5.0, implicit=False, interval=2)
    Beside(Ewc(spec, config), PlainRunning if mode == "running" else PlainEwc).run(some_tasks(spec))


def test_the_resnet_is_held_too() -> None:
    both = Beside(Ewc(IMAGE, EwcConfig(lr=0.01, penalty=1.0, implicit=False)), PlainEwc)
    both.run([("a", 2, 1), ("b", 3, 1)])
    assert isinstance(both.plain, PlainEwc)
    fisher, _ = both.plain.penalties[0]
    assert not any("head" in name for name in fisher)


def test_the_fisher_information_of_a_linear_softmax_model_is_known() -> None:
    learner = Ewc(LINEAR, EwcConfig(), backbone=nn.Flatten())
    learner.begin_task(TaskInfo("a", 3))
    x, y = batch(LINEAR, 20)
    learner.observe(x, y)
    learner.end_task()
    weight, bias = learner.net.heads.weight.data[0], learner.net.heads.bias.data[0]
    residual = nn.functional.one_hot(y, 3) - (x @ weight.T + bias).softmax(1)  # d log p(y | x) / d logits
    wanted = (residual.square().T @ x.square()) / 20
    torch.testing.assert_close(learner.importance.named["heads.weight.data"][0], wanted.detach())
    torch.testing.assert_close(learner.importance.named["heads.bias.data"][0], residual.square().mean(0).detach())


def test_the_moving_average_is_scaled_by_its_extremes_over_all_weights() -> None:
    learner = Ewc(LINEAR, EwcConfig(mode="running", interval=1), backbone=nn.Flatten())
    learner.begin_task(TaskInfo("a", 3))
    learner.observe(*batch(LINEAR, 4))
    learner.end_task()
    found = torch.cat([f.flatten() for f in learner.moving.tensors])
    assert float(found.min()) > 0, "it is subtracted"
    wanted = (found - found.min()) / (found.max() - found.min())
    scaled = torch.cat([f.flatten() for f in learner.importance.tensors])
    torch.testing.assert_close(scaled, wanted)
    assert (float(scaled.min()), float(scaled.max())) == (0, 1)


def test_labels_sampled_from_the_model_give_the_expectation_in_place_of_the_labels_given() -> None:
    x, y = batch(LINEAR, 400)
    learner = Ewc(LINEAR, EwcConfig(labels="sampled", memory=400, lr=1e-6), backbone=nn.Flatten())
    learner.begin_task(TaskInfo("a", 3))
    learner.observe(x, torch.zeros_like(y))
    learner.end_task()
    weight, bias = learner.net.heads.weight.data[0], learner.net.heads.bias.data[0]
    p = (x @ weight.T + bias).softmax(1)
    expected = (p * (1 - p)).T @ x.square() / 400  # E over y of (1[y = c] - p_c)^2 is p_c (1 - p_c)
    torch.testing.assert_close(
        learner.importance.named["heads.weight.data"][0], expected.detach(), rtol=0.25, atol=0.02
    )


def test_labels_are_sampled_by_the_network_in_evaluation_mode() -> None:
    learner = Ewc(COLOUR, EwcConfig(labels="sampled"))
    learner.begin_task(TaskInfo("a", 3))
    learner.observe(*batch(COLOUR, 20))  # running statistics are far behind those of the batch
    samples = learner.samples_of(learner.memory, 0)
    with torch.no_grad():
        learner.net.heads.weight.data.mul_(1e6)  # all outputs are certain
        by_batch = learner.net(samples.x, samples.task).logits.argmax(1)
        by_running = learner.net.eval()(samples.x, samples.task).logits.argmax(1)
    learner.net.train()
    assert not torch.equal(by_batch, by_running), "the mode matters here"
    assert torch.equal(learner.with_sampled_labels(samples).y, by_running)


def test_an_implicit_step_solves_for_its_own_end_and_bears_any_weight() -> None:
    learner = Ewc(VECTOR, EwcConfig(lr=0.1, penalty=3.0))
    teach(in_double(learner), tasks=1)
    learner.begin_task(TaskInfo("next", 3))
    learner.observe(*batch(VECTOR, 4, seed=1))  # away from the anchor
    before, alone = learner.held.copy(), gradients_of_ce(learner, *batch(VECTOR, 4, seed=2))
    learner.observe(*batch(VECTOR, 4, seed=2))
    rows = zip(before, alone, learner.held.tensors, learner.importance.tensors, learner.anchor.tensors, strict=True)
    for start, g, end, f, anchor in rows:
        torch.testing.assert_close(end.detach(), start - 0.1 * (g + 3.0 * f * (end.detach() - anchor)))
    stiff = teach(Ewc(VECTOR, EwcConfig(lr=0.1, penalty=1e9)), tasks=3, steps=4)
    assert all(bool(p.isfinite().all()) for p in stiff.net.parameters())


def gradients_of_ce(learner: Ewc, x: Tensor, y: Tensor) -> list[Tensor]:
    out = learner.net(learner.net.inputs(x), torch.full((len(y),), learner.engine.open_task))
    return list(torch.autograd.grad(nn.functional.cross_entropy(out.logits, y), learner.held.tensors))


def test_samples_do_not_outlive_their_task() -> None:
    learner = teach(Ewc(SPLIT, EwcConfig(memory=5)), tasks=1)
    assert not bool(learner.memory.stored.any())
    assert not bool(learner.memory.x.any())
    learner.begin_task(TaskInfo("next", 3))
    learner.observe(*batch(SPLIT, 3))
    assert int(learner.memory.stored.sum()) == 3


@pytest.mark.parametrize("mode", ["separate", "running"])
def test_ewc_bears_odd_tasks_and_leaves_the_host_alone(mode: Any) -> None:
    def make(spec: InputSpec) -> Ewc:
        return Ewc(spec, EwcConfig(mode=mode, memory=4, interval=3))

    hardships.bears_odd_tasks(make)
    hardships.leaves_the_host_alone(make, SPLIT)


@pytest.mark.parametrize(
    "values", [{"lr": 0.0}, {"penalty": -1.0}, {"mode": "offline"}, {"interval": 0}, {"memory": 0}]
)
def test_settings_out_of_range_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(values))):
        EwcConfig(**values)
