"""MER: replay with Reptile, which moves only part of the way that a few steps of SGD have gone.

Riemer et al., "Learning to Learn without Forgetting by Maximizing Transfer and Minimizing Interference", 2019. By
default in mini-batches; originally sample by sample (algorithm 1 there), with a reservoir that holds the current
task as well and a second rate across batches: `sample_wise`, `across_rate`, `memory_policy` "reservoir",
`replay_current`. There the memory takes each sample as it comes, here a batch as a whole: with batches of one sample it
is the original.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from scale_cl.engine import Batch, Samples
from scale_cl.learners.er import Er, ErConfig
from scale_cl.learners.learner import StepSize
from scale_cl.settings import setting


@dataclass(frozen=True)
class MerConfig(ErConfig):
    """Settings of MER."""

    replay: int = setting(64, "samples replayed with each batch, at most as many as are stored", low=1)
    lr: float = setting(0.05, "learning rate of the steps", above=0)
    updates: int = setting(3, "gradient steps per batch, each with a fresh draw; sample-wise: draws per sample", low=1)
    reptile_rate: float = setting(0.3, "share of these steps that the parameters keep (beta)", above=0, high=1)
    sample_wise: bool = setting(False, "steps on one sample at a time, Reptile after each draw (the original)")
    across_rate: float = setting(
        1.0, "sample-wise: share of the steps of all draws of a sample that is kept (gamma)", above=0, high=1
    )


class Mer(Er):
    """Steps on batch and replay, then an interpolation of the parameters."""

    config_class = MerConfig
    config: MerConfig

    def update(self, batch: Batch) -> None:
        """SGD on batch and replay, then Reptile: theta = theta_0 + rate * (theta - theta_0)."""
        c, base = self.config, self.network.base
        if c.sample_wise:
            for i in range(len(batch)):
                self.sample_step(batch[i : i + 1])
        else:
            start = base.copy()
            for samples in self.memory.replay_with(batch, c.replay, times=c.updates, current=c.replay_current):
                self.sgd_step(samples)
            base.lerp(start, c.reptile_rate)
        self.memory.write(batch)

    def sample_step(self, sample: Batch) -> None:
        """Algorithm 1 of the original for one sample: SGD within each draw, Reptile within and across the draws."""
        c, base = self.config, self.network.base
        before = base.copy()
        for samples in self.memory.replay_with(sample, c.replay, times=c.updates, current=c.replay_current):
            start = base.copy()
            for i in range(len(samples)):
                self.sgd_step(samples[i : i + 1])
            base.lerp(start, c.reptile_rate, average=False)
        base.lerp(before, c.across_rate)

    def sgd_step(self, samples: Samples) -> None:
        """One step of SGD; the weight average waits for the interpolation."""
        loss = self.loss(self.network(samples).logits, samples)
        self.network.base.descend(loss, self.config.lr, average=False)
        self.log(loss=loss)

    @classmethod
    def step_size(cls, config: Any, batch: int, stored: int, tasks: int) -> StepSize:
        """Batch and replay; the weights before the steps."""
        return StepSize(batch + min(config.replay, stored), config.updates, copies=3)
