"""What a method declares is grown, guarded, saved and loaded; what it keeps without declaring it is refused."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from scale_cl.engine import Engine, TaskShape
from scale_cl.engine.divergence import DeviceGuard
from scale_cl.errors import CheckpointError, ScaleClError
from scale_cl.learners import Batch, Finetune, Learner, ReplayConfig
from scale_cl.learners.learner import replay_memory
from scale_cl.nets import Discriminator
from scale_cl.settings import setting
from scale_cl.streams import InputSpec, TaskInfo
from tests.engine.test_state import through_files
from tests.learners import hardships
from tests.learners.sameness import differences
from tests.learners.tiny import COLOUR, SPLIT, batch, teach


@dataclass(frozen=True)
class HoarderConfig(ReplayConfig):
    """Settings of the test's own method."""

    memory: int = setting(5, "slots", low=1)
    replay: int = setting(4, "replayed", low=1)
    lr: float = setting(0.05, "learning rate", above=0)
    generator: bool = setting(True, "whether there is a generator")


class Hoarder(Learner):
    """Owns one of each kind of thing that can be declared, and lets each decide about the next step."""

    config_class = HoarderConfig
    config: HoarderConfig

    def build(self, engine: Engine) -> None:
        width = engine.backbone.feature_width
        self.generator = engine.generator(when=self.config.generator)
        self.network = engine.network(film=self.generator)
        self.growing = engine.part(
            "growing", lambda: Discriminator(width, generator=engine.weights_rng, capacity=engine.capacity)
        )
        self.absent = engine.part("absent", lambda: nn.Linear(1, 1), when=False)
        self.fresh = engine.task_part("fresh", self.layer)
        self.columns = engine.task_modules("columns", self.layer)
        self.column = engine.weights(self.open_column)
        self.momentum = engine.like("momentum", self.network.base, changes="step")
        self.importance = engine.like("importance", self.network.base, changes="task")
        self.opponent = engine.like("opponent", self.growing.weights, changes="step")
        self.old = engine.teacher("old")
        self.scale = engine.tensor("scale", torch.ones(()), changes="step")
        self.ended = engine.tensor("ended", torch.zeros((), dtype=torch.int64), changes="task")
        self.memory = replay_memory(engine, self.config)

    def layer(self, shape: TaskShape) -> nn.Module:
        """As wide as the task and as tall as the number of tasks, drawn from the learner's own generator."""
        made = nn.Linear(self.engine.backbone.feature_width, shape.classes + shape.tasks, device="meta")
        drawn = [0.1 * torch.randn(p.shape, generator=self.engine.weights_rng) for p in made.parameters()]
        made.weight, made.bias = (nn.Parameter(p) for p in drawn)
        return made

    def open_column(self) -> dict[str, Tensor]:
        return {n: p for n, p in self.columns.named_parameters() if p.requires_grad}

    def update(self, batch: Batch) -> None:
        c, base = self.config, self.network.base
        (samples,) = self.memory.replay_with(batch, c.replay)
        out = self.network(samples)
        loss = self.scale * F.cross_entropy(out.logits, samples.y)
        loss = loss + 0.1 * F.cross_entropy(self.growing(out.common), samples.task + 1)
        loss = loss + 0.1 * self.fresh(out.features).square().mean()
        column = self.columns[self.engine.host.ask(lambda: self.engine.open_task)]
        loss = loss + 0.1 * column(out.features).square().mean()
        if self.old and samples.replayed:
            taught = self.old(samples.replay.x, samples.replay.task).features
            loss = loss + 0.1 * F.mse_loss(samples.from_memory(out.features), taught)
        penalty = zip(self.importance.tensors, base.tensors, strict=True)
        loss = loss + 0.01 * torch.stack([(i * p.square()).sum() for i, p in penalty]).sum()
        gradient = base.gradient(loss)
        common, features = out.common.detach(), out.features.detach()
        self.growing.descend(F.cross_entropy(self.growing(common), samples.task + 1), c.lr)
        self.fresh.descend(self.fresh(features).square().mean(), c.lr)
        self.column.descend(column(features).square().mean(), c.lr)
        if self.generator:
            outer = self.network(samples, wrt=self.generator)
            self.generator.descend(F.cross_entropy(outer.logits, samples.y), c.lr)
        self.absent.descend(loss, c.lr)
        self.momentum.set([0.5 * m + g for m, g in zip(self.momentum.tensors, gradient, strict=True)])
        self.opponent.set(
            [0.9 * o + p for o, p in zip(self.opponent.tensors, self.growing.weights.tensors, strict=True)]
        )
        base.move(self.momentum.tensors, c.lr)
        with torch.no_grad():
            self.scale.mul_(0.99).add_(
                0.01 * torch.stack([o.sum() for o in self.opponent.tensors]).sum().div(1e3).tanh()
            )
        self.log(loss=loss)
        self.memory.write(batch)

    def task_ended(self, task: int) -> None:
        self.importance.set(
            [i + p.square() for i, p in zip(self.importance.tensors, self.network.base.tensors, strict=True)]
        )
        self.old.take(self.net)
        self.ended += 1


