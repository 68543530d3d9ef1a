"""DER and DER++: replay that keeps the logits that samples had when they entered the memory.

Buzzega et al., "Dark Experience for General Continual Learning: a Strong, Simple Baseline", 2020. The logits are those
of the batch's own (last) forward; with a weight average, those of the averaged model after the step. Two settings give
DER and DER++ what SCALE has: `forward` "joint" and `logits_from` "task-end".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

from scale_cl.engine import MEMORY_POLICY, Batch, Engine, ReplayConfig, Samples
from scale_cl.errors import ConfigError
from scale_cl.learners.learner import FORWARD, ReplayLearner, StepSize, Traits, replay_memory
from scale_cl.losses import cross_entropy, logit_distance
from scale_cl.memory import PolicyName
from scale_cl.settings import setting


@dataclass(frozen=True)
class DerConfig(ReplayConfig):
    """Settings of DER."""

    memory_policy: PolicyName = setting("reservoir", MEMORY_POLICY)
    lr: float = setting(0.03, "learning rate", above=0)
    updates: int = setting(3, "gradient steps per batch, each with fresh draws", low=1)
    alpha: float = setting(1.0, "weight of the distance to the stored logits", low=0)
    forward: Literal["separate", "joint"] = setting("separate", FORWARD)
    logits_from: Literal["step", "task-end"] = setting(
        "step", "stored logits: those of the step in which a sample is stored, or those at the end of its task"
    )
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
    draws = 1  # from the memory, per update

    def build(self, engine: Engine) -> None:
        """Declare network and memory; logits come with the samples, or when their task ends."""
        if self.at_end and not self.spec.boundaries:
            raise ConfigError("learner.logits_from is task-end, but this stream has no ends of tasks; take step")
        if self.at_end and self.config.replay_current:
            raise ConfigError("learner.logits_from task-end leaves the current task without logits: no replay_current")
        self.network = engine.network(statistics=self.config.forward)
        self.memory = replay_memory(engine, self.config, logits=("class",))

    def update(self, batch: Batch) -> None:
        """Descend the loss several times, then store the batch with its logits."""
        c, sets = self.config, dict[str, Any](times=self.config.updates, draws=self.draws)
        for samples in self.memory.replay_with(batch, c.replay, current=c.replay_current, **sets):
            logits = self.network(samples).logits
            loss = self.loss(logits, samples)
            self.network.base.descend(loss, c.lr)
            self.log(loss=loss)
        if self.at_end:
            self.memory.write(batch)
            return
        stored = logits.detach()[: len(batch)]
        if c.weight_average > 0:
            stored = self.engine.evaluated(batch.x, batch.task).logits
        self.memory.write(batch, self.finite(stored[:, : self.open_classes()]))

    def loss(self, logits: Tensor, samples: Samples) -> Tensor:
        """CE(batch) + alpha * MSE(first draw, stored logits)."""
        n = samples.n
        loss = cross_entropy(logits[:n], samples.y[:n])
        self.log(ce=loss)
        if samples.rows is None:
            return loss
        size = samples.parts[1]
        stored, exists = self.memory.stored_logits(samples.rows[:size], logits.shape[1])
        distance = logit_distance(logits[n : n + size], stored, exists)
        self.log(distance=distance)
        return loss + self.config.alpha * distance

    def task_began(self, task: int) -> None:
        """Make room for the logits that come with the samples."""
        if not self.at_end:
            self.memory.reserve_logits(self.engine.classes[task])

    def task_ended(self, task: int) -> None:
        """Store the logits of the task's samples, if they are those of its end."""
        if self.at_end:
            self.store_outputs(task)

    @property
    def at_end(self) -> bool:
        """Whether logits are stored when a task ends."""
        return self.config.logits_from == "task-end"

    def open_classes(self) -> int:
        """Classes of the open task; a recorded step is valid for as long as their number stays."""
        return self.engine.host.ask(lambda: self.engine.classes[self.engine.open_task])

    def finite(self, logits: Tensor) -> Tensor:
        """Logits to store; those of a step that is skipped must not be kept as they are."""
        return logits.nan_to_num(0.0, 0.0, 0.0) if self.compute.on_divergence == "skip" else logits

    @classmethod
    def step_size(cls, config: Any, batch: int, stored: int, tasks: int) -> StepSize:
        """Each draw follows the batch."""
        return StepSize(batch + cls.draws * min(config.replay, stored), config.updates, copies=1)


class Derpp(Der):
    """DER + beta * CE on a second, separate draw."""

    config_class = DerppConfig
    config: DerppConfig
    draws = 2

    def loss(self, logits: Tensor, samples: Samples) -> Tensor:
        """DER's loss + beta * CE(second draw)."""
        loss = super().loss(logits, samples)
        if not samples.replayed:
            return loss
        second = samples.n + samples.parts[1]
        replayed = cross_entropy(logits[second:], samples.y[second:])
        self.log(replay=replayed)
        return loss + self.config.beta * replayed
