"""GDumb: keep a balanced memory of the stream and train a network from scratch on it.

Prabhu, Torr and Dokania, "GDumb: A Simple Approach that Questions Our Progress in Continual Learning", 2020. Their
greedy sampler keeps any samples as long as classes are balanced; `memory_policy` balanced keeps a uniform sample of
each class. There the network is trained when it is asked for; here whenever a task ends and, without boundaries, for
the first prediction after a change of the memory.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from scale_cl.engine import MEMORY_POLICY, Batch, Engine, MemoryConfig
from scale_cl.engine.weights import clipped
from scale_cl.errors import DivergenceError
from scale_cl.learners.learner import ReplayLearner, StepSize
from scale_cl.losses import cross_entropy
from scale_cl.memory import Budget, PolicyName
from scale_cl.settings import setting


@dataclass(frozen=True)
class GdumbConfig(MemoryConfig):
    """Settings of GDumb."""

    memory: int = setting(500, "memory slots in total, per task or per class (memory_budget)", low=1)
    memory_budget: Budget = setting("total", "what the memory slots are counted by: task, class or total")
    memory_policy: PolicyName = setting("balanced", MEMORY_POLICY)
    lr: float = setting(0.05, "learning rate at the start of each training; a cosine leads to the last one", above=0)
    last_lr: float = setting(0.0005, "learning rate at its end", above=0)
    passes: int = setting(30, "passes over the memory in each training", low=1)
    size: int = setting(32, "stored samples per step of that training, at most as many as are stored", low=1)
    clip: float = setting(10.0, "scale longer gradients down to this norm; 0: off", low=0)


class Gdumb(ReplayLearner):
    """A step only offers the batch to the memory; at task end, or when asked, a new network is trained on it."""

    config_class = GdumbConfig
    learns_at_end = True
    config: GdumbConfig

    def build(self, engine: Engine) -> None:
        """Declare network and memory, and a training step that a GPU records."""
        super().build(engine)
        self.train_on = engine.record(self.training_step)

    def update(self, batch: Batch) -> None:
        """Offer the batch to the memory."""
        self.memory.write(batch)
        self.log(stored=self.memory.stored.float().mean())

    def task_ended(self, task: int) -> None:
        """Train a new network."""
        if self.spec.boundaries:
            self.train_anew()

    def derived(self) -> dict[str, Tensor]:
        """Without boundaries: a network trained on what is stored now, drawn from copies of the generators.

        Predictions use it; the learner stays as it is, so that it does not matter when it was asked.
        """
        if self.spec.boundaries:
            return {}
        engine, generators = self.engine, (self.engine.rng, self.engine.weights_rng)
        changed, draws = [*engine.learned(), *engine.owned.others()], [one.get_state() for one in generators]
        before = [t.detach().clone() for t in changed]
        try:
            with torch.enable_grad():
                self.train_anew()
            running = {name: b for name, b in self.net.named_buffers() if "running" in name}
            trained = {**self.network.base.named, **running, **engine.average}
            found = {f"net.{name}": t.detach().clone() for name, t in trained.items()}
        finally:
            torch._foreach_copy_(changed, before)
            for generator, state in zip(generators, draws, strict=True):
                generator.set_state(state)
        if not all(bool(t.isfinite().all()) for t in found.values()):
            raise DivergenceError(f"seed {self.seed}: {self.name} diverged in training for a prediction; lower lr")
        return found

    def train_anew(self) -> None:
        """Train a new network on what is stored, with a rate that falls along a cosine."""
        c, rows = self.config, self.memory.stored.nonzero().flatten()
        if len(rows) == 0:
            return
        size = min(c.size, len(rows))
        self.network.base.set(self.engine.fresh_weights())
        per_pass = len(rows) // size
        for step in range(c.passes * per_pass):
            if step % per_pass == 0:
                order = rows[torch.randperm(len(rows), generator=self.engine.rng, device=self.device)]
            share = 0.5 * (1 + math.cos(math.pi * step / (c.passes * per_pass)))
            rate = torch.full((), c.last_lr + (c.lr - c.last_lr) * share, device=self.device)
            first = step % per_pass * size
            self.train_on((size,), order[first : first + size], rate)

    def training_step(self, rows: Tensor, rate: Tensor) -> dict[str, Tensor]:
        """One step of SGD on stored samples."""
        samples, base = self.memory.samples(rows), self.network.base
        loss = cross_entropy(self.network(samples).logits, samples.y)
        gradient = base.gradient(loss)
        if self.config.clip > 0:
            gradient = clipped(gradient, self.config.clip)
        base.move(list(torch._foreach_mul(gradient, rate)), 1.0)
        return {"loss": loss.detach()}

    @classmethod
    def step_size(cls, config: Any, batch: int, stored: int, tasks: int) -> StepSize:
        """The steps of that training."""
        return StepSize(max(batch, min(config.size, stored)), 1, copies=3)
