"""CTN: Contextual Transformation Networks. A controller makes FiLM of a task's embedding and has a memory to itself.

Pham, Liu, Sahoo and Hoi (2021). The base network is trained on the batch and on the episodic memory (inner step), the
controller on the semantic memory (outer step), whose samples the base network has not seen yet: the first sample of a
batch goes there, and the one that went there before joins the batch in its place.

Departures from the authors' code with a setting for its way: there the second inner step takes the batch's gradient
through the forward of the first one, made with parameters that have changed since (`reuse_batch`; here it is computed
afresh), and outputs are stored with the statistics of the batch that they are computed in (`stored_in_training`).
Without a setting: there a batch enters the memory before its step, not after it, and with more than 75 episodic slots
of larger images the outer step takes 64 semantic samples, not all. `replay_current` is neither paper's nor code's.

The outer step runs over all semantic samples at once, so its size grows with each task and the step is recorded anew in
every task (padding would enter the batch statistics). Inside a task its size is constant: the open task's slots that
are still empty stand for its first one, as in the authors' code.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from scale_cl.engine import Batch, Engine, ReplayConfig, ReplayMemory, Samples
from scale_cl.errors import ConfigError
from scale_cl.learners.learner import Learner, StepSize, Traits
from scale_cl.losses import cross_entropy, cross_entropy_of_parts, softened_divergence
from scale_cl.settings import setting


@dataclass(frozen=True)
class CtnConfig(ReplayConfig):
    """Settings of CTN."""

    memory: int = setting(50, "memory slots per task, episodic and semantic together", low=2)
    semantic: float = setting(0.2, "share of the slots that is semantic memory", above=0, below=1)
    replay: int = setting(64, "samples replayed in an inner step, at most as many as a task has episodic slots", low=1)
    inner_lr: float = setting(0.01, "learning rate of the base network", above=0)
    outer_lr: float = setting(0.05, "learning rate of the controller", above=0)
    inner_steps: int = setting(2, "inner steps in each outer step", low=1)
    outer_steps: int = setting(2, "outer steps per batch", low=1)
    distillation: float = setting(100.0, "weight of the divergence from the stored outputs", low=0)
    temperature: float = setting(5.0, "temperature that softens the outputs in that divergence", above=0)
    clip: float = setting(1.0, "largest absolute value of an element of the controller's gradient", above=0)
    stored_in_training: bool = setting(
        False, "at task end, store outputs computed with batch statistics instead of running ones"
    )
    reuse_batch: bool = setting(False, "take the batch's gradient once for all inner steps of an outer step")
    replay_current: bool = setting(False, "once a task is finished, replay samples of the current one too")
    task_embedding: int = setting(0, "width of the task embedding; 0: 16 with the mlp, 64 with the resnet18", low=0)


class Ctn(Learner):
    """FiLM by a controller that a semantic memory trains; SCALE's parameter generator is its controller."""

    config_class = CtnConfig
    traits = Traits(episodic_memory=True, task_specific_parameters=True, history_in_training=True)
    update_settings = ("outer_steps", "inner_steps")
    needs_boundaries = True
    config: CtnConfig

    def build(self, engine: Engine) -> None:
        """Declare controller, network and both memories."""
        c = self.config
        self.controller = engine.generator("branches", c.task_embedding)
        self.network = engine.network(film=self.controller)
        if c.memory_budget != "task":
            raise ConfigError(f"memory_budget is {c.memory_budget}; CTN needs task, as it divides the slots of each")
        semantic = semantic_slots(c.memory, c.semantic)
        self.memory = engine.memory(
            "memory",
            c.memory - semantic,
            policy=c.memory_policy,
            logits=("class",),
            measure_norms=c.norm_on_memory,
        )
        self.semantic = engine.memory("semantic", semantic)

    def update(self, batch: Batch) -> None:
        """Inner steps of the base network in each outer step of the controller."""
        c = self.config
        batch = held_out(self.semantic, batch)
        current = c.replay_current and self.engine.host.ask(lambda: self.memory.available() > 0)
        size = min(c.replay, self.memory.slots)
        sets = iter(self.memory.replay_with(batch, size, times=c.outer_steps * c.inner_steps, current=current))
        for _ in range(c.outer_steps):
            known = self.batch_gradient(batch) if c.reuse_batch else None
            for _ in range(c.inner_steps):
                self.inner_step(next(sets), known)
            self.outer_step()
        self.memory.write(batch)

    def inner_step(self, samples: Samples, known: list[Tensor] | None) -> None:
        """The base network descends CE(batch) + CE(replay) + KL(stored outputs || outputs).

        With the gradient of CE(batch) `known`, only the replay has a forward.
        """
        base, rate = self.network.base, self.config.inner_lr
        if known is None:
            o = self.network(samples).logits
            loss = cross_entropy_of_parts(o, samples.y, samples.parts)
            self.log(ce=loss)
            if samples.rows is not None:
                loss = loss + self.distance(samples.from_memory(o), samples.rows)
            self.log(loss=loss)
            base.descend(loss, rate)
        elif samples.rows is None:
            self.log(loss=self.engine.stats["ce"])
            base.move(known, rate)
        else:
            o = self.network(samples.replay).logits
            loss = cross_entropy(o, samples.replay.y)
            self.log(replay=loss)
            loss = loss + self.distance(o, samples.rows)
            self.log(loss=loss)
            base.move(list(torch._foreach_add(base.gradient(loss), known)), rate)

    def distance(self, o: Tensor, rows: Tensor) -> Tensor:
        """KL(stored outputs || outputs `o`) of replayed samples, times its weight."""
        stored, exists = self.memory.stored_logits(rows, o.shape[1])
        if self.config.replay_current:
            finished = self.memory.replayable[rows][:, None].expand_as(stored)
            exists = finished if exists is None else exists & finished
        divergence = softened_divergence(o, stored, exists, self.config.temperature)
        self.log(divergence=divergence)
        return self.config.distillation * divergence

    def batch_gradient(self, batch: Batch) -> list[Tensor]:
        """The gradient of CE(batch) alone, with the current parameters."""
        loss = cross_entropy(self.network(self.engine.samples(batch)).logits, batch.y)
        self.log(ce=loss)
        return self.network.base.gradient(loss)

    def outer_step(self) -> None:
        """The controller descends the cross-entropy on all semantic samples."""
        c = self.config
        samples = self.semantic.samples(torch.cat([self.semantic.finished(), open_semantic(self.semantic)]))
        loss = cross_entropy(self.network(samples, wrt=self.controller).logits, samples.y)
        gradient = self.controller.weights.gradient(loss)
        with torch.no_grad():
            clipped = [(g / c.outer_steps).clamp_(-c.clip, c.clip) for g in gradient]
        self.controller.weights.move(clipped, c.outer_lr)
        self.log(outer_loss=loss)

    @torch.no_grad()
    def task_ended(self, task: int) -> None:
        """Store the outputs of the task's episodic samples with the current model."""
        rows = self.memory.rows_of(task)
        if len(rows) == 0:
            return
        x, tasks = self.memory.x[rows], self.memory.task[rows]
        if self.config.stored_in_training:
            logits = self.net(self.net.inputs(x), tasks).logits
        else:
            logits = self.engine.evaluated(x, tasks).logits
        self.memory.keep_logits("class", rows, logits[:, : self.engine.classes[task]])

    @classmethod
    def step_size(cls, config: Any, batch: int, stored: int, tasks: int) -> StepSize:
        """Batch and replay, or all semantic samples at once."""
        return StepSize(
            max(batch + min(config.replay, stored), math.ceil(stored * config.semantic) + tasks),
            config.outer_steps * (config.inner_steps + 1),
            copies=1,
        )


def semantic_slots(slots: int, share: float) -> int:
    """How many of a task's slots are semantic memory; at least one is left on each side."""
    return min(max(1, round(slots * share)), slots - 1)


def held_out(semantic: ReplayMemory, batch: Batch) -> Batch:
    """The first sample goes to the semantic memory; the batch has the one before it instead."""
    first = batch[:1]
    if not semantic.host.ask(lambda: semantic.held == 0):
        previous, rest = semantic.latest(), batch[1:]
        x, y = torch.cat([rest.x, semantic.x[previous]]), torch.cat([rest.y, semantic.y[previous]])
        batch = Batch(x, y, torch.cat([rest.task, semantic.task[previous]]))
    elif len(batch) > 1:  # a single sample is all that there is to train on
        batch = batch[1:]
    semantic.write(first)
    return batch


def open_semantic(semantic: ReplayMemory) -> Tensor:
    """The rows of the open task's semantic samples, always as many: the first sample stands where a slot is free."""
    own = semantic.open_rows
    stored = semantic.stored[own]
    return torch.where(stored, own, own[stored.long().argmax().view(1)])
