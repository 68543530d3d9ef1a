"""What the engine is told: the settings that all learners share, and how the arithmetic is done."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypedDict

import torch
from torch import Tensor

from scale_cl.engine.divergence import OnDivergence
from scale_cl.errors import ConfigError
from scale_cl.memory import Budget, PolicyName
from scale_cl.nets.custom_backbone import BackboneLike, check_name
from scale_cl.nets.inputs import Augmentation
from scale_cl.settings import Settings, setting
from scale_cl.streams import InputSpec

StepStats = dict[str, Tensor]
"""Loss terms of a step as device tensors; the next step may overwrite them."""

MEMORY_POLICY = (
    "which samples the slots keep: ring (the last), class-ring (the last of each class), reservoir (a uniform sample), "
    "balanced (a uniform sample of each class, as many of each), herding (a uniform sample, ranked when a task ends)"
)
NORM_ON_MEMORY = "at task end, recompute batch-norm statistics on the stored samples with the current weights"


class State(TypedDict):
    """A whole learner: tensors by name, and plain values that fit into JSON."""

    tensors: dict[str, Tensor]
    meta: dict[str, Any]


def tensors_of(name: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of a state that belong to what was declared as `name`, by their names in it."""
    return {key.removeprefix(f"{name}."): t for key, t in tensors.items() if key.startswith(f"{name}.")}


@dataclass(frozen=True)
class Compute:
    """How the arithmetic is done: none of it is part of a method."""

    precision: Literal["fp32", "tf32", "bf16"] = "tf32"
    channels_last: bool = True
    direct_convolutions: bool = True
    capture: bool = True
    on_divergence: OnDivergence = "stop"


@dataclass(frozen=True)
class LearnerConfig(Settings):
    """Settings of every learner."""

    backbone: str = setting(
        "auto",
        "network: mlp, resnet18 (reduced), auto (resnet18 for images of three channels), mlp-128-128 (other widths), "
        "resnet18-relu (ReLU after the sums), resnet18-relu-nopool (without max-pool too), module:function, "
        "file.py:function",
    )
    weight_average: float = setting(
        0.0, "decay of the average of the base parameters used for prediction and stored logits; 0: off", low=0, below=1
    )
    standardise: bool = setting(False, "standardise inputs by the running mean and deviation of all samples so far")
    augment: Augmentation = setting("none", "random changes of training images: none, flip, crop-flip")
    norm_momentum: float = setting(
        0.1, "share of a batch in the running statistics of the resnet18's batch norm", above=0, high=1
    )
    entropy: float = setting(
        0.0, "weight of the mean entropy of the outputs, which every loss is lowered by (CPR); 0: off", low=0
    )
    average_warmup: bool = setting(
        False,
        "let the weight average's decay rise to its value: at most (1 + n) / (10 + n) after n updates of the weights",
    )
    consistency: float = setting(
        0.0, "weight of the squared distance of the outputs to those by the weight average; 0: off", low=0
    )
    average_flips: bool = setting(False, "predict by the mean of the scores of an image and of its mirror image")
    trains_outputs: ClassVar[bool] = True  # whether the method descends a loss of outputs of classes

    def __post_init__(self) -> None:
        """Check the backbone's name, and that each extra has what it works on: outputs, a weight average."""
        super().__post_init__()
        check_name(self.backbone)
        for name in ("entropy", "consistency"):
            if getattr(self, name) and not self.trains_outputs:
                raise ConfigError(f"learner.{name} must be 0 for a learner that trains no outputs of classes")
        for name in ("average_warmup", "consistency"):
            if getattr(self, name) and not self.weight_average:
                raise ConfigError(f"learner.{name} needs a weight average; set learner.weight_average, to 0.99 say")


@dataclass(frozen=True)
class Setup:
    """What an engine is made with, beside the method."""

    spec: InputSpec
    config: LearnerConfig
    seed: int
    device: torch.device
    compute: Compute
    backbone: BackboneLike | None  # in place of the one that the config names
    task_specific: bool  # whether the method has parameters of single tasks, so that outputs depend on the task
    own_scores: bool  # whether the method's `scores` are not simply the logits of the network
    derives: bool  # whether the method's `derived` gives anything


@dataclass(frozen=True)
class MemoryConfig(LearnerConfig):
    """Settings of every learner with a memory."""

    memory: int = setting(50, "memory slots per task, per class or in total (memory_budget)", low=1)
    memory_budget: Budget = setting("task", "what the memory slots are counted by: task, class or total")
    memory_policy: PolicyName = setting("ring", MEMORY_POLICY)
    norm_on_memory: bool = setting(False, NORM_ON_MEMORY)


@dataclass(frozen=True)
class ReplayConfig(MemoryConfig):
    """Settings of every learner that replays draws from its memory."""

    replay: int = setting(10, "samples replayed with each batch, at most as many as are stored", low=1)
