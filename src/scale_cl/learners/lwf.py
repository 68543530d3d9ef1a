"""LwF: Learning without Forgetting. The outputs of old heads on new samples stay as they were before the task.

Li and Hoiem, "Learning without Forgetting", 2016. SCALE's paper says of it: "Learning without Forgetting (LWF) utilizes
the knowledge distillation (KD) approach to match between current and previous outputs". The authors first train the new
head alone; one pass leaves no room for that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from scale_cl.engine import Batch, Engine, LearnerConfig, Samples
from scale_cl.learners.learner import Learner, StepSize, Traits
from scale_cl.losses import NO_CLASS, cross_entropy, distillation
from scale_cl.nets import Heads
from scale_cl.settings import setting


@dataclass(frozen=True)
class LwfConfig(LearnerConfig):
    """Settings of LwF."""

    lr: float = setting(0.03, "learning rate", above=0)
    distillation: float = setting(1.0, "weight of the divergence from the previous outputs: alpha", low=0)
    temperature: float = setting(2.0, "temperature that softens the outputs in that divergence", above=0)


class Lwf(Learner):
    """CE(batch) + alpha * sum over old heads of T^2 KL(previous outputs || outputs), on the batch."""

    config_class = LwfConfig
    needs_boundaries = True
    config: LwfConfig
    traits = Traits(history_in_training=True)

    def build(self, engine: Engine) -> None:
        """Declare the network and a frozen copy of it."""
        self.network = engine.network()
        self.previous = engine.teacher("previous")

    def update(self, batch: Batch) -> None:
        """Descend cross-entropy and distillation."""
        c, samples = self.config, self.engine.samples(batch)
        out = self.network(samples)
        loss = cross_entropy(out.logits, samples.y)
        self.log(ce=loss)
        if self.engine.host.ask(lambda: bool(self.previous)):
            divergence = self.divergence(out.features, samples)
            loss = loss + c.distillation * divergence
            self.log(divergence=divergence)
        self.network.base.descend(loss, c.lr)
        self.log(loss=loss)

    def divergence(self, features: Tensor, samples: Samples) -> Tensor:
        """Sum over the previous model's heads, without the open task's, of the divergence from its outputs."""
        assert self.previous.module is not None
        old = self.previous.module.heads
        heads = self.engine.host.ask(self.old_heads)
        features_before = self.previous(samples.x, torch.zeros_like(samples.task)).features  # it may not know the task
        before = all_logits(old, features_before, heads)
        exists = (before > NO_CLASS) & self.is_old(heads)
        now = all_logits(self.net.heads, features, heads)[..., : before.shape[2]]
        each = distillation(now.flatten(0, 1), before.flatten(0, 1), exists.flatten(0, 1), self.config.temperature)
        return heads * each  # a mean over samples and heads became a sum over heads

    def old_heads(self) -> int:
        """How many heads the previous model has."""
        return 0 if self.previous.module is None else len(self.previous.module.heads.classes)

    def is_old(self, heads: int) -> Tensor:
        """[heads, 1]: which heads are not the open task's; a head that all tasks share is old."""
        number = torch.arange(heads, device=self.device).unsqueeze(1)
        return (number != self.engine.task) | self.net.heads.shared

    def task_ended(self, task: int) -> None:
        """What the network answers now is what it is to answer later."""
        self.previous.take(self.net)

    @classmethod
    def step_size(cls, config: Any, batch: int, stored: int, tasks: int) -> StepSize:
        """Two forwards of the batch, the logits of all heads, and a gradient."""
        return StepSize(2 * batch, copies=2)


def all_logits(heads: Heads, features: Tensor, count: int) -> Tensor:
    """Logits [B, heads, widest head] of the first `count` heads for every sample; -inf where a head has no class."""
    weight, bias = heads.weight.data[:count], heads.bias.data[:count]
    logits: Tensor = F.linear(features, weight.flatten(0, 1), bias.flatten()).view(len(features), *bias.shape)
    return logits + heads.missing[:count]