def make(seed: int = 0, spec: InputSpec = SPLIT, **values: Any) -> Hoarder:
    return Hoarder(spec, HoarderConfig(**values), seed=seed)


KINDS = ["net", "average", "growing", "fresh", "columns", "momentum", "importance", "opponent", "old", "memory"]


@pytest.mark.parametrize("where", ["before any task", "inside the first task", "inside a task", "between tasks"])
@pytest.mark.parametrize("average", [0.0, 0.9])
def test_all_kinds_are_saved_and_loaded_and_go_on_to_the_bit(where: str, average: float, tmp_path: Path) -> None:
    straight = make(weight_average=average)
    if "first" in where:
        straight.begin_task(TaskInfo("open", 4))
        straight.observe(*batch(SPLIT, 3, 4, seed=50))
    elif "before" not in where:
        teach(straight, tasks=2)
        if where == "inside a task":
            straight.begin_task(TaskInfo("open", 4))
            straight.observe(*batch(SPLIT, 3, 4, seed=50))
    for loaded in (
        make(seed=99, weight_average=average),
        teach(make(seed=7, weight_average=average), tasks=3, classes=6),
    ):
        copy = make(weight_average=average)
        copy.load_state_dict(straight.state_dict())
        loaded.load_state_dict(through_files(straight.state_dict(), tmp_path))
        assert differences(straight, loaded) == []
        for learner in (copy, loaded):
            if "inside" in where:
                learner.observe(*batch(SPLIT, 5, 4, seed=51))
            teach(learner, tasks=2, first=1, n=5)
        assert differences(copy, loaded) == []
    names = {name.partition(".")[0] for name in copy.state_dict()["tensors"]}
    assert names == {*KINDS, "scale", "ended", "rng", "weights_rng"} - ({"average"} if not average else set())


def test_a_learner_with_room_for_more_tasks_takes_a_state_over_too() -> None:
    """What is allocated ahead is no part of a state."""
    few, many = teach(make(), tasks=2), teach(make(seed=7), tasks=20, steps=1, classes=6)
    state = few.state_dict()
    many.load_state_dict(state)
    assert differences(few, many) == []
    again = make()
    again.load_state_dict(many.state_dict())
    assert differences(few, again) == []


def test_every_declared_thing_takes_part() -> None:
    """Each of them changes what is learned: a state in which one is another goes on otherwise."""
    state = teach(make(), tasks=2).state_dict()
    for name in ("growing", "columns", "momentum", "importance", "opponent", "old", "scale"):
        one, other = make(), make()
        one.load_state_dict(state)
        changed = {n: t * 1.5 + 0.1 if n.partition(".")[0] == name else t for n, t in state["tensors"].items()}
        other.load_state_dict({"tensors": changed, "meta": state["meta"]})
        for learner in (one, other):
            learner.begin_task(TaskInfo("task 1", 3))
            for seed in (8, 9):
                learner.observe(*batch(SPLIT, 4, seed=seed))
        own = [n for n in differences(one, other) if n.startswith("net.")]
        assert own, f"{name} has no influence"


def test_growth_keeps_what_was_there() -> None:
    learner = teach(make(), tasks=1)
    assert isinstance(learner, Hoarder)
    assert learner.growing.module is not None
    before = {n: t.clone() for n, t in learner.momentum.named.items()}
    first = learner.columns[0]
    weight = next(first.parameters()).clone()
    teach(learner, tasks=40, first=1, steps=1)  # beyond what is allocated at first
    assert len(learner.columns) == 41
    assert learner.columns[0] is first
    assert torch.equal(next(first.parameters()), weight), "only the open task's module is trained"
    assert [p.requires_grad for p in first.parameters()] == [False, False]
    assert {n: t.shape for n, t in learner.momentum.named.items()} == {
        n: p.shape for n, p in learner.network.base.named.items()
    }
    assert before.keys() == learner.momentum.named.keys()
    assert not learner.absent
    assert learner.fresh.shape == TaskShape(40, 3, 41)
    assert int(learner.ended) == 41


