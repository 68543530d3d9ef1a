"""Variants of SCALE: steps against plain re-computations, saved and resumed, refused settings, and the experiment."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from scale_cl import results
from scale_cl.errors import ConfigError
from scale_cl.experiments import scale_variants
from scale_cl.experiments.definitions import SCALE_VARIANTS
from scale_cl.experiments.scale_variants import (
    OrthogonalConfig,
    ScaleLastLayer,
    ScaleOneLevel,
    ScaleOrthogonal,
    ScalePlainDiscriminator,
    ScaleReversal,
    ScaleTaskDiscriminators,
    ScaleTwoMemories,
    ScaleVariant,
    TwoMemoriesConfig,
)
from scale_cl.learners import Scale, ScaleConfig, registry
from scale_cl.nets import Discriminator
from scale_cl.reports.collection import collect
from scale_cl.reports.sections import sections
from scale_cl.streams import InputSpec, TaskInfo
from tests.learners.hardships import leaves_the_host_alone
from tests.learners.plain import put
from tests.learners.sameness import differences
from tests.learners.scale_reference import (
    Choices,
    Draws,
    Parameters,
    PlainScale,
    Sample,
    Trunk,
    gradients_of,
    leaves,
)
from tests.learners.side_by_side import IMAGES, PIXELS, SideBySide, compare_stored
from tests.learners.tiny import SPLIT, batch, teach

Joined = tuple[Tensor, list[int], list[int], list[Sample]]
STRONG: dict[str, Any] = {"outer_lr": 0.1, "adversarial_lr": 0.1, "lambda3": 0.3, "memory": 5, "replay": 8}


class PlainReversal(PlainScale):
    """Base learner and discriminator move in the same step, each by a gradient of its own."""

    def __init__(self, choices: Choices, trunk: Trunk, *, one_head: bool) -> None:
        super().__init__(replace(choices, n_ad=0), trunk, one_head=one_head)

    def _inner_step(self, base: Parameters, phi: Parameters, x: Tensor, y: list[int], queue: Draws) -> Parameters:
        c = self.choices
        if not c.adversary:
            return super()._inner_step(base, phi, x, y, queue)
        joined, labels, tasks, replay = self._join(x, y, queue)
        theta, xi = leaves(base), leaves(self.discriminator)
        features, logits = self._in_training(theta, phi, joined, tasks, len(y))
        self.choices = replace(c, adversary=False)
        rest = self._loss(features, logits, labels, tasks, replay)
        self.choices = c
        game = self._discriminator_loss(xi, features, tasks, replay, queue.noise.pop(0))
        descent, ascent, own = gradients_of(rest, theta), gradients_of(game, theta), gradients_of(game, xi)
        self.discriminator = {name: p.detach() - c.mu * own[name] for name, p in xi.items()}
        return {name: p - c.alpha * (descent[name] - c.lambda3 * ascent[name]) for name, p in theta.items()}


class PlainTaskDiscriminators(PlainScale):
    """Nothing is kept of an earlier task's discriminator."""

    def _discriminator_loss(
        self, discriminator: Parameters, features: Tensor, tasks: list[int], replay: list[Sample], noise: Tensor
    ) -> Tensor:
        loss = super()._discriminator_loss(discriminator, features, tasks, [], noise)
        if replay:
            told = self._tell_tasks(discriminator, features[-len(replay) :]).log_softmax(1)
            own = [told[i, task + 1] for i, task in enumerate(tasks[-len(replay) :])]
            loss = loss - self.choices.lambda2 * torch.stack(own).mean()
        return loss

    def _keep_logits(self, kept: list[Sample], task: int) -> None:
        super()._keep_logits(kept, task)
        for sample in kept:
            sample.d = None


class PlainDiscriminator(PlainScale):
    """The discriminator just tells tasks."""

    def _discriminator_loss(
        self, discriminator: Parameters, features: Tensor, tasks: list[int], replay: list[Sample], noise: Tensor
    ) -> Tensor:
        return super()._discriminator_loss(discriminator, features, tasks, [], noise)

    def _keep_logits(self, kept: list[Sample], task: int) -> None:
        super()._keep_logits(kept, task)
        for sample in kept:
            sample.d = None


