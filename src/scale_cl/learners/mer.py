"""MER: replay with Reptile, which moves only part of the way that a few steps of SGD have gone.

Riemer et al., "Learning to Learn without Forgetting by Maximizing Transfer and Minimizing Interference", 2019. By
default in mini-batches; originally sample by sample (algorithm 1 there), with a reservoir that holds the current
task as well and a second rate across batches: `sample_wise`, `across_rate`, `memory_policy` "reservoir",
`replay_current`. There the memory takes each sample as it comes, here a batch as a whole: with batches of one sample it
is the original.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from scale_cl.learners.base import StepStats
from scale_cl.learners.replay import ReplayConfig, ReplayLearner, Samples
from scale_cl.losses import cross_entropy, cross_entropy_of_parts
from scale_cl.settings import setting


@dataclass(frozen=True)
class MerConfig(ReplayConfig):
    """Settings of MER; the defaults are the paper's for the image streams."""

    replay: int = setting(64, "samples replayed with a batch, at most as many as are stored", low=1)
    lr: float = setting(0.05, "learning rate of the steps", above=0)
    updates: int = setting(3, "gradient steps a batch, each with a fresh draw; sample-wise: batches a sample", low=1)
    reptile_rate: float = setting(0.3, "how much of the way of these steps the parameters go (beta)", above=0, high=1)
    ce: Literal["added", "together"] = setting(
        "added", "cross-entropy of a step: means over batch and replay added, or one mean over both together"
    )
    replay_current: bool = setting(False, "replay samples of the current task too, not only of finished ones")
    sample_wise: bool = setting(False, "steps on one sample at a time, Reptile after each draw (the original)")
    across_rate: float = setting(
        1.0, "sample-wise: how much of the way of all draws of a sample (gamma)", above=0, high=1
    )


class Mer(ReplayLearner):
    """Steps on batch and replay, then an interpolation of the parameters."""

    config_class = MerConfig
    config: MerConfig

    def _update(self, x: Tensor, y: Tensor) -> StepStats:
        stats = StepStats()
        if self.config.sample_wise:
            for i in range(len(y)):
                self._sample_step(x[i : i + 1], y[i : i + 1], stats)
            return stats
        start = self._parameters_now()
        for samples in self._replay_batches(x, y, self.config.updates):
            self._sgd_step(samples, stats)
        self._interpolate(start, self.config.reptile_rate)
        self._update_average()
        return stats

    def _sample_step(self, x: Tensor, y: Tensor, stats: StepStats) -> None:
        """Algorithm 1 of the original for one sample: SGD within each draw, Reptile within and across the draws."""
        before = self._parameters_now()
        for samples in self._replay_batches(x, y, self.config.updates):
            start = self._parameters_now()
            for i in range(len(samples.y)):
                one = slice(i, i + 1)
                self._sgd_step(Samples(samples.x[one], samples.y[one], samples.task[one], None, 1, (1,)), stats)
            self._interpolate(start, self.config.reptile_rate)
        self._interpolate(before, self.config.across_rate)
        self._update_average()

    def _sgd_step(self, samples: Samples, stats: StepStats) -> None:
        if self.config.ce == "added":
            logits = self.net(samples.x, samples.task, parts=samples.parts)[2]
            loss = cross_entropy_of_parts(logits, samples.y, samples.parts)
        else:
            loss = cross_entropy(self.net(samples.x, samples.task)[2], samples.y)
        self._descend(loss, self._base, self.config.lr)
        stats["loss"] = loss.detach()

    def _parameters_now(self) -> list[Tensor]:
        return [p.detach().clone() for p in self._base]

    @torch.no_grad()
    def _interpolate(self, start: list[Tensor], rate: float) -> None:
        """Set theta to theta_0 + rate * (theta - theta_0): the parameters only, not the running statistics."""
        torch._foreach_lerp_(start, self._base, rate)
        torch._foreach_copy_(self._base, start)

    def _replays_current(self) -> bool:
        return self.config.replay_current
