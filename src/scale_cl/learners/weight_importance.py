"""What EWC, SI and MAS share: an importance and an anchor per weight, and a penalty on important weights that move.

The loss of each is `CE(batch) + weight * sum of importance * (theta - anchor)^2`; they differ in how importance is
measured. Trunk and shared head are held. A task's own head is not: nothing trains it once the task has ended. Running
statistics of batch norm are no weights and are not held.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from scale_cl.engine import Batch, Engine, LearnerConfig, ReplayMemory, Samples
from scale_cl.errors import ConfigError
from scale_cl.learners.learner import Learner, StepSize, Traits
from scale_cl.losses import cross_entropy
from scale_cl.memory import Budget
from scale_cl.settings import setting

AT_ONCE = 8  # samples whose own gradients are in memory together


@dataclass(frozen=True)
class ImportanceConfig(LearnerConfig):
    """Settings of every learner that holds important weights."""

    lr: float = setting(0.03, "learning rate", above=0)
    penalty: float = setting(1.0, "weight of the penalty on important weights that move", low=0)
    implicit: bool = setting(
        True, "take the penalty's gradient at the end of the step, stable at any weight; off: at its start (the papers)"
    )


@dataclass(frozen=True)
class SampledImportanceConfig(ImportanceConfig):
    """Settings of learners that measure importance on samples of the task when it ends."""

    memory: int = setting(100, "samples of the open task that importance is measured on; dropped when it ends", low=1)
    memory_budget: ClassVar[Budget] = "total"


class ImportanceLearner(Learner):
    """Descends the cross-entropy and a quadratic penalty."""

    config_class = ImportanceConfig
    needs_boundaries = True
    config: Any
    traits = Traits(history_in_training=True)

    def build(self, engine: Engine) -> None:
        """Declare the network, and importance and anchor of the weights that are held."""
        self.network = engine.network()
        self.held = engine.weights(self.held_parameters)
        if not self.held.tensors:
            raise ConfigError(f"{self.name} has no weight to hold, as the backbone trains none; take finetune")
        self.importance = engine.like("importance", self.held, changes="task")
        self.anchor = engine.like("anchor", self.held, changes="task")

    def held_parameters(self) -> Mapping[str, Tensor]:
        """Trunk, and the head if all tasks share it."""
        base, heads = self.network.base.named, self.net.heads
        return {name: p for name, p in base.items() if heads.shared or not name.startswith("heads.")}

    def update(self, batch: Batch) -> None:
        """One step of SGD on the cross-entropy of the batch and the penalty."""
        samples = self.engine.samples(batch)
        ce = cross_entropy(self.network(samples).logits, samples.y)
        gradient = self.network.base.gradient(ce)
        value, pull = self.penalty()
        self.log(ce=ce, penalty=value, loss=ce + value)
        with torch.no_grad():
            held = self.of_held(gradient)
            direction = self.pulled(held, pull)
            self.after_gradient(held, direction)
            torch._foreach_copy_(held, direction)
        self.network.base.move(gradient, self.config.lr)

    def after_gradient(self, gradient: list[Tensor], direction: list[Tensor]) -> None:
        """What a method notes of a step: the gradient of the cross-entropy, and the way that the weights will go."""

    def pulled(self, gradient: list[Tensor], pull: list[Tensor]) -> list[Tensor]:
        """The direction of a step, from the gradients of cross-entropy and penalty.

        Implicit: theta' = theta - lr (g + dP/dtheta (theta')), which divides the direction by 1 + lr d2P/dtheta2.
        """
        direction = torch._foreach_add(gradient, pull)
        if self.config.implicit:
            stiffness = torch._foreach_mul(self.importance.tensors, 2 * self.penalty_weight() * self.config.lr)
            torch._foreach_add_(stiffness, 1.0)
            torch._foreach_div_(direction, stiffness)
        return list(direction)

    def penalty_weight(self) -> float:
        """What the sum over all weights is multiplied by."""
        return float(self.config.penalty)

    @torch.no_grad()
    def penalty(self) -> tuple[Tensor, list[Tensor]]:
        """The weighted sum of importance * (theta - anchor)^2, and its gradient."""
        weight = self.penalty_weight()
        way = torch._foreach_sub(self.held.tensors, self.anchor.tensors)
        pull = torch._foreach_mul(way, self.importance.tensors)
        terms = torch._foreach_norm(torch._foreach_mul(pull, way), 1)  # no term is negative: the sum of each tensor
        torch._foreach_mul_(pull, 2 * weight)
        return weight * torch.stack(terms).sum(), list(pull)

    def of_held(self, of_base: list[Tensor]) -> list[Tensor]:
        """Of tensors that belong to the base weights in order, those of the weights that are held."""
        return [t for name, t in zip(self.network.base.named, of_base, strict=True) if name in self.held.named]

    @torch.no_grad()
    def mean_over_samples(
        self, samples: Samples, loss: Callable[[Tensor, Tensor], Tensor], size: Callable[[Tensor], Tensor]
    ) -> list[Tensor]:
        """Mean over samples of the `size` (elementwise) of the gradient of each sample's loss, in evaluation mode."""
        total = [torch.zeros_like(p) for p in self.held.tensors]
        for first in range(0, len(samples), AT_ONCE):
            some = self.network.sample_gradients(samples[first : first + AT_ONCE], loss)
            torch._foreach_add_(total, [size(g).sum(0) for g in self.of_held(some)])
        torch._foreach_div_(total, len(samples))
        return total

    def samples_of(self, memory: ReplayMemory, task: int) -> Samples:
        """The stored samples of a task, not augmented."""
        rows = memory.rows_of(task)
        return Samples(self.net.inputs(memory.x[rows]), memory.y[rows], memory.task[rows], (len(rows),))

    @classmethod
    def step_size(cls, config: Any, batch: int, stored: int, tasks: int) -> StepSize:
        """The batch; a gradient and four copies for the penalty, or at task end gradients of samples and their sums."""
        return StepSize(batch, copies=2 * AT_ONCE + 2 if hasattr(config, "memory") else 5)
