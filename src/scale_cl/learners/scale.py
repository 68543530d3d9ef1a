"""SCALE: Scalable Adversarial Online Continual Learning, step by step as algorithm 1 of the paper.

Four parts: the trunk g (theta) and the heads f (phi) are the base learner, trained in the inner step; the parameter
generator P (varphi) turns common features into task-specific ones and is trained in the outer step; one discriminator D
(xi) tells tasks apart, and the trunk is trained to fool it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from scale_cl.engine import (
    MEMORY_POLICY,
    NORM_ON_MEMORY,
    Batch,
    Engine,
    Part,
    ReplayConfig,
    ReplayMemory,
    Samples,
    Weights,
)
from scale_cl.learners.learner import Learner, StepSize, Traits, replay_memory
from scale_cl.losses import cross_entropies, cross_entropy, logit_distance
from scale_cl.memory import PolicyName
from scale_cl.nets import Discriminator, Outputs
from scale_cl.nets.film import FilmForm
from scale_cl.settings import setting


@dataclass(frozen=True)
class ScaleConfig(ReplayConfig):
    """Settings of SCALE; the preset `paper` has the paper's, see `learners.presets`."""

    replay: int = setting(64, "samples replayed with each batch, at most as many as are stored", low=1)
    inner_lr: float = setting(0.01, "alpha, learning rate of the trunk and the heads (equation 5)", above=0)
    outer_lr: float = setting(0.1, "beta, learning rate of the parameter generator (equation 6)", above=0)
    adversarial_lr: float = setting(0.001, "mu, learning rate of the discriminator", above=0)
    lambda1: float = setting(1.0, "weight of the distance to stored logits (equation 3)", low=0)
    lambda2: float = setting(1.0, "weight of the cross-entropy on replayed samples (equation 3)", low=0)
    lambda3: float = setting(0.03, "weight of the adversarial loss (equation 3)", low=0)
    inner_steps: int = setting(1, "n_in, inner steps in each outer step", low=1)
    outer_steps: int = setting(1, "n_out, outer steps per batch", low=1)
    discriminator_steps: int = setting(1, "n_ad, discriminator steps per batch", low=1)
    adversary: bool = setting(True, "train against the discriminator; off: ablation A")
    derpp: bool = setting(True, "the DER++ loss, and with it replay; off: ablation B")
    generator: bool = setting(True, "FiLM by the parameter generator; off: ablation C")
    ce: Literal["batch", "added", "together"] = setting(
        "batch",
        "L_CE of eq. 3: over the batch; batch and replay, two means added; or together, one mean (as printed)",
    )
    adversarial: Literal["minus", "plus", "fake"] = setting(
        "minus", "L_adv: minus the cross-entropy (equation 7), plus (equation 3 as printed), or towards the fake task"
    )
    film: FilmForm = setting(
        "branches", "FiLM: relu of each branch before their sum, or of the sum (equations 1 and 2 as printed)"
    )
    forward: Literal["joint", "separate"] = setting(
        "joint", "batch and replay in one forward (one set of batch statistics) or in two"
    )
    discriminator_on: Literal["common", "film"] = setting(
        "common", "features the discriminator sees: the common ones, or those after FiLM"
    )
    noise: bool = setting(True, "noise as the fake task 0 in equation 8; off: the discriminator sees features only")
    refresh_logits: bool = setting(False, "at task end, store logits of the whole memory, not only of the task's own")
    second_order: bool = setting(False, "outer gradient through the inner step, exactly; off: first order")
    clip: float = setting(0.0, "scale longer inner and outer gradients down to this norm; 0: off (the paper)", low=0)
    memory_policy: PolicyName = setting("reservoir", MEMORY_POLICY)
    norm_on_memory: bool = setting(True, NORM_ON_MEMORY)
    task_embedding: int = setting(0, "width of the task embedding; 0: 16 with the mlp, 64 with the resnet18", low=0)


