"""Steps of DER and DER++ against a plain re-computation, and what they must bear."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from scale_cl.errors import ConfigError
from scale_cl.learners import Der, DerConfig, Derpp, DerppConfig
from scale_cl.streams import InputSpec, TaskInfo
from tests.learners.plain import IMAGE, SPLIT, mean_ce, with_heads
from tests.learners.replay_reference import Part, PlainReplay, Sample, SideBySide
from tests.learners.tiny import batch, teach


class PlainDer(PlainReplay):
    """CE(batch) + alpha * MSE to the logits stored at insertion."""

    def step(self, batch: Part) -> None:
        for _ in range(self.config.updates):
            logits = self.net.logits(batch.x, batch.tasks)
            self.logits = [o.detach() for o in logits]
            loss = mean_ce(logits, batch.y)
            replayed = self.replayed()
            if replayed is not None:
                loss = loss + self.config.alpha * self._distance(replayed) + self.second_draw()
            self.descend(self.gradient(loss), self.config.lr)
            self.moved()

    def _distance(self, part: Part) -> Tensor:
        """The mean over samples of the mean over the columns that were stored."""
        distances = []
        for o, sample in zip(self.net.logits(part.x, part.tasks), part.samples, strict=True):
            assert sample.logits is not None
            distances.append(((o[: len(sample.logits)] - sample.logits) ** 2).mean())
        return torch.stack(distances).mean()

    def second_draw(self) -> Tensor:
        return torch.zeros(())

    def stored(self, x: Tensor, y: list[int]) -> list[Sample]:
        logits = self.averaged_logits(x) if self.average else self.logits
        return [Sample(*one[:2], self.task, one[2]) for one in zip(x, y, logits, strict=True)]


class PlainDerpp(PlainDer):
    """And beta * CE on a second draw."""

    def second_draw(self) -> Tensor:
        replayed = self.replayed()
        assert replayed is not None
        loss: Tensor = self.config.beta * self.ce(replayed)
        return loss


def both(spec: InputSpec, plus: bool, **values: Any) -> SideBySide:
    values = {"memory": 5, "lr": 0.1, **values}
    if plus:
        return SideBySide(Derpp(spec, DerppConfig(beta=0.6, **values)), PlainDerpp)
    return SideBySide(Der(spec, DerConfig(**values)), PlainDer)


plus_or_not = pytest.mark.parametrize("plus", [False, True], ids=["der", "der++"])


@plus_or_not
@with_heads(
    [
        {},
        {"alpha": 0.3, "updates": 1},
        {"weight_average": 0.8},
        {"replay_current": True},
        {"memory_policy": "ring"},
        {"memory_policy": "class-ring", "memory": 9},
    ],
    ids=["defaults", "one update", "average", "current", "ring", "class-ring"],
)
def test_mlp_steps_are_those_of_the_plain_computation(spec: InputSpec, values: dict[str, Any], plus: bool) -> None:
    both(spec, plus, **{"replay": 7, **values}).some_tasks(spec)


@pytest.mark.parametrize(("plus", "weight_average"), [(False, 0.8), (True, 0.0)])
def test_resnet_steps_are_those_of_the_plain_computation(plus: bool, weight_average: float) -> None:
    both(IMAGE, plus, replay=6, updates=2, lr=0.003, weight_average=weight_average).some_tasks(IMAGE)


def test_a_task_that_comes_back_with_more_classes_keeps_its_old_logits() -> None:
    learner = Der(SPLIT, DerConfig(memory=6, memory_policy="ring"))
    learner.begin_task(TaskInfo("a", 2))
    learner.observe(*batch(SPLIT, 4, 2))
    kept = learner.memory.logits["class"]
    early, _ = kept.get(torch.arange(4), 2)
    teach(learner, tasks=3)
    learner.begin_task(TaskInfo("a", 5))
    assert torch.equal(kept.get(torch.arange(4), 2)[0], early)
    assert kept.width[:6].tolist() == [2, 2, 2, 2, 0, 0]
    learner.observe(*batch(SPLIT, 4, 5))
    assert kept.width[:6].tolist() == [5, 5, 2, 2, 5, 5]
    assert torch.equal(kept.get(torch.tensor([2, 3]), 2)[0], early[2:])
    teach(learner, tasks=2, first=8)


def test_stored_logits_stay_where_they_are_when_the_room_for_them_grows() -> None:
    learner = Derpp(SPLIT, DerppConfig(memory=10))
    teach(learner, tasks=1, n=6)
    rows = learner.memory.rows_of(0)
    early = learner.memory.logits["class"].get(rows, 3)[0]
    room = len(learner.memory.logits["class"].flat)
    teach(learner, tasks=80, steps=1, n=6, first=1)
    assert len(learner.memory.logits["class"].flat) > room
    assert torch.equal(learner.memory.logits["class"].get(rows, 3)[0], early)


@pytest.mark.parametrize("values", [{"lr": 0.0}, {"updates": 0}, {"replay": 0}, {"alpha": -1.0}, {"beta": -0.1}])
def test_settings_out_of_range_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(values))):
        DerppConfig(**values)


def test_one_forward_for_batch_and_replay_differs_only_in_batch_statistics() -> None:
    for spec, same in ((SPLIT, True), (IMAGE, False)):
        both = (DerppConfig(memory=5, replay=3, updates=2, forward=f) for f in ("separate", "joint"))
        one, other = (teach(Derpp(spec, config, seed=2), n=5).network.base.tensors for config in both)
        assert all(torch.allclose(a, b, rtol=1e-4, atol=1e-6) for a, b in zip(one, other, strict=True)) == same


def test_logits_of_task_end_are_those_of_the_network_that_learnt_the_task() -> None:
    config = DerppConfig(memory=5, replay=3, logits_from="task-end")
    learner = teach(Derpp(SPLIT, config, seed=2), tasks=1, n=5)
    rows = learner.memory.rows_of(0)
    expected = learner.engine.evaluated(learner.memory.x[rows], learner.memory.task[rows]).logits[:, :3]
    torch.testing.assert_close(learner.memory.stored_logits(rows, 3)[0], expected)
    learner.begin_task(TaskInfo("next", 4))
    assert "distance" in learner.observe(*batch(SPLIT, 4))
    assert torch.equal(learner.memory.stored_logits(rows, 3)[0], expected)
    with pytest.raises(ConfigError, match="this stream has no ends of tasks"):
        Derpp(InputSpec((6,), None, "domain", boundaries=False), config)
    with pytest.raises(ConfigError, match="no replay_current"):
        Derpp(SPLIT, DerppConfig(logits_from="task-end", replay_current=True))