class PlainOrthogonal(PlainScale):
    """Each common feature vector against each task-specific one."""

    weight = 0.7

    def _loss(self, features: Tensor, logits: Any, y: Any, tasks: Any, replay: Any) -> Tensor:
        common, whole = self.both
        shared, private = (
            [one / (one.detach().square().sum().sqrt() + 1e-6) for one in rows] for rows in (common, whole - common)
        )
        pairs = [(s @ p) ** 2 for s in shared for p in private]
        return super()._loss(features, logits, y, tasks, replay) + self.weight * torch.stack(pairs).mean()


class PlainOneLevel(PlainScale):
    """The generator moves by the same loss, at the same point, as trunk and heads."""

    def _inner_step(self, base: Parameters, phi: Parameters, x: Tensor, y: list[int], queue: Draws) -> Parameters:
        joined, labels, tasks, replay = self._join(x, y, queue)
        theta, varphi = leaves(base), leaves(phi)
        features, logits = self._in_training(theta, varphi, joined, tasks, len(y))
        loss = self._loss(features, logits, labels, tasks, replay)
        moves, own = gradients_of(loss, theta), gradients_of(loss, varphi)
        phi |= {name: p.detach() - self.choices.beta * own[name] for name, p in varphi.items()}
        return {name: p - self.choices.alpha * moves[name] for name, p in theta.items()}

    def _outer_step(self, phi: Parameters, loss: Tensor) -> None:
        self.generator = dict(phi)


class PlainTwoMemories(PlainScale):
    """A ring of held-back samples per task, from which the validation sets come."""

    places = 2  # of five slots

    def begin_task(self, *parts: Parameters) -> None:
        super().begin_task(*parts)
        self.rings: list[list[Sample]] = [*getattr(self, "rings", []), []]
        self.held_back = 0

    def observe(self, x: Tensor, y: list[int], stored: Tensor, draws: Draws) -> None:
        ring, first = self.rings[self.task], Sample(stored[0].clone(), y[0])
        if ring:
            before = ring[(self.held_back - 1) % self.places]
            stored, y = torch.cat([stored[1:], before.x[None]]), [*y[1:], before.y]
        elif len(y) > 1:
            stored, y = stored[1:], y[1:]
        put(ring, self.held_back % self.places, first)
        self.held_back += 1
        self.queue = list(draws.semantic)
        super().observe(self._prepared(stored, like=x), y, stored, draws)
        assert not self.queue

    def _join_validation(self, x: Tensor, y: list[int], queue: Draws) -> Joined:
        ring = self.rings[self.task]
        own = ring + [ring[0]] * (self.places - len(ring))
        drawn = self.queue.pop(0) if self.finished else []
        assert len(set(drawn)) == len(drawn)
        replay = [self.rings[task][slot] for task, slot in drawn]
        inputs = self._prepared(torch.stack([sample.x for sample in own + replay]), like=x)
        tasks = [self.task] * len(own) + [task for task, _ in drawn]
        return inputs, [sample.y for sample in own + replay], tasks, replay

    def end_task(self) -> None:
        super().end_task()
        self._keep_logits(self.rings[self.task], self.task)


class PlainLastLayer(PlainScale):
    """The first layer just has its activation, and the generator makes scale and shift of the second."""

    def _film(self, generator: Parameters, site: int, task: int, h: Tensor) -> Tensor:
        return torch.relu(h) if site == 0 else super()._film(generator, 0, task, h)


PLAIN: dict[type[ScaleVariant], type[PlainScale]] = {
    ScaleReversal: PlainReversal,
    ScaleTaskDiscriminators: PlainTaskDiscriminators,
    ScalePlainDiscriminator: PlainDiscriminator,
    ScaleOrthogonal: PlainOrthogonal,
    ScaleOneLevel: PlainOneLevel,
    ScaleTwoMemories: PlainTwoMemories,
    ScaleLastLayer: PlainLastLayer,
}
ON_IMAGES = [kind for kind in PLAIN if kind not in (ScaleTaskDiscriminators, ScaleLastLayer)]
every_variant = pytest.mark.parametrize("kind", PLAIN, ids=lambda kind: kind.__name__)


