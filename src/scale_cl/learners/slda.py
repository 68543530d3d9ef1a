"""SLDA: streaming linear discriminant analysis on the features of a frozen backbone.

Hayes and Kanan, "Lifelong Machine Learning with Deep Streaming Linear Discriminant Analysis", 2020. A running mean per
class and one scatter matrix for all; no sample is stored and nothing is forgotten. The backbone is meant to be
pretrained (`backbone`); one of ours is random. The inverse is updated with every sample (Sherman and Morrison), so the
ridge is added once to the scatter matrix, while the authors mix a fixed share of the identity into the covariance.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from scale_cl.engine import Batch, Engine, LearnerConfig
from scale_cl.learners.learner import Learner, StepSize, Traits
from scale_cl.settings import setting

_NEVER = -1e9  # bias of a class without a sample


@dataclass(frozen=True)
class SldaConfig(LearnerConfig):
    """Settings of SLDA."""

    ridge: float = setting(1.0, "multiple of the identity that the scatter matrix begins with", above=0)
    trains_outputs: ClassVar[bool] = False


class Slda(Learner):
    """The class whose Gaussian, with the common covariance, gives a sample the highest density."""

    config_class = SldaConfig
    traits = Traits(history_in_training=True)
    config: SldaConfig

    def build(self, engine: Engine) -> None:
        """Declare the network, of which only the heads change, and statistics of its features."""
        self.network = engine.network()
        heads = self.network.module.heads
        self.heads = engine.weights(lambda: {"weight": heads.weight.data, "bias": heads.bias.data})
        self.seen = engine.like("seen", self.heads, changes="step")  # mean and number of samples of each class
        inverse = torch.zeros(heads.width, heads.width, dtype=torch.float64).fill_diagonal_(1 / self.config.ridge)
        self.inverse = engine.tensor("inverse", inverse, changes="step")  # of the scatter matrix

    @torch.no_grad()
    def update(self, batch: Batch) -> None:
        """Take each sample of the batch into mean and scatter, one after another; then set the heads."""
        z = self.engine.evaluated(batch.x, batch.task).features.double()
        mean, count = (t.flatten(0, 1) for t in self.seen.tensors)  # [heads * classes, ...]
        first = 0 if self.net.heads.shared else batch.task * self.seen.tensors[1].shape[1]
        self.log(distance=(z - mean[first + batch.y]).square().mean())
        for one, y in zip(z, (first + batch.y).split(1), strict=True):
            self.take(one, y, mean, count)
        self.set_heads()

    def take(self, z: Tensor, y: Tensor, mean: Tensor, count: Tensor) -> None:
        """One sample z [width] of class y [1]: S grows by n / (n + 1) (z - mu)(z - mu)', its inverse accordingly."""
        mu, n = mean.index_select(0, y)[0].double(), count.index_select(0, y).double()
        away = z - mu
        scaled = away * (n / (n + 1)).sqrt()
        along = self.inverse @ scaled
        self.inverse.sub_(torch.outer(along, along) / (1 + scaled @ along))
        mean.index_copy_(0, y, (mu + away / (n + 1)).unsqueeze(0).to(mean.dtype))
        count.index_copy_(0, y, (n + 1).to(count.dtype))

    def set_heads(self) -> None:
        """Log densities up to a constant, mu' P z - mu' P mu / 2 with the precision matrix P, are linear in z."""
        mean, count = self.seen.tensors
        projected = mean.double() @ self.inverse * count.sum(dtype=torch.float64)
        bias = torch.where(count > 0, -0.5 * (projected * mean).sum(-1), _NEVER)
        self.heads.set([projected.to(mean.dtype), bias.to(mean.dtype)])

    @classmethod
    def step_size(cls, config: Any, batch: int, stored: int, tasks: int) -> StepSize:
        """A forward without gradients; the inverse is float64, and copies of it and of the heads come and go."""
        return StepSize(batch, 1, copies=9)
