"""DER and DER++: replay that holds on to the logits that samples had when they entered the memory.

Buzzega et al., "Dark Experience for General Continual Learning: a Strong, Simple Baseline", 2020. The logits are those
of the batch's own (last) forward; with a weight average, those of the averaged model after the step.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from scale_cl.learners.base import StepStats
from scale_cl.learners.replay import MEMORY_POLICY, ReplayConfig, ReplayLearner, Samples
from scale_cl.learners.traits import Traits
from scale_cl.losses import cross_entropy, logit_distance
from scale_cl.memory import Policy
from scale_cl.settings import setting


@dataclass(frozen=True)
class DerConfig(ReplayConfig):
    """Settings of DER."""

    memory_policy: Policy = setting("reservoir", MEMORY_POLICY)
    lr: float = setting(0.03, "learning rate", above=0)
    updates: int = setting(3, "gradient steps a batch, each with fresh draws", low=1)
    alpha: float = setting(1.0, "weight of the distance to the stored logits", low=0)
    replay_current: bool = setting(False, "replay samples of the current task too, not only of finished ones")


@dataclass(frozen=True)
class DerppConfig(DerConfig):
    """Settings of DER++."""

    beta: float = setting(1.0, "weight of the cross-entropy on a second draw", low=0)


class Der(ReplayLearner):
    """CE(batch) + alpha * MSE(replay, stored logits)."""

    config_class = DerConfig
    traits = Traits(episodic_memory=True, history_in_training=True)
    config: DerConfig
    _draws = 1

    def _update(self, x: Tensor, y: Tensor) -> StepStats:
        stats = StepStats()
        for samples in self._replay_batches(x, y, self.config.updates, draws=self._draws):
            logits = self.net(samples.x, samples.task, parts=samples.parts)[2]
            loss = self._loss(samples, logits, stats)
            self._descend(loss, self._base, self.config.lr)
            self._update_average()
            stats["loss"], self._logits = loss.detach(), logits.detach()[: samples.n]
        return stats

    def _loss(self, samples: Samples, logits: Tensor, stats: StepStats) -> Tensor:
        n = samples.n
        loss = cross_entropy(logits[:n], samples.y[:n])
        stats["ce"] = loss.detach()
        if samples.rows is None:
            return loss
        rows, replayed = samples.rows[: samples.parts[1]], logits[n : n + samples.parts[1]]
        stored, exists = self.memory.logits["class"].get(rows, logits.shape[1])
        distance = logit_distance(replayed, stored, exists)
        stats["distance"] = distance.detach()
        return loss + self.config.alpha * distance

    def _wrap_up(self, x: Tensor, y: Tensor) -> None:
        """The samples enter the memory with their logits."""
        if self._average:
            self._logits = self._evaluated(x, self._task.expand(len(y)))[2]
        logits = self._logits[:, : self._open_classes()]
        if self.compute.on_divergence == "skip":  # those of a step that is skipped are not to be kept
            logits = logits.nan_to_num(0.0, 0.0, 0.0)
        self.memory.write(x, y, logits)

    def _task_began(self, task: int) -> None:
        super()._task_began(task)
        self.memory.reserve_logits(self._open_classes())
        self._refresh()

    def _open_classes(self) -> int:
        return self._classes[self._open_task()]

    def _phase(self) -> object:
        return super()._phase(), self._open_classes()

    def _replays_current(self) -> bool:
        return self.config.replay_current


class Derpp(Der):
    """DER + beta * CE on a second, separate draw."""

    config_class = DerppConfig
    config: DerppConfig
    _draws = 2

    def _loss(self, samples: Samples, logits: Tensor, stats: StepStats) -> Tensor:
        loss = super()._loss(samples, logits, stats)
        if samples.rows is None:
            return loss
        second = samples.n + samples.parts[1]
        replayed = cross_entropy(logits[second:], samples.y[second:])
        stats["replay"] = replayed.detach()
        return loss + self.config.beta * replayed
