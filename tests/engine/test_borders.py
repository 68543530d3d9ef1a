"""Scenario class, streams without boundaries, and predictions without a task."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from scale_cl.errors import InputError, UnknownTaskError
from scale_cl.learners import Learner, registry
from scale_cl.learners.independent import ColumnLearner
from scale_cl.streams import InputSpec, TaskInfo
from tests.learners.sameness import differences
from tests.learners.tiny import DOMAIN, SPLIT, batch, quick

CLASS = replace(SPLIT, scenario="class")
UNBOUNDED = replace(CLASS, boundaries=False)
TOTAL: dict[str, Any] = {"memory": 12, "memory_budget": "total", "memory_policy": "balanced"}


def make(name: str, spec: InputSpec, **values: Any) -> Learner:
    return registry.make(name, spec, registry.config_class(name)(**values))


def two_tasks(learner: Learner, *, again: bool = False) -> Learner:
    """Classes 0 and 1, then 2, 3 and 4; perhaps class 5 in the first task, which comes back."""
    for name, classes, first in (("a", 2, 0), ("b", 5, 2)) + ((("a", 6, 5),) if again else ()):
        learner.begin_task(TaskInfo(name, classes))
        for step in range(3):
            x, y = batch(learner.spec, 6, classes - first, seed=classes + step)
            learner.observe(x, y + first)
        learner.end_task()
    return learner


def unbounded(learner: Learner, labels: tuple[tuple[int, int], ...] = ((0, 2), (2, 5))) -> Learner:
    """Batches without a task; labels of each stretch are from the first number up to the second."""
    for first, last in labels:
        for step in range(3):
            x, y = batch(learner.spec, 6, last - first, seed=last + step)
            learner.observe(x, y + first)
    return learner


@pytest.mark.parametrize("name", ["independent", "pnn"])
def test_without_a_task_each_column_is_computed_once_and_every_head_sees_its_own(name: str) -> None:
    learner = two_tasks(make(name, CLASS))
    assert isinstance(learner, ColumnLearner)
    runs: list[int] = []
    for number in range(2):
        learner.columns[number].register_forward_hook(lambda *_, number=number: runs.append(number))
    x = batch(CLASS, 7, seed=9)[0]
    learner.predict(x)
    assert runs == [0, 1]
    learner.net.eval()
    together = learner.net(learner.net.inputs(x), torch.arange(2).unsqueeze(1).expand(-1, 7))
    for number in range(2):
        alone = learner.net(learner.net.inputs(x), torch.full((7,), number))
        for one, other in zip(together, alone, strict=True):
            torch.testing.assert_close(one[number], other)


@pytest.mark.parametrize("name", ["learn-to-grow"])
def test_a_network_per_task_knows_which_task_it_predicts_without_a_task(name: str) -> None:
    learner = two_tasks(make(name, CLASS))
    forward, asked = learner.net.forward, list[tuple[int, int]]()

    def noted(x: torch.Tensor, task: torch.Tensor) -> Any:
        asked.append((learner.engine.predicted_task, int(task[0])))
        return forward(x, task)

    learner.net.forward = noted  # type: ignore[assignment, method-assign]
    learner.predict(batch(CLASS, 7, seed=9)[0])
    assert asked == [(0, 0), (1, 1)]


@pytest.mark.parametrize("name", ["er", "derpp", "scale", "acl"])
def test_classes_of_all_tasks_are_predicted_without_a_task(name: str) -> None:
    learner = two_tasks(make(name, CLASS))
    x = batch(CLASS, 7, seed=9)[0]
    scores = learner.predict(x)
    assert scores.shape == (7, 5)
    assert bool(torch.isfinite(scores).all())
    assert torch.equal(scores, learner.predict(x))  # the state stays as it is


@pytest.mark.parametrize("name", ["er", "acl", "bocl", "den", "independent", "learn-to-grow", "pnn"])
def test_a_class_that_all_tasks_have_is_predicted_without_a_task(name: str) -> None:
    """Dark and light samples, under a black and then a white bar: one column per class, whoever has heads per task."""
    learner = make(name, DOMAIN, **quick(name) | {"lr": 0.1})
    tasks = []
    for number, task in enumerate("ab"):
        learner.begin_task(TaskInfo(task, 2))
        for step in range(20):
            x, y = batch(DOMAIN, 8, 2, seed=step)
            x = x // 8 + 200 * y.to(torch.uint8)[:, None, None, None]
            x[:, 0, 0] = 255 * number
            learner.observe(x, y)
            tasks.append((x, y))
        learner.end_task()
    x, y = (torch.cat(part) for part in zip(*tasks, strict=True))
    scores = learner.predict(x)
    assert scores.shape == (len(x), 2)
    assert float((scores.argmax(1) == y).float().mean()) > 0.9


def test_heads_per_task_learn_what_they_learn_in_the_task_scenario() -> None:
    told, named = make("scale", SPLIT), two_tasks(make("scale", CLASS))
    for name, classes, first in (("a", 2, 0), ("b", 5, 2)):
        told.begin_task(TaskInfo(name, classes - first))
        for step in range(3):
            told.observe(*batch(SPLIT, 6, classes - first, seed=classes + step))
        told.end_task()
    assert differences(named, told) == ["owners"]
    x = batch(CLASS, 7, seed=9)[0]
    assert torch.equal(named.predict(x, "b"), told.predict(x, "b"))


def test_a_task_that_comes_back_may_bring_more_classes() -> None:
    learner = two_tasks(make("scale", CLASS), again=True)
    assert learner.engine.classes == [3, 3]
    assert learner.engine.labels.owners == [0, 0, 1, 1, 1, 0]
    assert learner.predict(batch(CLASS, 4)[0]).shape == (4, 6)
    other = make("scale", CLASS)
    other.load_state_dict(learner.state_dict())
    x = batch(CLASS, 4, seed=5)[0]
    assert torch.equal(learner.predict(x), other.predict(x))
    with pytest.raises(InputError, match="a task brings no new class"):
        learner.begin_task(TaskInfo("c", 6))


@pytest.mark.parametrize("name", ["er", "derpp", "scale", "finetune"])
def test_a_stream_without_boundaries_needs_no_task_and_grows_with_its_labels(name: str) -> None:
    values: dict[str, Any] = {} if name == "finetune" else TOTAL
    learner = unbounded(make(name, UNBOUNDED, **values))
    assert learner.tasks == ["stream"]
    assert learner.predict(batch(CLASS, 4)[0]).shape == (4, 5)
    if name != "finetune":
        stored = learner.engine.owned.memories["memory"]
        assert stored.available() == 12  # the present is replayed with the past
    half = unbounded(make(name, UNBOUNDED, **values), ((0, 2),))
    other = make(name, UNBOUNDED, **values)
    other.load_state_dict(half.state_dict())
    unbounded(other, ((2, 5),))
    assert differences(learner, other) == []


def test_wrong_calls_say_what_is_wrong() -> None:
    learner = make("er", UNBOUNDED, **TOTAL)
    with pytest.raises(UnknownTaskError, match="nothing was learnt yet"):
        learner.predict(batch(CLASS, 2)[0])
    with pytest.raises(InputError, match="made for a stream without boundaries"):
        learner.begin_task(TaskInfo("a", 2))
    x, y = batch(CLASS, 3)
    with pytest.raises(InputError, match="label -1 is outside"):
        learner.observe(x, y * 0 - 1)
    learner.observe(x, y)


def test_the_task_is_inferred_from_what_is_stored() -> None:
    """Tasks that differ in brightness are told apart, and so are their classes by the heads of the right tasks."""
    learner = make("er", SPLIT, lr=0.1)
    shades = []
    for number, name in enumerate("ab"):
        learner.begin_task(TaskInfo(name, 2))
        for step in range(12):
            x, y = batch(SPLIT, 8, 2, seed=step)
            x = x // 4 + 128 * number
            x[:, 0, 0] = (60 * y.to(torch.uint8) + 128 * number)[:, None]
            learner.observe(x, y)
            shades.append((x, y, torch.full_like(y, number)))
        learner.end_task()
    x, y, task = (torch.cat(part) for part in zip(*shades, strict=True))
    joint = learner.engine.joint_scores(x)
    assert float((joint.logsumexp(2).argmax(1) == task).float().mean()) > 0.95
    half = len(x) // 2
    told = torch.cat([learner.predict(x[:half], "a").argmax(1), learner.predict(x[half:], "b").argmax(1) + 2])
    assert float((learner.predict(x).argmax(1) == told).float().mean()) > 0.95
