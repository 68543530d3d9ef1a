"""Online EWC: weights that mattered for earlier tasks are held by a quadratic penalty.

Kirkpatrick et al., 2017, in the online form of Schwarz et al., 2018: one importance and one anchor per weight.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from scale_cl.learners import Batch, Engine, Learner, MemoryConfig, Preset, Traits, replay_memory
from scale_cl.losses import cross_entropy
from scale_cl.settings import setting


@dataclass(frozen=True)
class EwcConfig(MemoryConfig):
    """Settings of online EWC."""

    lr: float = setting(0.03, "learning rate", above=0)
    importance: float = setting(10.0, "weight of the penalty", low=0)
    decay: float = setting(0.95, "share of the importance so far that stays when a task ends", low=0, high=1)


class Ewc(Learner):
    """Online EWC: a quadratic penalty holds the weights that mattered for earlier tasks."""

    config_class = EwcConfig
    needs_boundaries = True
    config: EwcConfig
    traits = Traits(history_in_training=True)
    after = "er"
    presets: ClassVar = {"ours": Preset(permuted={"lr": 0.1})}

    def build(self, engine: Engine) -> None:
        """The network, a few samples of each task, and two tensors of the shapes of the weights."""
        self.network = engine.network()
        self.memory = replay_memory(engine, self.config)
        self.fisher = engine.like("fisher", self.network.base, changes="task")
        self.anchor = engine.like("anchor", self.network.base, changes="task")

    def update(self, batch: Batch) -> None:
        """Descend CE(batch) + importance / 2 * sum of F (theta - theta*)^2."""
        c, samples = self.config, self.engine.samples(batch)
        ce = cross_entropy(self.network(samples).logits, samples.y)
        loss = ce + c.importance / 2 * self.penalty()
        self.log(ce=ce, loss=loss)
        self.network.base.descend(loss, c.lr)
        self.memory.write(batch)

    def penalty(self) -> Tensor:
        """Sum over all weights of F (theta - theta*)^2."""
        weights = zip(self.network.base.tensors, self.fisher.tensors, self.anchor.tensors, strict=True)
        return torch.stack([(f * (p - a).square()).sum() for p, f, a in weights]).sum()

    @torch.no_grad()
    def task_ended(self, task: int) -> None:
        """F takes the mean squared gradient of each stored sample's log-likelihood; theta* becomes the weights."""
        samples = self.memory.samples(self.memory.rows_of(task))
        if len(samples) == 0:
            return
        gradients = self.network.sample_gradients(samples, cross_entropy)
        for f, g in zip(self.fisher.tensors, gradients, strict=True):
            f.mul_(self.config.decay).add_(g.square().mean(0))
        self.anchor.set(self.network.base.tensors)
