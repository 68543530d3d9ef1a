"""iCaRL: replay with distillation, and prediction by the nearest mean of exemplars.

Rebuffi et al., "iCaRL: Incremental Classifier and Representation Learning", 2017. SCALE's paper says of it: "iCaRL
exemplifies such approach where the KD approach is performed with the nearest exemplar classification strategy".
Cross-entropy takes the place of the authors' sigmoids, as in comparisons with one pass. Herding ranks what the slots
hold when a task ends, because one pass has no larger buffer to choose from; it decides what leaves a memory with
`memory_budget` "total".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from scale_cl.engine import MEMORY_POLICY, Batch, Engine, ReplayConfig
from scale_cl.learners.learner import AT_ONCE, StepSize, Traits, replay_memory
from scale_cl.learners.nearest_mean import NearestMeanLearner
from scale_cl.losses import cross_entropy_of_parts, distillation
from scale_cl.memory import PolicyName
from scale_cl.settings import setting


@dataclass(frozen=True)
class IcarlConfig(ReplayConfig):
    """Settings of iCaRL."""

    memory_policy: PolicyName = setting("herding", MEMORY_POLICY)
    lr: float = setting(0.03, "learning rate", above=0)
    updates: int = setting(1, "gradient steps per batch, each with a fresh replay draw", low=1)
    distillation: float = setting(1.0, "weight of the divergence from the stored outputs", low=0)
    temperature: float = setting(2.0, "temperature that softens the outputs in that divergence", above=0)


class Icarl(NearestMeanLearner):
    """CE(batch) + CE(exemplars) + T^2 KL(stored outputs || outputs); the class with the nearest mean is predicted."""

    config_class = IcarlConfig
    config: IcarlConfig
    traits = Traits(episodic_memory=True, history_in_training=True)

    def build(self, engine: Engine) -> None:
        """Declare the network, and exemplars with the outputs that they had."""
        self.network = engine.network()
        self.memory = replay_memory(engine, self.config, logits=("class",))

    def update(self, batch: Batch) -> None:
        """Descend the loss, then offer the batch to the memory."""
        c = self.config
        for samples in self.memory.replay_with(batch, c.replay, times=c.updates):
            logits = self.network(samples).logits
            loss = cross_entropy_of_parts(logits, samples.y, samples.parts)
            self.log(ce=loss)
            if samples.rows is not None:
                stored, exists = self.memory.stored_logits(samples.rows, logits.shape[1])
                divergence = distillation(samples.from_memory(logits), stored, exists, c.temperature)
                loss = loss + c.distillation * divergence
                self.log(divergence=divergence)
            self.network.base.descend(loss, c.lr)
            self.log(loss=loss)
        self.memory.write(batch)

    def task_ended(self, task: int) -> None:
        """Store the outputs of all exemplars by the current network: those before the next task."""
        for number in range(len(self.engine.classes)):
            self.store_outputs(number)

    @classmethod
    def step_size(cls, config: Any, batch: int, stored: int, tasks: int) -> StepSize:
        """Batch and exemplars; when a task ends, many exemplars without a graph."""
        return StepSize(batch + min(config.replay, stored) + min(stored, AT_ONCE) // 4, config.updates, copies=1)
