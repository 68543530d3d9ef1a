"""Shortened gradients: the step has at most the length asked for, and goes the same way."""

import pytest
import torch
from torch import Tensor

from scale_cl.learners import Hal, HalConfig, registry
from scale_cl.learners.scale import Scale, ScaleConfig
from scale_cl.streams import InputSpec, TaskInfo

SPEC = InputSpec(shape=(6,), pixel_max=None, scenario="domain")


def moved(clip: float, *, second_order: bool = False) -> tuple[Tensor, Tensor]:
    """How far one step moves the base parameters, and the parameter generator."""
    config = ScaleConfig(inner_lr=1.0, outer_lr=1.0, adversary=False, clip=clip, second_order=second_order)
    learner = Scale(SPEC, config, seed=0)
    learner.begin_task(TaskInfo("a", 3))
    parts = [learner.net.base_parameters(), learner.net.generator_parameters()]
    before = [{name: p.detach().clone() for name, p in part.items()} for part in parts]
    generator = torch.Generator().manual_seed(0)
    learner.observe(torch.randn(10, 6, generator=generator), torch.arange(10) % 3)
    base, outer = (
        torch.cat([(part[name].detach() - was[name]).flatten() for name in part])
        for part, was in zip(parts, before, strict=True)
    )
    return base, outer


@pytest.mark.parametrize("second_order", [False, True])
def test_a_long_step_is_shortened_and_keeps_its_direction(second_order: bool) -> None:
    free, _ = moved(0.0, second_order=second_order)
    assert float(free.norm()) > 0.2
    short, outer = moved(0.1, second_order=second_order)
    assert float(short.norm()) == pytest.approx(0.1, rel=1e-4)
    assert float(outer.norm()) <= 0.1 * (1 + 1e-4)
    assert float(torch.cosine_similarity(free, short, dim=0)) == pytest.approx(1.0, abs=1e-5)


def test_a_short_step_stays_as_it_is() -> None:
    for ours, theirs in zip(moved(1e6), moved(0.0), strict=True):
        assert torch.allclose(ours, theirs, atol=1e-6)


def test_a_step_of_hal_is_shortened_with_its_distance_on_anchors() -> None:
    def step(clip: float) -> Tensor:
        learner = Hal(SPEC, HalConfig(lr=1.0, clip=clip, forgetting_steps=1, anchor_steps=1), seed=0)
        generator, steps = torch.Generator().manual_seed(0), []
        for task in ("a", "b"):
            learner.begin_task(TaskInfo(task, 3))
            before = torch.cat([p.detach().flatten() for p in learner.net.base_parameters().values()])
            learner.observe(torch.randn(10, 6, generator=generator), torch.arange(10) % 3)
            steps.append(torch.cat([p.detach().flatten() for p in learner.net.base_parameters().values()]) - before)
            learner.end_task()
        return steps[-1]

    assert float(step(0.0).norm()) > 0.2
    assert float(step(0.1).norm()) == pytest.approx(0.1, rel=1e-4)


def test_own_images_have_it_and_the_papers_streams_do_not() -> None:
    for name in ("scale", "scale-ema"):
        assert registry.preset_settings(name, "folder:somewhere")["clip"] == 5.0
        assert registry.preset_settings(name, "csv:list.csv")["clip"] == 5.0
        assert all("clip" not in registry.preset_settings(name, stream) for stream in ("scifar100", "pmnist", "digits"))
    assert registry.preset_settings("er", "folder:somewhere") == {}
