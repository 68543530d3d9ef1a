"""EWC, online EWC and EWC++: weights are as important as their Fisher information says.

Kirkpatrick et al., "Overcoming catastrophic forgetting in neural networks", 2017. SCALE's paper says of it: "Elastic
Weight Consolidation (EWC) makes use of the Fisher Importance Matrix (FIM)". As each task is seen once, F is measured on
samples that are kept until the task ends and dropped then. The modes:

* `separate`: a penalty per task. Their sum is, up to a constant, one penalty with the sum of all F as importance and
  the mean of all theta* weighted by F as anchor: no tensor is kept per task.
* `online` (Schwarz et al., "Progress & Compress", 2018; the paper: "online EWC (oEWC) puts forward an online version of
  EWC using Laplace approximation"): F decays, and the anchor is the latest theta.
* `running` (EWC++, Chaudhry et al., "Riemannian Walk", 2018): F is a moving average of squared gradients of batches,
  taken while training and scaled to [0, 1] when a task ends; the penalty has no factor 1/2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from scale_cl.engine import Batch, Engine, Samples
from scale_cl.learners.learner import StepSize
from scale_cl.learners.weight_importance import ImportanceLearner, SampledImportanceConfig
from scale_cl.losses import cross_entropy
from scale_cl.settings import setting


@dataclass(frozen=True)
class EwcConfig(SampledImportanceConfig):
    """Settings of EWC."""

    penalty: float = setting(10.0, "weight of the penalty on important weights that move: lambda", low=0)
    mode: Literal["separate", "online", "running"] = setting(
        "separate", "separate (a penalty per task), online (one penalty, decaying), running (EWC++)"
    )
    labels: Literal["given", "sampled"] = setting(
        "given", "labels in the Fisher information: as given, or sampled from the model's own outputs"
    )
    decay: float = setting(0.95, "online: share of the importance so far that stays when a task ends", low=0, high=1)
    interval: int = setting(50, "running: steps between updates of the moving average", low=1)
    share: float = setting(0.9, "running: share of the latest interval in the moving average", above=0, high=1)


class Ewc(ImportanceLearner):
    """CE(batch) + lambda / 2 * sum of F (theta - theta*)^2."""

    config_class = EwcConfig
    config: EwcConfig

    def build(self, engine: Engine) -> None:
        """Declare, besides, samples of the open task, or moving averages of squared gradients."""
        super().build(engine)
        c = self.config
        if c.mode != "running":
            self.memory = engine.memory("memory", c.memory, policy="reservoir", budget="total")
            return
        self.moving = engine.like("moving", self.held, changes="step")
        self.squares = engine.like("squares", self.held, changes="step")  # sum since the last update
        self.count = engine.tensor("count", torch.zeros(()), changes="step")  # of the steps in it

    def penalty_weight(self) -> float:
        """Half of lambda, except in EWC++."""
        return self.config.penalty * (1.0 if self.config.mode == "running" else 0.5)

    def update(self, batch: Batch) -> None:
        """One step of SGD; samples are kept to measure F on."""
        super().update(batch)
        if self.config.mode != "running":
            self.memory.write(batch)

    def task_ended(self, task: int) -> None:
        """Take the task's Fisher information into the importance, and move the anchor."""
        if self.config.mode == "running":
            self.scale_moving_average()
            return
        samples = self.samples_of(self.memory, task)
        if len(samples) > 0:
            self.consolidate(self.fisher(samples))
        self.memory.clear()

    def fisher(self, samples: Samples) -> list[Tensor]:
        """F: mean over samples of the squared gradient of log p(y | x), in evaluation mode."""
        if self.config.labels == "sampled":
            samples = self.with_sampled_labels(samples)
        return self.mean_over_samples(samples, cross_entropy, torch.square)

    @torch.no_grad()
    def with_sampled_labels(self, samples: Samples) -> Samples:
        """The samples, labelled by draws from the model's own outputs."""
        logits = self.network.in_evaluation(samples).logits
        y = torch.multinomial(logits.float().softmax(1), 1, generator=self.engine.rng).squeeze(1)
        return Samples(samples.x, y, samples.task, samples.parts)

    @torch.no_grad()
    def consolidate(self, fisher: list[Tensor]) -> None:
        """The sum of all F with the mean of all theta* weighted by F, or a decaying F with the latest theta."""
        online = self.config.mode == "online"
        torch._foreach_mul_(self.importance.tensors, self.config.decay if online else 1.0)
        torch._foreach_add_(self.importance.tensors, fisher)
        if online:
            self.anchor.set(self.held.tensors)
            return
        rows = zip(self.anchor.tensors, self.held.tensors, self.importance.tensors, fisher, strict=True)
        for anchor, theta, total, own in rows:
            anchor.lerp_(theta, torch.where(total > 0, own / total, torch.ones_like(own)))

    # ---- EWC++ -------------------------------------------------------------------------------------------------------

    def after_gradient(self, gradient: list[Tensor], direction: list[Tensor]) -> None:
        """Add up squared gradients of the cross-entropy; after each interval they enter the moving average."""
        if self.config.mode != "running":
            return
        torch._foreach_addcmul_(self.squares.tensors, gradient, gradient)
        self.count += 1
        if self.engine.host.ask(lambda: (self.engine.steps + 1) % self.config.interval == 0):
            self.update_moving_average()

    def update_moving_average(self) -> None:
        """F <- (1 - share) F + share * mean since the last update; fewer steps than an interval count for less."""
        share = self.config.share * self.count / self.config.interval
        steps = self.count.clamp(min=1)
        for moving, squares in zip(self.moving.tensors, self.squares.tensors, strict=True):
            moving.lerp_(squares / steps, share.to(moving))
        torch._foreach_zero_(self.squares.tensors)
        self.count.zero_()

    @torch.no_grad()
    def scale_moving_average(self) -> None:
        """The importance is F, scaled to [0, 1] by its extremes over all weights."""
        self.update_moving_average()
        ends = torch.stack([torch.stack(torch.aminmax(f)) for f in self.moving.tensors])
        low, high = ends[:, 0].min(), ends[:, 1].max()
        spread = torch.where(high > low, high - low, torch.ones_like(high))
        self.importance.set([(f - low) / spread for f in self.moving.tensors])
        self.anchor.set(self.held.tensors)

    @classmethod
    def step_size(cls, config: Any, batch: int, stored: int, tasks: int) -> StepSize:
        """Gradients of single samples when a task ends; EWC++ has none."""
        return StepSize(batch, copies=6) if config.mode == "running" else super().step_size(config, batch, 0, tasks)
