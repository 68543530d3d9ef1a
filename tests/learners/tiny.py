"""Small problems on which learners are tried."""

from __future__ import annotations

from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from scale_cl.learners import Learner, registry
from scale_cl.streams import InputSpec, TaskInfo

DOMAIN = InputSpec((1, 5, 5), 255.0, "domain")
SPLIT = InputSpec((1, 5, 5), 255.0, "task")
VECTORS = InputSpec((6,), None, "task")
COLOUR = InputSpec((3, 17, 17), 255.0, "task")
SMALL_COLOUR = InputSpec((3, 9, 9), 255.0, "domain")


L = TypeVar("L", bound=Learner)
QUICK = {
    "width": 8,
    "projection": 8,
    "forgetting_steps": 1,
    "anchor_steps": 1,
    "passes": 2,
}  # small columns, anchors that are hardly optimised, and a memory that is seldom gone through


def quick(name: str) -> dict[str, int]:
    """Those settings of a learner that make its tests quick and leave what it does as it is."""
    fields = registry.config_class(name).__dataclass_fields__
    return {key: value for key, value in QUICK.items() if key in fields}


def new(name: str, spec: InputSpec = SPLIT, *, seed: int = 0, **values: Any) -> Learner:
    """A learner with its default settings, apart from the quick ones and `values`."""
    return registry.make(name, spec, registry.config_class(name)(**quick(name) | values), seed=seed)


def two_convolutions() -> nn.Module:
    """A backbone of 7 and 5 channels; the first convolution has a batch norm, the second a bias."""
    first = nn.Conv2d(3, 7, 3, stride=2, bias=False), nn.BatchNorm2d(7), nn.ReLU()
    return nn.Sequential(*first, nn.Conv2d(7, 5, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())


def maps_of_two_convolutions(own: dict[str, Tensor], x: Tensor) -> list[Tensor]:
    """What its channels are in training, before the ReLU, by these parameters of a network."""
    h = F.conv2d(x.double() / 255, own["backbone.module.0.weight"], stride=2)
    mean, variance = h.mean((0, 2, 3), keepdim=True), h.var((0, 2, 3), correction=0, keepdim=True)
    h = (h - mean) / (variance + 1e-5).sqrt()
    first = h * own["backbone.module.1.weight"].view(-1, 1, 1) + own["backbone.module.1.bias"].view(-1, 1, 1)
    return [first, F.conv2d(first.relu(), own["backbone.module.3.weight"], own["backbone.module.3.bias"])]


def is_mlp(name: str) -> bool:
    """Whether a learner has an MLP for images too, and refuses another network."""
    return registry.config_class(name)().backbone.startswith("mlp")


def batch(spec: InputSpec, n: int, classes: int = 3, *, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Random samples of the learner's kind."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(0, classes, (n,), generator=generator)
    if spec.pixel_max is None:
        return torch.randn(n, *spec.shape, generator=generator), y
    return torch.randint(0, 256, (n, *spec.shape), generator=generator, dtype=torch.uint8), y


def teach(learner: L, tasks: int = 3, steps: int = 2, *, n: int = 4, classes: int = 3, first: int = 0) -> L:
    """Some tasks of some random batches each."""
    for task in range(first, first + tasks):
        learner.begin_task(TaskInfo(f"task {task}", classes))
        for step in range(steps):
            learner.observe(*batch(learner.spec, n, classes, seed=100 * task + step))
        learner.end_task()
    return learner