def test_what_changes_in_a_step_is_guarded() -> None:
    learner = teach(make(), tasks=1)
    assert isinstance(learner, Hoarder)
    learner.begin_task(TaskInfo("open", 3))
    watched = {id(t) for t in learner.engine.learned()}
    for tensors in (
        learner.momentum.tensors,
        learner.opponent.tensors,
        learner.growing.weights.tensors,
        [learner.scale],
    ):
        assert {id(t) for t in tensors} <= watched
    assert not {id(t) for t in (*learner.importance.tensors, learner.ended)} & watched
    assert learner.old.module is not None
    assert not {id(t) for t in learner.old.module.parameters()} & watched


def test_a_diverged_step_leaves_every_declared_thing_as_it_was() -> None:
    learner = teach(make(), tasks=1)
    learner.engine.guard = DeviceGuard(learner.device, "stop")
    learner.begin_task(TaskInfo("open", 3))
    before = [t.detach().clone() for t in learner.engine.learned()]
    real = learner.update

    def update(batch: Batch) -> None:
        real(batch)
        learner.log(loss=torch.tensor(torch.nan))

    learner.update = update  # type: ignore[method-assign]
    learner.observe(*batch(SPLIT, 4))
    assert all(torch.equal(a, b) for a, b in zip(before, learner.engine.learned(), strict=True))


@pytest.mark.parametrize("spec", [SPLIT, COLOUR], ids=["mlp", "resnet"])
def test_a_step_leaves_the_host_alone(spec: InputSpec) -> None:
    hardships.leaves_the_host_alone(lambda given: make(spec=given), spec)


def test_a_state_without_one_of_them_is_refused_and_changes_nothing() -> None:
    learner, same = teach(make(), tasks=1), teach(make(), tasks=1)
    state = teach(make(), tasks=2).state_dict()
    for name in ("momentum", "old", "columns", "fresh", "growing", "scale"):
        some = {n: t for n, t in state["tensors"].items() if n.partition(".")[0] != name}
        with pytest.raises(CheckpointError) as caught:
            learner.load_state_dict({"tensors": some, "meta": state["meta"]})
        assert "\n" not in str(caught.value)
        assert differences(learner, same) == []
    shapes = {name: value for name, value in state["meta"]["shapes"].items() if name != "columns"}
    with pytest.raises(CheckpointError):
        learner.load_state_dict({"tensors": state["tensors"], "meta": state["meta"] | {"shapes": shapes}})
    assert differences(learner, same) == []


# ---- what is refused -------------------------------------------------------------------------------------------------


def with_momentum() -> torch.optim.Optimizer:
    weight = torch.zeros(2, requires_grad=True)
    optimizer = torch.optim.SGD([weight], 0.1, momentum=0.9)
    weight.sum().backward()
    optimizer.step()
    return optimizer


class Slotted:
    __slots__ = ("empty", "value")

    def __init__(self) -> None:
        self.value = torch.zeros(2)


class ByClass:
    values: ClassVar = [torch.zeros(2)]

    def look(self) -> None:
        """Nothing."""


def closing_over(value: object) -> Callable[[], object]:
    return lambda: value


HELD: dict[str, Callable[[], object]] = {
    "a tensor": lambda: torch.zeros(2),
    "in a list": lambda: [1, torch.zeros(2)],
    "in a dictionary": lambda: {"a": (torch.zeros(2),)},
    "a key": lambda: {torch.zeros(2): 1},
    "a slot": Slotted,
    "a class's attribute": ByClass,
    "a module": lambda: nn.Linear(2, 2),
    "a buffer": lambda: nn.BatchNorm1d(2, affine=False),
    "an optimizer": with_momentum,
    "an object": lambda: SimpleNamespace(inside=SimpleNamespace(value=[torch.zeros(2)])),
    "an array": lambda: np.zeros(2),
    "a function's own": lambda: closing_over(torch.zeros(2)),
    "a method's object": lambda: ByClass().look,
    "given in advance": lambda: partial(print, torch.zeros(2)),
}


@pytest.mark.parametrize("kind", HELD)
@pytest.mark.parametrize("place", ["learner", "class"])
def test_an_undeclared_tensor_is_refused_after_the_first_step_by_the_name_of_its_attribute(
    kind: str, place: str
) -> None:
    class Careless(Finetune):
        running_mean: ClassVar[list[object]] = []

        def update(self, batch: Batch) -> None:
            super().update(batch)
            if place == "class":
                self.running_mean.append(HELD[kind]())
            else:
                self.running_mean = HELD[kind]()  # type: ignore[assignment, misc]

    learner = Careless(SPLIT)
    learner.begin_task(TaskInfo("a", 3))
    with pytest.raises(ScaleClError, match="Careless keeps a tensor in its attribute 'running_mean'") as caught:
        learner.observe(*batch(SPLIT, 4))
    assert "\n" not in str(caught.value)


