"""MAS: Memory Aware Synapses. A weight is as important as the outputs are sensitive to it.

Aljundi et al., "Memory Aware Synapses: Learning what (not) to forget", 2018. SCALE's paper says of it: "Memory Aware
Synapses (MAS) adopts unsupervised and online criteria". No label is needed. As each task is seen once, the sensitivity
is measured on samples that are kept until the task ends and dropped then.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from scale_cl.engine import Batch, Engine
from scale_cl.learners.weight_importance import ImportanceLearner, SampledImportanceConfig
from scale_cl.losses import NO_CLASS
from scale_cl.settings import setting


@dataclass(frozen=True)
class MasConfig(SampledImportanceConfig):
    """Settings of MAS."""

    penalty: float = setting(0.1, "weight of the penalty on important weights that move: lambda", low=0)
    decay: float = setting(1.0, "share of the importance so far that stays when a task ends", low=0, high=1)


class Mas(ImportanceLearner):
    """CE(batch) + lambda * sum of Omega (theta - theta*)^2, with Omega the mean absolute gradient of |f(x)|^2."""

    config_class = MasConfig
    config: MasConfig

    def build(self, engine: Engine) -> None:
        """Declare, besides, samples of the open task."""
        super().build(engine)
        self.memory = engine.memory("memory", self.config.memory, policy="reservoir", budget="total")

    def update(self, batch: Batch) -> None:
        """One step of SGD; samples are kept to measure Omega on."""
        super().update(batch)
        self.memory.write(batch)

    @torch.no_grad()
    def task_ended(self, task: int) -> None:
        """Importance: Omega <- Omega + mean over samples of |d |f(x)|^2 / d theta|; the anchor is the latest theta."""
        samples = self.samples_of(self.memory, task)
        if len(samples) > 0:
            torch._foreach_mul_(self.importance.tensors, self.config.decay)
            torch._foreach_add_(self.importance.tensors, self.mean_over_samples(samples, squared_length, torch.abs))
            self.anchor.set(self.held.tensors)
        self.memory.clear()


def squared_length(logits: Tensor, _labels: Tensor) -> Tensor:
    """|f(x)|^2 of logits [1, C]; those that a head does not have are left out."""
    return torch.where(logits == NO_CLASS, torch.zeros_like(logits), logits).square().sum()
