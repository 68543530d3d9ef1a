"""SCALE's settings: the paper's values, their ranges, and what each switches off."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from scale_cl.errors import ConfigError
from scale_cl.learners import Scale, ScaleConfig, registry
from scale_cl.settings import build, explain
from scale_cl.streams import TaskInfo
from tests.learners.scale_reference import Draws
from tests.learners.side_by_side import parts_of, recorded
from tests.learners.tiny import COLOUR, DOMAIN, SPLIT, batch, teach


def drawn_in_a_second_task(learner: Scale) -> Draws:
    teach(learner, tasks=1)
    learner.begin_task(TaskInfo("second", 3))
    with recorded(learner) as draws:
        learner.observe(*batch(learner.spec, 4))
    return draws


def test_the_defaults_are_the_papers() -> None:
    c = ScaleConfig()
    assert (c.inner_lr, c.outer_lr, c.adversarial_lr) == (0.01, 0.1, 0.001)
    assert (c.lambda1, c.lambda2, c.lambda3) == (1, 1, 0.03)
    assert (c.inner_steps, c.outer_steps, c.discriminator_steps) == (1, 1, 1)
    assert (c.memory, c.replay) == (50, 64)
    assert c.adversary
    assert c.derpp
    assert c.generator
    assert (c.ce, c.adversarial, c.film, c.forward, c.discriminator_on) == (
        "batch",
        "minus",
        "branches",
        "joint",
        "common",
    )
    assert not c.refresh_logits
    assert not c.second_order
    assert (c.weight_average, c.standardise, c.augment) == (0, False, "none")


def test_of_which_samples_are_kept_the_paper_says_nothing() -> None:
    assert ScaleConfig().memory_policy == "reservoir"


def test_batch_norm_of_which_the_paper_says_nothing_is_measured_on_the_memory() -> None:
    c = ScaleConfig()
    assert (c.norm_momentum, c.norm_on_memory) == (0.1, True)


@pytest.mark.parametrize("stream", ["pmnist", "digits"])
def test_the_permuted_streams_have_rates_of_their_own(stream: str) -> None:
    c = build(ScaleConfig, registry.preset_settings("scale", stream))
    assert (c.inner_lr, c.outer_lr, c.adversarial_lr) == (0.1, 0.01, 0.001)


@pytest.mark.parametrize("stream", ["scifar10", "scifar100", "sminiimagenet"])
def test_the_image_streams_have_the_defaults(stream: str) -> None:
    assert build(ScaleConfig, registry.preset_settings("scale", stream)) == ScaleConfig()


@pytest.mark.parametrize(
    "values",
    [
        {"inner_lr": 0.0},
        {"outer_lr": -1.0},
        {"adversarial_lr": float("nan")},
        {"lambda1": -0.1},
        {"inner_steps": 0},
        {"outer_steps": 1.5},
        {"discriminator_steps": 0},
        {"memory": 0},
        {"replay": 0},
        {"memory_policy": "stack"},
        {"ce": "both"},
        {"adversarial": "reverse"},
        {"film": "product"},
        {"forward": "twice"},
        {"discriminator_on": "logits"},
        {"weight_average": 1.0},
        {"augment": "mixup"},
        {"task_embedding": -1},
        {"generator": 1},
    ],
    ids=lambda values: next(iter(values)),
)
def test_a_value_out_of_range_is_refused_by_name(values: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(values))):
        ScaleConfig(**values)


def test_every_setting_says_in_a_line_what_it_is() -> None:
    for name in registry.names():
        for entry in explain(registry.config_class(name)()):
            assert entry.doc, entry.name
            assert "\n" not in entry.doc


def test_ablation_a_has_no_discriminator_and_draws_no_noise() -> None:
    learner = Scale(SPLIT, ScaleConfig(adversary=False))
    draws = drawn_in_a_second_task(learner)
    assert not learner.discriminator
    assert (len(draws.replay), len(draws.noise)) == (2, 0)
    assert int(learner.memory.logits["task"].width.sum()) == 0


def test_ablation_b_draws_no_replay() -> None:
    draws = drawn_in_a_second_task(Scale(SPLIT, ScaleConfig(derpp=False)))
    assert (len(draws.replay), len(draws.noise)) == (0, 1)


def test_ablation_c_has_no_generator_and_features_that_are_not_doubled() -> None:
    learner = teach(Scale(SPLIT, ScaleConfig(generator=False)))
    assert isinstance(learner, Scale)
    assert learner.net.generator is None
    common, features, _ = learner.engine.evaluated(batch(SPLIT, 3)[0], torch.zeros(3, dtype=torch.int64))
    assert torch.equal(common, features)


@pytest.mark.parametrize(("n_in", "n_out", "n_ad"), [(1, 1, 1), (2, 1, 1), (1, 3, 1), (2, 2, 3)])
def test_each_step_has_a_fresh_draw(n_in: int, n_out: int, n_ad: int) -> None:
    config = ScaleConfig(memory=20, replay=9, inner_steps=n_in, outer_steps=n_out, discriminator_steps=n_ad)
    learner = Scale(SPLIT, config)
    teach(learner, steps=5)
    learner.begin_task(TaskInfo("next", 3))
    with recorded(learner) as draws:
        learner.observe(*batch(SPLIT, 4))
    assert len(draws.replay) == n_out * (n_in + 1)
    assert len({tuple(places) for places in draws.replay}) == len(draws.replay)
    assert [tuple(noise.shape) for noise in draws.noise] == [(4 + 9, 256)] * n_ad
    assert len({float(noise.sum()) for noise in draws.noise}) == n_ad


def test_the_first_task_has_no_replay_the_second_all_stored_the_third_as_many_as_replay_says() -> None:
    learner = Scale(DOMAIN, ScaleConfig())
    sizes = []
    for task in range(3):
        learner.begin_task(TaskInfo(str(task), 3))
        with recorded(learner) as draws:
            for seed in range(6):
                learner.observe(*batch(DOMAIN, 10, seed=seed))
        sizes.append({len(places) for places in draws.replay})
    assert sizes == [set(), {50}, {64}]


@pytest.mark.parametrize(("spec", "width"), [(SPLIT, 16), (COLOUR, 64)], ids=["mlp", "resnet"])
def test_the_task_embedding_is_as_wide_as_the_network_has_it_or_as_asked(spec: Any, width: int) -> None:
    for asked, expected in ((0, width), (5, 5)):
        learner = Scale(spec, ScaleConfig(task_embedding=asked))
        assert learner.net.generator is not None
        assert learner.net.generator.embedding.data.shape[1] == expected


def test_the_discriminator_leaves_the_trunk_alone_and_the_trunk_the_discriminator() -> None:
    """With weights of zero for its side of the game, neither part notices the other."""
    alone, together = (Scale(SPLIT, ScaleConfig(adversary=on, lambda3=0.0)) for on in (False, True))
    for learner in (alone, together):
        learner.begin_task(TaskInfo("a", 3))
    source, target = parts_of(together), dict(alone.net.named_parameters())
    for name, p in together.net.named_parameters():
        with torch.no_grad():
            target[name].copy_(p)
    learner_batch = batch(SPLIT, 6)
    alone.observe(*learner_batch)
    together.observe(*learner_batch)
    one, other = parts_of(alone), parts_of(together)
    assert source.discriminator.keys() == other.discriminator.keys()
    for a, b in ((one.base, other.base), (one.generator, other.generator)):
        for name in a:
            torch.testing.assert_close(a[name], b[name])


@pytest.mark.parametrize("augment", ["flip", "crop-flip"])
def test_augmentation_changes_training_images_and_neither_memory_nor_predictions(augment: Any) -> None:
    plain, augmented = (Scale(COLOUR, ScaleConfig(augment=how)) for how in ("none", augment))
    x, y = batch(COLOUR, 6)
    for learner in (plain, augmented):
        learner.begin_task(TaskInfo("a", 3))
    assert torch.equal(plain.predict(x, "a"), augmented.predict(x, "a"))
    for learner in (plain, augmented):
        learner.observe(x, y)
    assert not torch.equal(plain.predict(x, "a"), augmented.predict(x, "a"))
    assert torch.equal(augmented.memory.x[:6], x)
