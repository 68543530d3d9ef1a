"""SI: Synaptic Intelligence. A weight is as important as what its way through training took off the loss.

Zenke, Poole and Ganguli, "Continual Learning Through Synaptic Intelligence", 2017. SCALE's paper says of it: "Synaptic
Intelligence (SI) utilizes accumulated gradients". It measures while it trains, so that one pass is enough.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from scale_cl.engine import Engine
from scale_cl.learners.weight_importance import ImportanceConfig, ImportanceLearner
from scale_cl.settings import setting


@dataclass(frozen=True)
class SiConfig(ImportanceConfig):
    """Settings of SI."""

    lr: float = setting(0.01, "learning rate", above=0)
    penalty: float = setting(0.1, "weight of the penalty on important weights that move: c", low=0)
    damping: float = setting(1e-3, "keeps the importance of a weight that hardly moved finite: xi", above=0)


class Si(ImportanceLearner):
    """CE(batch) + c * sum of Omega (theta - theta_start)^2, with Omega from the path integral of the gradient."""

    config_class = SiConfig
    config: SiConfig

    def build(self, engine: Engine) -> None:
        """Declare, besides, the path integral of each weight over the open task."""
        super().build(engine)
        self.path = engine.like("path", self.held, changes="step")

    def after_gradient(self, gradient: list[Tensor], direction: list[Tensor]) -> None:
        """Path integral: w <- w - g * d theta, with g of the cross-entropy alone and d theta of the whole step."""
        torch._foreach_addcmul_(self.path.tensors, gradient, direction, value=self.config.lr)

    @torch.no_grad()
    def task_began(self, task: int) -> None:
        """The way of each weight through the task starts here; new outputs of a shared head too."""
        self.anchor.set(self.held.tensors)

    @torch.no_grad()
    def task_ended(self, task: int) -> None:
        """Importance: Omega <- Omega + relu(w / ((theta - theta_start)^2 + xi))."""
        moved = torch._foreach_sub(self.held.tensors, self.anchor.tensors)
        for omega, w, way in zip(self.importance.tensors, self.path.tensors, moved, strict=True):
            omega += torch.relu(w / (way.square() + self.config.damping))
        torch._foreach_zero_(self.path.tensors)
        self.anchor.set(self.held.tensors)
