"""Steps of CTN against a plain re-computation, and what its two memories hold."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from scale_cl.errors import CheckpointError, ConfigError
from scale_cl.learners import Ctn, CtnConfig, registry
from scale_cl.settings import build
from scale_cl.streams import InputSpec, TaskInfo
from tests.learners import hardships
from tests.learners.plain import (
    IMAGE,
    SPLIT,
    VECTOR,
    PlainNet,
    gradients,
    in_double,
    mean_ce,
    pixels,
    put,
    recorded,
    with_heads,
)
from tests.learners.tiny import batch, teach

Sample = tuple[Tensor, int]


class PlainCtn:
    """CTN as its description has it: two lists of samples a task, batch and replay in forwards of their own."""

    def __init__(self, learner: Ctn, episodic: int, semantic: int) -> None:
        self.config, self.net = learner.config, PlainNet(learner)
        self.slots = episodic
        self.episodic: dict[int, list[Sample]] = {}
        self.written: dict[int, int] = {}
        self.stored: dict[tuple[int, int], Tensor] = {}  # softened outputs of (task, slot)
        self.semantic: dict[int, list[Sample]] = {}
        self.semantic_slots = semantic
        self.held: dict[int, int] = {}  # samples that ever went to the semantic memory
        self.own = 0  # replayed samples of the task that was open

    def begin_task(self, learner: Ctn, task: int) -> None:
        self.net.meet(learner)
        self.task = task
        for counts in (self.written, self.held):
            counts.setdefault(task, 0)
        self.episodic.setdefault(task, [])

    def observe(self, x: Tensor, y: list[int], draws: list[list[tuple[int, int]]]) -> None:
        c = self.config
        samples = self._held_out(list(zip(x, y, strict=True)))
        for _ in range(c.outer_steps):
            xs, ys = _apart(samples)
            known = gradients(self.net.loss(xs, ys, [self.task] * len(ys)), self.net.base) if c.reuse_batch else None
            for _ in range(c.inner_steps):
                self._inner(samples, draws.pop(0) if draws else [], known)
            self._outer()
        assert not draws
        for sample in samples:
            put(self.episodic[self.task], self.written[self.task] % self.slots, sample)
            self.written[self.task] += 1

    def _held_out(self, samples: list[Sample]) -> list[Sample]:
        first, rest = samples[0], samples[1:]
        if self.held[self.task] == 0:
            self.semantic[self.task] = [first] * self.semantic_slots  # copies, until others come
            rest = rest or samples
        else:
            ring, n = self.semantic[self.task], self.held[self.task]
            rest = [*rest, ring[(n - 1) % self.semantic_slots]]
            ring[n % self.semantic_slots] = first
        self.held[self.task] += 1
        return rest

    def _inner(self, samples: list[Sample], places: list[tuple[int, int]], known: dict[str, Tensor] | None) -> None:
        c = self.config
        x, y = _apart(samples)
        loss = torch.zeros((), dtype=torch.float64) if known else self.net.loss(x, y, [self.task] * len(y))
        candidates = [place for place in self.stored if place[0] != self.task]
        if c.replay_current and candidates:
            candidates += [(self.task, slot) for slot in range(len(self.episodic[self.task]))]
        assert len(places) == min(c.replay, self.slots, len(candidates))
        if places:
            assert set(places) <= set(candidates)
            self.own += sum(task == self.task for task, _ in places)
            x, y = _apart([self.episodic[task][slot] for task, slot in places])
            o = self.net.logits(x, [task for task, _ in places])
            loss = loss + mean_ce(o, y)
            softened = [F.log_softmax(one / c.temperature, 0) for one in o]
            divergences = [
                torch.zeros((), dtype=torch.float64)  # nothing is stored of the open task
                if place[0] == self.task
                else F.kl_div(one, self.stored[place], reduction="none").mean()
                for one, place in zip(softened, places, strict=True)
            ]
            loss = loss + c.distillation * torch.stack(divergences).mean()
        found = gradients(loss, self.net.base) if loss.requires_grad else {}
        for name, p in self.net.base.items():
            for part in (found, known or {}):
                if name in part:
                    p.data -= c.inner_lr * part[name]

    def _outer(self) -> None:
        c = self.config
        finished = {task: ring[: self.held[task]] for task, ring in self.semantic.items() if task != self.task}
        rings = finished | {self.task: self.semantic[self.task]}  # only the open task's has copies
        samples = [(sample, task) for task, ring in rings.items() for sample in ring]
        x, y = _apart([sample for sample, _ in samples])
        found = gradients(self.net.loss(x, y, [task for _, task in samples]), self.net.controller)
        for p, g in zip(self.net.controller.values(), found.values(), strict=True):
            p.data -= c.outer_lr * (g / c.outer_steps).clamp(-c.clip, c.clip)

    def end_task(self) -> None:
        x, _ = _apart(self.episodic[self.task])
        training = self.config.stored_in_training
        for slot, o in enumerate(self.net.logits(x, [self.task] * len(x), training=training)):
            self.stored[self.task, slot] = F.softmax(o.detach() / self.config.temperature, 0)


def _apart(samples: list[Sample]) -> tuple[Tensor, list[int]]:
    return torch.stack([x for x, _ in samples]), [y for _, y in samples]


class SideBySide:
    """A learner in float64 and its re-computation, compared after every step."""

    def __init__(self, spec: InputSpec, *, slots: tuple[int, int], **values: Any) -> None:
        self.learner = in_double(Ctn(spec, CtnConfig(memory=sum(slots), **values)))
        assert (self.learner.memory.slots, self.learner.semantic.slots) == slots
        self.plain = PlainCtn(self.learner, *slots)
        self.data = torch.Generator().manual_seed(1)
        self.sizes: set[int] = set()  # of replay draws

    def task(self, name: str, classes: int, *sizes: int) -> None:
        """A task of batches of these sizes."""
        self.learner.begin_task(TaskInfo(name, classes))
        self.plain.begin_task(self.learner, self.learner.tasks.index(name))
        for n in sizes:
            x, y = pixels(self.learner.spec, n, classes, self.data)
            with recorded(self.learner) as draws:
                self.learner.observe(x, y)
            self.sizes |= {len(draw) for draw in draws}
            self.plain.observe(x, y.tolist(), draws)
            self.plain.net.compare(self.learner)
        self.learner.end_task()
        self.plain.end_task()
        self.compare_memories()

    def compare_memories(self) -> None:
        for task, ring in self.plain.episodic.items():
            rows = self.learner.memory.rows_of(task)
            assert len(rows) == len(ring)
            for row, (x, y) in zip(rows, ring, strict=True):
                assert torch.equal(self.learner.memory.x[row], x)
                assert int(self.learner.memory.y[row]) == y
        for task, held in self.plain.held.items():
            rows = self.learner.semantic.rows_of(task)
            assert len(rows) == min(held, self.plain.semantic_slots)
            for row, (x, _) in zip(rows, self.plain.semantic[task], strict=False):
                assert torch.equal(self.learner.semantic.x[row], x)


STRONG = {"inner_lr": 0.1, "outer_lr": 0.5}


@with_heads(
    [
        {},
        {"inner_steps": 1, "outer_steps": 3},
        {"clip": 1e-3},
        {"temperature": 2.0, "distillation": 10.0},
        {"reuse_batch": True},
        {"replay_current": True},
    ],
    ids=[
        "as the paper",
        "other numbers of steps",
        "gradient that is clipped",
        "other divergence",
        "stale gradient",
        "current task too",
    ],
)
def test_mlp_steps_are_those_of_the_plain_computation(spec: InputSpec, values: dict[str, Any]) -> None:
    both = SideBySide(spec, slots=(6, 3), semantic=1 / 3, replay=5, **STRONG | values)
    for task in "abc":
        both.task(task, 3, 4, 4, 4)
    both.task("b", 3, 4, 4)  # comes back
    assert both.sizes == {5}
    assert (both.plain.own > 0) == values.get("replay_current", False)


@pytest.mark.parametrize(
    "values",
    [{}, {"reuse_batch": True, "stored_in_training": True, "replay_current": True}],
    ids=["ours", "the authors'"],
)
def test_resnet_steps_are_those_of_the_plain_computation(values: dict[str, Any]) -> None:
    # batch norm over so few samples throws larger steps out, and any rounding with them
    both = SideBySide(IMAGE, slots=(6, 2), semantic=0.25, inner_lr=0.001, outer_lr=0.5, **values)
    for task, classes in (("a", 2), ("b", 3), ("c", 2)):  # heads of different widths
        both.task(task, classes, 6, 6)
    assert both.sizes == {6}


def test_the_papers_own_sizes_give_the_same_steps() -> None:
    both = SideBySide(VECTOR, slots=(40, 10), inner_lr=0.03, outer_lr=0.1)
    for task in "abc":
        both.task(task, 10, *[10] * 5)
    assert both.sizes == {40}, "not more than a task has episodic slots, whatever is stored"


def test_tasks_of_unequal_batches_give_the_same_steps() -> None:
    both = SideBySide(SPLIT, slots=(6, 2), semantic=0.25, **STRONG)
    both.task("one sample", 3, 1)
    both.task("one batch", 3, 4)
    both.task("last batch of one", 3, 3, 3, 1)
    both.task("wide", 3, 11)
    both.task("single class", 1, 2, 2)
    assert both.sizes == {1, 4, 6}


def test_a_sample_of_the_semantic_memory_is_trained_on_one_batch_later() -> None:
    learner = Ctn(VECTOR, CtnConfig(memory=10, semantic=0.2))
    learner.begin_task(TaskInfo("a", 3))
    first, second = batch(VECTOR, 3, seed=1), batch(VECTOR, 3, seed=2)
    learner.observe(*first)
    assert torch.equal(learner.semantic.x[0], first[0][0])
    assert torch.equal(learner.memory.x[:2], first[0][1:])
    learner.observe(*second)
    assert torch.equal(learner.semantic.x[:2], torch.stack([first[0][0], second[0][0]]))
    assert torch.equal(learner.memory.x[2:5], torch.cat([second[0][1:], first[0][:1]]))


@pytest.mark.parametrize(
    ("memory", "share", "slots"), [(50, 0.2, 10), (2, 0.2, 1), (2, 0.9, 1), (7, 0.5, 4), (200, 0.2, 40)]
)
def test_both_memories_together_have_the_slots_of_one(memory: int, share: float, slots: int) -> None:
    learner = Ctn(VECTOR, CtnConfig(memory=memory, semantic=share))
    assert learner.semantic.slots == slots
    assert learner.memory.slots == memory - slots


def test_a_memory_of_one_slot_cannot_be_shared() -> None:
    with pytest.raises(ConfigError, match="memory"):
        CtnConfig(memory=1)


def test_a_hundred_tasks_of_one_small_batch_each() -> None:
    config = CtnConfig(memory=3, inner_steps=1, outer_steps=1)
    learner = teach(Ctn(InputSpec((6,), None, "task"), config), tasks=100, steps=1, n=2)
    assert bool(learner.predict(batch(learner.spec, 3)[0], "task 0").isfinite().all())


def test_a_state_without_semantic_memory_is_refused() -> None:
    config = build(registry.config_class("er"), {"memory": 40})
    state = teach(registry.make("er", VECTOR, config)).state_dict()
    with pytest.raises(CheckpointError, match=r"has the memories \['memory'\], expected \['memory', 'semantic'\]"):
        Ctn(VECTOR).load_state_dict(state)


def test_a_step_of_ctn_leaves_the_host_alone() -> None:
    hardships.leaves_the_host_alone(lambda spec: Ctn(spec, CtnConfig(memory=9, replay_current=True)), SPLIT)
