"""The size of a state: known to the byte, and growing by what a task leaves behind and nothing else."""

from __future__ import annotations

import pytest
import torch

from scale_cl.bench.growth import StateBytes, expected_growth, state_bytes
from scale_cl.learners import registry
from scale_cl.settings import build
from scale_cl.streams import InputSpec, TaskInfo

SPECS = {
    "split": InputSpec((1, 4, 4), 255.0, "task"),
    "domain": InputSpec((1, 4, 4), 255.0, "domain"),
    "features": InputSpec((6,), None, "task"),
    "colour": InputSpec((3, 8, 8), 255.0, "task"),
}


def batch(spec: InputSpec, n: int, classes: int) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(0)
    shape = (n, *spec.shape)
    x = torch.rand(shape, generator=g) if spec.pixel_max is None else torch.randint(0, 256, shape, generator=g).byte()
    return x, torch.randint(0, classes, (n,), generator=g)


@pytest.mark.parametrize("name", ["scale", "scale-ema", "er", "mir", "mer", "agem", "gem", "finetune"])
@pytest.mark.parametrize("kind", SPECS)
def test_a_task_adds_samples_logits_a_head_an_embedding_row_and_a_discriminator_row(name: str, kind: str) -> None:
    spec, classes = SPECS[kind], 3
    values = {"weight_average": 0.9} if name == "scale-ema" else {}
    has_memory = name != "finetune"
    config = build(registry.config_class(name), values | ({"memory": 4} if has_memory else {}))
    learner = registry.make(name, spec, config)
    before = StateBytes()
    for task in range(4):
        learner.begin_task(TaskInfo(f"task {task}", classes))
        learner.observe(*batch(spec, 5, classes))
        learner.end_task()
        now = state_bytes(learner)
        if task:
            assert now - before == expected_growth(learner, task, classes)
        before = now


def test_the_bytes_are_those_of_the_saved_tensors() -> None:
    learner = registry.make("scale", SPECS["split"])
    learner.begin_task(TaskInfo("a", 2))
    learner.observe(*batch(SPECS["split"], 5, 2))
    tensors = learner.state_dict()["tensors"].values()
    assert state_bytes(learner).total == sum(t.numel() * t.element_size() for t in tensors)
