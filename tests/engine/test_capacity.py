"""The number of tasks is unknown: capacity grows, and nothing depends on how much is allocated ahead."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from scale_cl.engine import Engine
from scale_cl.errors import ConfigError
from scale_cl.learners import Scale, ScaleConfig, registry
from scale_cl.nets import Discriminator, Heads, ParameterGenerator
from scale_cl.settings import build, field_names
from scale_cl.streams import InputSpec, TaskInfo
from tests.learners.side_by_side import in_double, parts_of, recorded
from tests.learners.tiny import COLOUR, DOMAIN, SPLIT, batch, quick, teach


def allocate(monkeypatch: pytest.MonkeyPatch, tasks: int) -> None:
    """Let everything be made for so many tasks from now on."""
    for part in (Heads, ParameterGenerator):
        monkeypatch.setitem(part.__init__.__kwdefaults__, "capacity", tasks)  # type: ignore[arg-type]
    monkeypatch.setattr(Engine, "capacity", property(lambda _: tasks, lambda *_: None), raising=False)
    monkeypatch.setattr("scale_cl.memory.slots._FIRST_TASKS", tasks)


TASKS = 35  # of 16 that there is room for at first, and of 32 after the first growth
OTHER = {"weight_average": 0.9, "refresh_logits": True, "second_order": True}


@pytest.mark.parametrize(
    ("spec", "values"),
    [(DOMAIN, {}), (DOMAIN, OTHER), (SPLIT, {}), (SPLIT, OTHER), (COLOUR, {})],
    ids=["domain", "domain, other settings", "split", "split, other settings", "resnet"],
)
def test_a_run_does_not_depend_on_the_capacity_allocated_ahead(
    monkeypatch: pytest.MonkeyPatch, spec: InputSpec, values: dict[str, Any]
) -> None:
    learners, draws = [], []
    for tasks in (1, 4, 100):
        allocate(monkeypatch, tasks)
        learner = in_double(Scale(spec, ScaleConfig(memory=5, replay=8, adversarial_lr=0.1, **values)))
        assert learner.net.heads.weight.capacity == (1 if spec.scenario == "domain" else tasks)
        assert len(learner.memory.y) == 5 * tasks
        with recorded(learner) as drawn:
            for task, classes in enumerate((3, 2, 3, 3, 4)):
                teach(learner, tasks=1, first=task, classes=3 if spec.scenario == "domain" else classes)
        learners.append(learner)
        draws.append(drawn.replay)
    assert draws[0] == draws[1] == draws[2]
    first, *others = (parts_of(learner) for learner in learners)
    for other in others:
        for one, two in (
            (first.base, other.base),
            (first.generator, other.generator),
            (first.discriminator, other.discriminator),
        ):
            assert one.keys() == two.keys()
            for name in one:
                torch.testing.assert_close(one[name], two[name], rtol=1e-8, atol=1e-10, msg=name)
    x, _ = batch(spec, 5)
    for task in range(5):
        expected = learners[0].predict(x, f"task {task}")
        for learner in learners[1:]:
            torch.testing.assert_close(learner.predict(x, f"task {task}"), expected)


@pytest.mark.parametrize(
    ("name", "spec"), [("scale", DOMAIN), ("finetune", DOMAIN), *[(name, SPLIT) for name in registry.names()]]
)
def test_more_tasks_come_than_there_is_room_for_twice_over(name: str, spec: InputSpec) -> None:
    kind = registry.config_class(name)
    values = {"memory": 5} if "memory" in field_names(kind) else {}
    learner = registry.make(name, spec, build(kind, values | quick(name)))
    for task in range(TASKS):
        learner.begin_task(TaskInfo(f"task {task}", 3))
        stats = learner.observe(*batch(spec, 2, seed=task))
        assert all(bool(value.isfinite()) for value in stats.values())
    learner.end_task()
    x, _ = batch(spec, 3)
    assert all(bool(learner.predict(x, f"task {task}").isfinite().all()) for task in range(TASKS))


GROWING = [name for name in registry.names() if "max_tasks" in field_names(registry.config_class(name))]


@pytest.mark.parametrize(
    "name", [name if name in ("independent", "acl") else pytest.param(name, marks=pytest.mark.soak) for name in GROWING]
)
def test_a_hundred_tasks_are_learnt_by_a_network_that_grows_and_one_more_is_refused(name: str) -> None:
    learner = registry.make(name, SPLIT, build(registry.config_class(name), {"backbone": "mlp-4-4", **quick(name)}))
    teach(learner, tasks=100, steps=1)
    x, _ = batch(SPLIT, 3)
    assert all(bool(learner.predict(x, f"task {task}").isfinite().all()) for task in range(100))
    with pytest.raises(ConfigError, match=rf"'101' would be number 101, but {name} adds .* bounded to 100 \(learner"):
        learner.begin_task(TaskInfo("101", 3))
    learner.begin_task(TaskInfo("task 99", 3))
    learner.observe(*batch(SPLIT, 4))


def test_all_parts_of_scale_grow_with_the_tasks() -> None:
    learner = Scale(SPLIT, ScaleConfig(memory=2))
    for task in range(70):
        teach(learner, tasks=1, steps=1, first=task)
        assert learner.net.heads.weight.count == task + 1
        assert learner.net.generator is not None
        assert learner.net.generator.embedding.count == task + 1
        assert isinstance(learner.discriminator.module, Discriminator)
        assert learner.discriminator.module.outputs == task + 2
        assert learner.memory.available() == 2 * (task + 1)
    widths = learner.memory.logits["task"].width[:140].view(70, 2)
    assert torch.equal(widths, (torch.arange(70) + 2)[:, None].expand(70, 2)), "d has the columns that existed then"


def test_parameters_stay_as_they_were_when_capacity_doubles() -> None:
    learner = Scale(SPLIT, ScaleConfig(memory=2))
    teach(learner, tasks=32, steps=1)
    before = parts_of(learner)
    learner.begin_task(TaskInfo("one more", 3))
    after = parts_of(learner)
    assert len(after.base) == len(before.base) + 2
    for one, two in ((before.base, after.base), (before.generator, after.generator)):
        assert all(torch.equal(value, two[name]) for name, value in one.items())
    assert all(torch.equal(value, after.discriminator[name]) for name, value in before.discriminator.items())