class Scale(Learner):
    """FiLM by a parameter generator, one discriminator, DER++; `ScaleConfig` has every choice the paper leaves open."""

    config_class = ScaleConfig
    traits = Traits(episodic_memory=True, task_specific_parameters=True, history_in_training=True)
    update_settings = ("outer_steps", "inner_steps")
    config: ScaleConfig

    def build(self, engine: Engine) -> None:
        """Declare P, the network f(g(x)), D and the memory M."""
        c = self.config
        self.generator = engine.generator(c.film, c.task_embedding, when=c.generator)
        self.network = engine.network(film=self.generator, statistics=c.forward, twice=c.second_order)
        self.discriminator, self.memory = self.new_discriminator(engine), self.new_memory(engine)
        self.to_store = engine.record(self.stored_outputs)

    def new_discriminator(self, engine: Engine) -> Part:
        """D: one for all tasks, with an output per task."""
        rng, width = engine.weights_rng, engine.backbone.feature_width
        make = partial(Discriminator, width, generator=rng, capacity=engine.capacity)
        return engine.part("discriminator", make, when=self.config.adversary)

    def new_memory(self, engine: Engine) -> ReplayMemory:
        """M, with the logits h and d."""
        return replay_memory(engine, self.config, logits=("class", "task"))

    def update(self, batch: Batch) -> None:
        """Algorithm 1 for one batch: equations 5 and 6, a step on each level of equation 4; equation 8; the memory."""
        c, validates = self.config, self.config.generator or self.config.adversary
        sets = iter(self.sets(batch, validates=validates))
        for _ in range(c.outer_steps):
            theta = self.network.base
            for _ in range(c.inner_steps):
                theta = self.inner_step(next(sets), theta)
            if validates:
                val = next(sets)
                out = self.network(val, theta, wrt=self.generator)  # serves eq. 6 and eq. 8
                self.outer_step(out, val)
            theta.settle()
        for _ in range(c.discriminator_steps if c.adversary else 0):
            self.discriminator_step(out, val)
        self.memory.write(batch)

    def sets(self, batch: Batch, *, validates: bool) -> Sequence[Samples]:
        """T_train of each inner step and, if anything validates, T_val of each outer step, in the order of use."""
        c = self.config
        times = c.outer_steps * (c.inner_steps + validates)
        return self.memory.replay_with(batch, c.replay if c.derpp else 0, times=times)

    def inner_step(self, train: Samples, theta: Weights) -> Weights:
        """Equation 5: trunk and heads after a step on T_train."""
        c = self.config
        loss = self.loss(self.network(train, theta), train)
        return theta.descend(loss, c.inner_lr, clip=c.clip, through=c.second_order and c.generator)

    def outer_step(self, out: Outputs, val: Samples) -> None:
        """Equation 6: a step of P on T_val, by the base learner after the inner steps."""
        if self.config.generator:
            self.generator.descend(self.loss(out, val, "outer_"), self.config.outer_lr, clip=self.config.clip)

    def discriminator_step(self, out: Outputs, val: Samples) -> None:
        """A step of D on equation 8, on the features of T_val."""
        self.discriminator.descend(self.discriminator_loss(self.seen(out).detach(), val), self.config.adversarial_lr)

    def loss(self, out: Outputs, samples: Samples, stage: str = "") -> Tensor:
        """Equation 3: L_CE + L_DER++ + L_adv."""
        c, g, each = self.config, self.seen(out), cross_entropies(out.logits, samples.y)
        batch, replayed = samples.means(each)
        l_ce = batch if c.ce == "batch" else batch + replayed if c.ce == "added" else each.mean()
        loss = self.derpp(l_ce, out.logits, replayed, samples, "class", stage)
        if c.adversary and g.requires_grad:  # where FiLM follows g, it is constant for P
            loss = self.adversarial(loss, g, samples, stage)
        self.engine.log({f"{stage}ce": l_ce, f"{stage}replay": replayed, f"{stage}loss": loss})
        return loss

    def derpp(self, loss: Tensor, o: Tensor, ce: Tensor, samples: Samples, kind: str, stage: str = "") -> Tensor:
        """`loss` + L_DER++ of equations 3 and 8 over the replayed samples, with their cross-entropy `ce`, if any."""
        if samples.rows is None:
            return loss
        h, exists = self.replayed_from(kind, stage).stored_logits(samples.rows, o.shape[1], kind)
        distance = logit_distance(samples.from_memory(o), h, exists)
        if kind == "class":
            self.engine.log({f"{stage}distance": distance})
        loss = torch.add(loss, distance, alpha=self.config.lambda1)
        return torch.add(loss, ce, alpha=self.config.lambda2)

    def adversarial(self, loss: Tensor, g: Tensor, samples: Samples, stage: str = "") -> Tensor:
        """`loss` + L_adv of equations 3 and 7: how well D, which is held fixed, tells the task of features g."""
        how = self.config.adversarial
        label = torch.zeros_like(samples.task) if how == "fake" else samples.task + 1
        l_adv = cross_entropy(self.discriminator(g), label)
        self.engine.log({f"{stage}adversarial": l_adv})
        sign = -1 if how == "minus" else 1  # eq. 7: g is to fool D
        return torch.add(loss, l_adv, alpha=sign * self.config.lambda3)

    def discriminator_loss(self, g: Tensor, val: Samples) -> Tensor:
        """Equation 8: D tells features g by task, and as much noise as task 0; plus L_DER++ on its own outputs."""
        noise = self.engine.randn(g) if self.config.noise else g[:0]
        guess = self.discriminator(torch.cat([g, noise]))
        each = cross_entropies(guess, torch.cat([val.task + 1, torch.zeros_like(val.task[: len(noise)])]))
        _, replayed = val.means(each[: len(g)])
        loss = self.derpp(each.mean(), guess[: len(g)], replayed, val, "task")
        self.log(discriminator=loss)
        return loss

    def seen(self, out: Outputs) -> Tensor:
        """The features that the discriminator sees."""
        return out.common if self.config.discriminator_on == "common" else out.features

    def replayed_from(self, kind: str, stage: str) -> ReplayMemory:
        """The memory whose samples a loss replays: the one for all."""
        return self.memory

    def task_ended(self, task: int) -> None:
        """Store h of equation 3 and d of equation 8: "the previous model's logits" of the task's samples."""
        self.store(self.memory, task)

    @torch.no_grad()
    def store(self, memory: ReplayMemory, task: int) -> None:
        """Keep the logits of the samples that a memory has of a task that ends, or of all tasks."""
        for k in range(len(self.engine.classes)) if self.config.refresh_logits else (task,):
            rows = memory.rows_of(k)
            if len(rows):
                widths = {"class": self.engine.classes[k], "task": len(self.engine.classes) + 1}
                for kind, o in self.to_store((len(rows),), memory.x[rows], memory.task[rows]).items():
                    memory.keep_logits(kind, rows, o[:, : widths[kind]])

    def stored_outputs(self, x: Tensor, task: Tensor) -> dict[str, Tensor]:
        """Class logits h and task logits d of stored samples, by the weights that predict."""
        out = self.engine.evaluated(x, task)
        return {"class": out.logits} | ({"task": self.discriminator(self.seen(out))} if self.discriminator else {})

    @classmethod
    def step_size(cls, config: Any, batch: int, stored: int, tasks: int) -> StepSize:
        """Batch and replay; in second order all inner steps stay in memory."""
        return StepSize(
            (1 + config.second_order) * (batch + min(config.replay, stored)),
            config.outer_steps * (config.inner_steps + 1),
            copies=1 + config.second_order * (2 * config.inner_steps + 2),
        )
