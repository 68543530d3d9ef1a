"""The learners by name, and the paper's settings of each for each stream."""

from __future__ import annotations

import difflib
import importlib
from dataclasses import dataclass, field

import torch

from scale_cl.errors import ConfigError
from scale_cl.learners.base import Compute, Learner, LearnerConfig
from scale_cl.nets.custom_backbone import BackboneLike
from scale_cl.streams import InputSpec

USER_IMAGES = ("folder:", "csv:")  # how streams of the user's own images are named
USER_FEATURES = "features:"  # the user's own feature vectors or grey images, in an estimator
_PERMUTED = ("pmnist", "digits", USER_FEATURES)


@dataclass(frozen=True)
class Entry:
    """One learner: where it lives, what it is, and which settings differ from its defaults on which streams."""

    module: str
    cls: str
    line: str
    everywhere: dict[str, object] = field(default_factory=dict)
    permuted: dict[str, object] = field(default_factory=dict)  # pmnist and digits
    streams: dict[str, dict[str, object]] = field(default_factory=dict)
    own: dict[str, object] = field(default_factory=dict)  # images of the user's own: of any size, perhaps few

    def learner(self) -> type[Learner]:
        """Its class."""
        found: type[Learner] = getattr(importlib.import_module(f"scale_cl.learners.{self.module}"), self.cls)
        return found


_SCALE_PERMUTED: dict[str, object] = {"inner_lr": 0.1, "outer_lr": 0.01, "norm_on_memory": False}
_SCALE_OWN: dict[str, object] = {"clip": 5.0}  # below 32 x 32 the paper's rates can diverge
# The paper's rate for permuted streams, 0.1, is the best for digits, but lets SCALE diverge on split MNIST.
_SCALE_STREAMS: dict[str, dict[str, object]] = {USER_FEATURES: {"inner_lr": 0.03}}

LEARNERS = {
    "scale": Entry(
        "scale",
        "Scale",
        "SCALE: FiLM by a parameter generator, one discriminator, DER++",
        permuted=_SCALE_PERMUTED,
        streams=_SCALE_STREAMS,
        own=_SCALE_OWN,
    ),
    "scale-ema": Entry(
        "scale",
        "Scale",
        "SCALE that predicts by an exponential moving average of its base parameters",
        everywhere={"weight_average": 0.99},
        permuted=_SCALE_PERMUTED | {"weight_average": 0.95},
        streams=_SCALE_STREAMS,
        own=_SCALE_OWN,
    ),
    "er": Entry("er", "Er", "ER-Ring: SGD on the batch and on samples replayed from a ring a task"),
    "mir": Entry("mir", "Mir", "MIR: ER that replays the samples which the coming step would hurt most"),
    "mer": Entry("mer", "Mer", "MER: ER in sequential steps, then Reptile interpolation", permuted={"lr": 0.03}),
    "der": Entry("der", "Der", "DER: ER that keeps the logits which samples had when they were stored"),
    "derpp": Entry("der", "Derpp", "DER++: DER, and cross-entropy on a second draw"),
    "agem": Entry("agem", "Agem", "A-GEM: the batch's gradient, projected so that a replay batch does not suffer"),
    "gem": Entry(
        "gem",
        "Gem",
        "GEM: the batch's gradient, projected so that no finished task's memory suffers",
        streams={"sminiimagenet": {"lr": 0.05}},
    ),
    "ctn": Entry(
        "ctn",
        "Ctn",
        "CTN: FiLM by a controller that a semantic memory trains, and distillation",
        permuted={"inner_lr": 0.03, "outer_lr": 0.1},
    ),
    "acl": Entry(
        "acl",
        "Acl",
        "ACL: an adversarial shared module and a private module a task, no memory",
        permuted={"lr": 0.001, "discriminator_lr": 0.0001},
        streams={"sminiimagenet": {"lr": 0.003, "adversarial": 0.005}},
    ),
    "joint": Entry("joint", "Joint", "plain SGD on all tasks shuffled together: the upper bound", permuted={"lr": 0.1}),
    "finetune": Entry("finetune", "Finetune", "plain SGD on the batch, no memory: the lower bound"),
}


def names() -> list[str]:
    """All learners."""
    return list(LEARNERS)


def entry(name: str) -> Entry:
    """The learner called `name`."""
    if name not in LEARNERS:
        close = difflib.get_close_matches(name.lower(), LEARNERS, n=1)
        hint = f"did you mean {close[0]!r}? " if close else ""
        raise ConfigError(f"unknown learner {name!r}; {hint}learners are {', '.join(LEARNERS)}")
    return LEARNERS[name]


def describe(name: str) -> str:
    """What a learner is, in a line."""
    return entry(name).line


def config_class(name: str) -> type[LearnerConfig]:
    """Its settings."""
    return entry(name).learner().config_class


def paper_settings(name: str, stream: str) -> dict[str, object]:
    """The settings of `name` on `stream` that differ from the defaults of its config; own images have some too."""
    found = entry(name)
    settings = dict(found.everywhere)
    if stream in _PERMUTED:
        settings |= found.permuted
    if stream.startswith(USER_IMAGES):
        settings |= found.own
    return settings | found.streams.get(stream, {})


def make(
    name: str,
    spec: InputSpec,
    config: LearnerConfig | None = None,
    *,
    seed: int = 0,
    device: torch.device | str = "cpu",
    compute: Compute | None = None,
    backbone: BackboneLike | None = None,
) -> Learner:
    """A new learner called `name`; without a config, with the defaults of its class."""
    kind = entry(name).learner()
    learner = kind(spec, config, seed=seed, device=device, compute=compute, backbone=backbone)
    learner.name = name
    return learner