def config_of(kind: type[ScaleVariant], **values: Any) -> ScaleConfig:
    own: dict[type[ScaleVariant], dict[str, Any]] = {
        ScaleOrthogonal: {"orthogonal": PlainOrthogonal.weight},
        ScaleTwoMemories: {"semantic": 0.4},
    }
    made = kind.config_class(**STRONG | own.get(kind, {}) | values)
    assert isinstance(made, ScaleConfig)
    return made


def run_beside(kind: type[ScaleVariant], spec: InputSpec, *, steps: int, **values: Any) -> SideBySide:
    """Three tasks of a variant and its re-computation."""
    both = SideBySide(spec, config_of(kind, **values), kind=kind, plain=PLAIN[kind])
    for task, classes in (("a", 3), ("b", 3), ("c", 3)):
        if kind is ScaleTaskDiscriminators:
            both.plain.discriminator.clear()
        both.task(task, classes, steps=steps, batch=5)
    if isinstance(both.learner, ScaleTwoMemories) and isinstance(both.plain, PlainTwoMemories):
        compare_stored(both.learner.semantic, both.plain.rings)
    return both


@every_variant
def test_mlp_steps_are_those_of_the_plain_computation(kind: type[ScaleVariant]) -> None:
    run_beside(kind, PIXELS, steps=3, inner_lr=0.1)


@pytest.mark.parametrize("kind", [ScaleReversal, ScaleOneLevel, ScaleTwoMemories], ids=lambda kind: kind.__name__)
def test_two_inner_in_two_outer_steps_are_those_of_the_plain_computation(kind: type[ScaleVariant]) -> None:
    run_beside(kind, PIXELS, steps=1, inner_lr=0.05, inner_steps=2, outer_steps=2, weight_average=0.9)


@pytest.mark.parametrize("kind", ON_IMAGES, ids=lambda kind: kind.__name__)
def test_resnet_steps_are_those_of_the_plain_computation(kind: type[ScaleVariant]) -> None:
    run_beside(kind, IMAGES, steps=1, inner_lr=0.01)


@every_variant
def test_every_variant_differs_from_scale(kind: type[ScaleVariant]) -> None:
    learner, plain = teach(kind(SPLIT, config_of(kind))), teach(Scale(SPLIT, ScaleConfig(**STRONG)))
    assert "net.heads.weight.data" in differences(learner, plain)


@every_variant
def test_a_variant_goes_on_from_a_saved_state_as_if_nothing_had_happened(kind: type[ScaleVariant]) -> None:
    learner, other = (kind(SPLIT, config_of(kind), seed=seed) for seed in (1, 2))
    teach(learner, tasks=2)
    learner.begin_task(TaskInfo("open", 3))
    learner.observe(*batch(SPLIT, 4))
    other.load_state_dict(learner.state_dict())
    for one in (learner, other):
        one.observe(*batch(SPLIT, 4, seed=9))
        one.end_task()
        teach(one, tasks=1, first=5)
    assert differences(learner, other) == []


@every_variant
def test_a_step_of_a_variant_leaves_the_host_alone(kind: type[ScaleVariant]) -> None:
    leaves_the_host_alone(lambda spec: kind(spec, config_of(kind)), SPLIT)


def test_a_new_task_has_a_new_discriminator_with_an_output_for_each_task_so_far() -> None:
    learner = ScaleTaskDiscriminators(SPLIT, config_of(ScaleTaskDiscriminators))
    hidden = []
    for task in range(3):
        learner.begin_task(TaskInfo(str(task), 3))
        adversary = learner.discriminator.module
        assert isinstance(adversary, Discriminator)
        assert adversary.outputs == task + 2
        hidden.append(adversary.hidden.weight.detach().clone())
        learner.observe(*batch(SPLIT, 4))
    assert not torch.equal(hidden[0], hidden[1])
    learner.end_task()
    assert int(learner.memory.logits["task"].width.sum()) == 0


def test_without_the_part_that_it_changes_a_variant_is_the_ablation_of_scale() -> None:
    for kind, off in (
        (ScaleReversal, "adversary"),
        (ScaleTaskDiscriminators, "adversary"),
        (ScaleOneLevel, "generator"),
        (ScaleLastLayer, "generator"),
        (ScaleOrthogonal, "generator"),
    ):
        learner = teach(kind(SPLIT, config_of(kind, **{off: False})))
        plain = teach(Scale(SPLIT, ScaleConfig(**STRONG | {off: False})))
        assert differences(learner, plain) == [], kind