def test_an_undeclared_tensor_that_comes_when_a_task_ends_is_refused_then() -> None:
    class Careless(Finetune):
        def task_ended(self, task: int) -> None:
            self.last = torch.zeros(2)

    learner = Careless(SPLIT)
    learner.begin_task(TaskInfo("a", 3))
    learner.observe(*batch(SPLIT, 4))
    with pytest.raises(ScaleClError, match="Careless keeps a tensor in its attribute 'last'"):
        learner.end_task()


@pytest.mark.parametrize("kind", [torch.Generator, np.random.default_rng, np.random.RandomState, random.Random])
def test_a_random_generator_of_its_own_is_refused_unlike_the_engines(kind: Callable[[], object]) -> None:
    class Drawing(Finetune):
        def build(self, engine: Engine) -> None:
            super().build(engine)
            self.draws: list[object] = [engine.rng, engine.weights_rng]

    learner = Drawing(SPLIT)
    learner.begin_task(TaskInfo("a", 3))
    learner.observe(*batch(SPLIT, 4))
    learner.draws.append(kind())
    with pytest.raises(ScaleClError, match=r"Drawing keeps a random generator in its attribute 'draws' .* engine\.rng"):
        learner.end_task()


def test_what_is_declared_or_holds_no_tensor_is_not_refused() -> None:
    class Careful(Finetune):
        def build(self, engine: Engine) -> None:
            super().build(engine)
            self.mine = engine.tensor("mine", torch.zeros(2), changes="step")
            self.optimizer: torch.optim.Optimizer | None = None
            self.holder = SimpleNamespace(method=self, tensor=self.mine, network=self.network, engine=engine)
            self.holder.itself = self.holder
            self.holder.functions = [self.update, closing_over(self.mine), partial(engine.randn, self.mine)]

        def update(self, batch: Batch) -> None:
            super().update(batch)
            self.optimizer = torch.optim.SGD(self.net.parameters(), 0.1)

    teach(Careful(SPLIT))


@pytest.mark.parametrize("kind", ["tensor", "like"])
def test_what_changes_at_no_known_time_is_refused(kind: str) -> None:
    class Vague(Finetune):
        def build(self, engine: Engine) -> None:
            super().build(engine)
            given: Any = torch.zeros(1) if kind == "tensor" else self.network.base
            getattr(engine, kind)("mine", given, changes="steps")

    with pytest.raises(ScaleClError, match=r"^Vague declares 'mine' with changes='steps'; it must be step or task$"):
        Vague(SPLIT)


def test_a_declared_name_that_is_taken_is_refused() -> None:
    def build(declare: Callable[[Engine], object]) -> type[Finetune]:
        class Twice(Finetune):
            def build(self, engine: Engine) -> None:
                super().build(engine)
                engine.tensor("mine", torch.zeros(1), changes="step")
                declare(engine)

        return Twice

    again: dict[str, Callable[[Engine], object]] = {
        "mine": lambda e: e.tensor("mine", torch.zeros(1), changes="step"),
        "net": lambda e: e.memory("net", 3),
        "average": lambda e: e.part("average", lambda: nn.Linear(1, 1)),
        "rng": lambda e: e.teacher("rng"),
        "a.b": lambda e: e.tensor("a.b", torch.zeros(1), changes="task"),
    }
    for name, declare in again.items():
        with pytest.raises(ScaleClError, match=f"Twice declares '{name}', which is taken") as caught:
            build(declare)(SPLIT)
        assert "\n" not in str(caught.value)
    for kind in (
        lambda e: e.memory("mine", 3),
        lambda e: e.part("mine", lambda: nn.Linear(1, 1)),
        lambda e: e.task_part("mine", lambda _: nn.Linear(1, 1)),
        lambda e: e.task_modules("mine", lambda _: nn.Linear(1, 1)),
        lambda e: e.teacher("mine"),
    ):
        with pytest.raises(ScaleClError, match="'mine', which is taken"):
            build(kind)(SPLIT)


def test_a_method_without_a_network_is_refused() -> None:
    class Empty(Finetune):
        def build(self, engine: Engine) -> None:
            pass

    with pytest.raises(ScaleClError, match=r"Empty.build declares no network; call engine.network\(\)"):
        Empty(SPLIT)


class Lists(Finetune):
    """It gives its parameters without their names."""

    def build(self, engine: Engine) -> None:
        super().build(engine)
        engine.weights(lambda: list(self.net.parameters()))  # type: ignore[arg-type,return-value]


def test_weights_without_names_are_refused_by_what_would_be_right() -> None:
    with pytest.raises(ScaleClError, match=r"engine.weights returned a list; return a dict of names and parameters"):
        Lists(SPLIT)
