"""SLDA: streaming linear discriminant analysis on the features of a frozen backbone.

Hayes and Kanan, "Lifelong Machine Learning with Deep Streaming Linear Discriminant Analysis", 2020. A running mean per
class and one scatter matrix for all; no sample is stored and nothing is forgotten. The backbone is meant to be
pretrained (`backbone`); one of ours is random. The inverse is updated with every sample (Sherman and Morrison), so the
ridge is added once to the scatter matrix, while the authors mix a fixed share of the identity into the covariance.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from scale_cl.engine import Batch, Engine, LearnerConfig
from scale_cl.errors import ConfigError
from scale_cl.learners.learner import Learner, StepSize
from scale_cl.settings import setting


@dataclass(frozen=True)
class SldaConfig(LearnerConfig):
    """Settings of SLDA."""

    ridge: float = setting(1.0, "multiple of the identity that the scatter matrix begins with", above=0)
    max_classes: int = setting(1000, "classes that there is room for", low=1)


class Slda(Learner):
    """The class whose Gaussian, with the common covariance, gives a sample the highest density."""

    config_class = SldaConfig
    scenarios = ("domain", "class")
    config: SldaConfig

    def build(self, engine: Engine) -> None:
        """Declare the network, whose weights stay as they are, and statistics of its features in float64."""
        c, width = self.config, engine.backbone.feature_width
        self.network = engine.network()
        zeros, eye = (make(width, dtype=torch.float64) for make in (torch.zeros, torch.eye))
        self.mean = engine.tensor("mean", zeros.repeat(c.max_classes, 1), changes="step")
        self.count = engine.tensor("count", torch.zeros(c.max_classes, dtype=torch.float64), changes="step")
        self.inverse = engine.tensor("inverse", eye / c.ridge, changes="step")  # of the scatter matrix

    def task_began(self, task: int) -> None:
        """Refuse more classes than there is room for."""
        if self.engine.classes[task] > self.config.max_classes:
            raise ConfigError(f"there are {self.engine.classes[task]} classes; raise max_classes to at least that")

    @torch.no_grad()
    def update(self, batch: Batch) -> None:
        """Take each sample of the batch into mean and scatter, one after another."""
        z = self.engine.evaluated(batch.x, batch.task).features.double()
        for i in range(len(batch)):
            self.take(z[i], batch.y[i : i + 1])

    def take(self, z: Tensor, y: Tensor) -> None:
        """One sample z [width] of class y [1]: S grows by n / (n + 1) (z - mu)(z - mu)', its inverse accordingly."""
        mean, n = self.mean.index_select(0, y)[0], self.count.index_select(0, y)
        away = z - mean
        scaled = away * (n / (n + 1)).sqrt()
        along = self.inverse @ scaled
        self.inverse.sub_(torch.outer(along, along) / (1 + scaled @ along))
        self.mean.index_copy_(0, y, (mean + away / (n + 1)).unsqueeze(0))
        self.count.index_copy_(0, y, n + 1)

    def scores(self, x: Tensor, task: Tensor) -> Tensor:
        """Log densities up to a constant, mu' P z - mu' P mu / 2 with the precision matrix P."""
        z = self.engine.evaluated(x, task).features.double()
        classes = self.net.heads.bias.data.shape[1]
        mean, n = self.mean[:classes], self.count[:classes]
        projected = mean @ self.inverse * self.count.sum()
        scores = z @ projected.T - 0.5 * (projected * mean).sum(1)
        return torch.where(n > 0, scores, torch.full_like(scores, -torch.inf)).float()

    @classmethod
    def step_size(cls, config: Any, batch: int, stored: int, tasks: int) -> StepSize:
        """A forward without gradients."""
        return StepSize(batch, 1, copies=0)