def test_both_memories_have_the_slots_of_one_and_the_newest_held_back_sample_is_not_trained_on() -> None:
    learner = ScaleTwoMemories(SPLIT, TwoMemoriesConfig())
    assert (learner.memory.slots, learner.semantic.slots) == (40, 10)
    learner.begin_task(TaskInfo("a", 3))
    samples = [batch(SPLIT, 4, seed=seed) for seed in (1, 2)]
    for x, y in samples:
        learner.observe(x, y)
    kept = {bytes(x.flatten().tolist()) for x in learner.memory.x[learner.memory.stored]}
    first, second = (bytes(x[0].flatten().tolist()) for x, _ in samples)
    assert first in kept
    assert second not in kept


@pytest.mark.parametrize(
    ("kind", "values", "message"),
    [
        (ScaleReversal, {"adversarial": "fake"}, "adversarial is fake; ScaleReversal needs minus, as reversal takes"),
        (ScaleReversal, {"discriminator_steps": 2}, "discriminator_steps is 2; ScaleReversal needs 1, as the discr"),
        (ScaleReversal, {"second_order": True}, "second_order is true; ScaleReversal needs false, as its inner step"),
        (ScaleOneLevel, {"second_order": True}, "second_order is true; ScaleOneLevel needs false, as there is no "),
        (ScaleTwoMemories, {"memory_budget": "total"}, "memory_budget is total; ScaleTwoMemories needs task, as it"),
        (ScaleTwoMemories, {"memory": 1}, "memory"),
        (ScaleOrthogonal, {"orthogonal": -1.0}, "orthogonal"),
    ],
)
def test_a_setting_that_a_variant_cannot_have_is_refused(
    kind: type[ScaleVariant], values: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        kind(SPLIT, config_of(kind, **values))


def test_a_weight_of_zero_for_the_orthogonal_loss_leaves_scale() -> None:
    learner, plain = teach(ScaleOrthogonal(SPLIT, OrthogonalConfig(orthogonal=0.0))), teach(Scale(SPLIT))
    assert differences(learner, plain) == []


def test_every_variant_is_in_the_experiment_and_none_has_an_undocumented_setting() -> None:
    every = {kind.__name__ for kind in PLAIN} - {"ScaleLastLayer"}  # of which the time is measured
    assert {reference.rpartition(":")[2] for reference in SCALE_VARIANTS} == every
    for reference in SCALE_VARIANTS:
        entry = registry.entry_of(getattr(scale_variants, reference.rpartition(":")[2]), reference)
        assert entry.settings("pmnist", "paper") == registry.preset_settings("scale", "pmnist", "paper")
        assert entry.line.startswith("SCALE with ")


def test_film_in_the_last_layer_only_is_for_an_mlp() -> None:
    with pytest.raises(ConfigError, match="needs backbone mlp: on others SCALE has FiLM in the last layer already"):
        ScaleLastLayer(IMAGES, config_of(ScaleLastLayer))
    generator = ScaleLastLayer(PIXELS, config_of(ScaleLastLayer)).net.generator
    assert generator is not None
    assert [layer.out_features for layer in generator.layers] == [2 * 256]


def test_variants_are_reproduced_reported_and_found_again(command: Callable[..., Any]) -> None:
    small = ("--streams", "digits", "--tasks", "2", "--seeds", "1", "--device", "cpu", "--slots", "1")
    asked = ("reproduce", "variants", *small, "--set", "run.batch_size=100", "--out", "o")
    finished = command(*asked)
    assert finished.code == 0, finished.err
    names = [row.split()[1] for row in finished.out.splitlines()[2:]]
    assert names == ["scale", *(reference.rpartition(":")[2] for reference in SCALE_VARIANTS)]
    recorded = {results.read(path).learner for path in Path("o/variants").rglob("result.json")}
    assert recorded == {"scale", *SCALE_VARIANTS}
    assert "0 runs to do" in command(*asked).err
    (section,) = sections(collect(Path("o")))
    assert [row.label.split()[0] for row in section.rows] == ["scale", *sorted(names[1:])]
