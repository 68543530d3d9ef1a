"""Steps of ER against a plain re-computation, and what it must bear."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from scale_cl.errors import ConfigError
from scale_cl.learners import Er, ErConfig
from scale_cl.streams import InputSpec, TaskInfo
from tests.learners import hardships
from tests.learners.plain import IMAGE, SPLIT, recorded, with_heads
from tests.learners.replay_reference import Part, PlainReplay, SideBySide
from tests.learners.tiny import batch, teach


class PlainEr(PlainReplay):
    """CE(batch) + CE(replay), each with a forward of its own, a fresh draw in each update."""

    def step(self, batch: Part) -> None:
        for _ in range(self.config.updates):
            loss = self.ce(batch)
            replayed = self.replayed()
            if replayed is not None:
                loss = loss + self.ce(replayed)
            self.descend(self.gradient(loss), self.config.lr)
            self.moved()


def make(spec: InputSpec) -> Er:
    return Er(spec, ErConfig(memory=5))


@with_heads(
    [
        {},
        {"replay": 4},  # as many as the batch has
        {"updates": 1, "weight_average": 0.8},
        {"memory_policy": "class-ring", "replay_current": True, "memory": 9},
        {"memory_policy": "reservoir"},
    ],
    ids=["as the paper", "parts of equal size", "average", "as the original", "reservoir"],
)
def test_mlp_steps_are_those_of_the_plain_computation(spec: InputSpec, values: dict[str, Any]) -> None:
    config = ErConfig(**{"memory": 5, "replay": 7, "lr": 0.1, **values})
    SideBySide(Er(spec, config), PlainEr).some_tasks(spec)


@pytest.mark.parametrize("replay", [4, 6])
def test_resnet_steps_are_those_of_the_plain_computation(replay: int) -> None:
    config = ErConfig(memory=5, replay=replay, lr=0.1, updates=2, weight_average=0.8)
    SideBySide(Er(IMAGE, config), PlainEr).some_tasks(IMAGE)


def test_the_defaults_are_the_papers() -> None:
    assert (ErConfig().lr, ErConfig().replay, ErConfig().updates, ErConfig().memory) == (0.03, 10, 3, 50)
    assert (ErConfig().memory_policy, ErConfig().replay_current) == ("ring", False)


@pytest.mark.parametrize(("current", "sizes"), [(False, []), (True, [4, 8])])
def test_the_first_task_has_nothing_to_replay_unless_the_current_one_counts(current: bool, sizes: list[int]) -> None:
    learner = Er(SPLIT, ErConfig(replay_current=current))
    with recorded(learner) as draws:
        teach(learner, tasks=1, steps=3, n=4)
    assert [len(draw) for draw in draws] == [size for size in sizes for _ in range(3)]


def test_with_more_classes_than_slots_only_what_is_stored_is_replayed() -> None:
    learner = Er(SPLIT, ErConfig(memory=2, memory_policy="class-ring", replay_current=True))
    learner.begin_task(TaskInfo("a", 5))
    x, _ = batch(SPLIT, 3)
    with recorded(learner) as draws:
        for label in (4, 4, 3, 2):
            learner.observe(x, torch.full((3,), label))
            stored = set(learner.memory.stored.nonzero().flatten().tolist())
            assert {slot for draw in draws for _, slot in draw} <= stored
            assert len(stored) > 0
    assert len(draws) == 9


def test_replay_slows_forgetting() -> None:
    losses = []
    for replay in (1, 20):
        learner = Er(SPLIT, ErConfig(replay=replay, lr=0.1), seed=3)
        teach(learner, tasks=1, steps=5, n=10)
        teach(learner, tasks=1, steps=20, n=10, first=1)
        x, y = learner.memory.x[:50], learner.memory.y[:50]
        losses.append(float(torch.nn.functional.cross_entropy(learner.predict(x, "task 0"), y)))
    assert losses[1] < losses[0]


def test_er_with_replay_of_the_open_task_bears_odd_tasks() -> None:
    hardships.bears_odd_tasks(lambda spec: Er(spec, ErConfig(memory_policy="class-ring", replay_current=True)))


@pytest.mark.parametrize("policy", ["class-ring", "reservoir", "balanced"])
def test_er_with_replay_of_the_open_task_goes_on_after_loading_and_leaves_the_host_alone(policy: Any) -> None:
    def make(spec: InputSpec) -> Er:
        return Er(spec, ErConfig(memory=6, memory_policy=policy, replay_current=True))

    hardships.goes_on_after_loading(make, SPLIT)
    hardships.leaves_the_host_alone(make, SPLIT)


@pytest.mark.parametrize(
    "values", [{"lr": 0.0}, {"lr": -1.0}, {"updates": 0}, {"replay": 0}, {"memory": 0}, {"memory_policy": "heap"}]
)
def test_settings_out_of_range_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(values))):
        ErConfig(**values)


def test_a_step_tells_its_loss() -> None:
    learner = make(SPLIT)
    learner.begin_task(TaskInfo("a", 3))
    assert set(learner.observe(*batch(SPLIT, 4))) == {"loss"}
