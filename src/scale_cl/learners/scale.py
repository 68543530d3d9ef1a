"""SCALE: Scalable Adversarial Online Continual Learning, step by step as algorithm 1 of the paper.

Four parts: the trunk g (theta) and the heads f (phi) are the base learner, trained in the inner step; the parameter
generator P (varphi) turns common features into task-specific ones and is trained in the outer step; one discriminator D
(xi) tells tasks apart, and the trunk is trained to fool it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from scale_cl.engine import MEMORY_POLICY, NORM_ON_MEMORY, Batch, Engine, ReplayConfig, Samples
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
    config: ScaleConfig

    def build(self, engine: Engine) -> None:
        """Declare P, the network f(g(x)), D and the memory M."""
        c, width = self.config, engine.backbone.feature_width
        self.generator = engine.generator(c.film, c.task_embedding, when=c.generator)
        self.network = engine.network(film=self.generator, statistics=c.forward, twice=c.second_order)
        self.discriminator = engine.part(
            "discriminator",
            lambda: Discriminator(width, generator=engine.weights_rng, capacity=engine.capacity),
            when=c.adversary,
        )
        self.memory = replay_memory(engine, c, logits=("class", "task"))
        self.to_store = engine.record(self.stored_outputs)

    def update(self, batch: Batch) -> None:
        """Algorithm 1 for one batch: equations 5 and 6, a step on each level of equation 4; equation 8; the memory."""
        c, validates = self.config, self.config.generator or self.config.adversary
        replay, times = c.replay if c.derpp else 0, c.outer_steps * (c.inner_steps + validates)
        sets = iter(self.memory.replay_with(batch, replay, times=times))
        for _ in range(c.outer_steps):
            theta = self.network.base
            for _ in range(c.inner_steps):
                train = next(sets)  # T_train
                loss = self.loss(self.network(train, theta), train)
                through = c.second_order and c.generator
                theta = theta.descend(loss, c.inner_lr, clip=c.clip, through=through)  # eq. 5
            if validates:
                val = next(sets)  # T_val
                out = self.network(val, theta, wrt=self.generator)  # serves eq. 6 and eq. 8
                if c.generator:
                    self.generator.descend(self.loss(out, val, "outer_"), c.outer_lr, clip=c.clip)  # eq. 6
            theta.settle()
        for _ in range(c.discriminator_steps if c.adversary else 0):
            self.discriminator.descend(self.discriminator_loss(self.seen(out).detach(), val), c.adversarial_lr)  # eq. 8
        self.memory.write(batch)

    def loss(self, out: Outputs, samples: Samples, stage: str = "") -> Tensor:
        """Equation 3: L_CE + L_DER++ + L_adv."""
        c, g, each = self.config, self.seen(out), cross_entropies(out.logits, samples.y)
        batch, replayed = samples.means(each)
        l_ce = batch if c.ce == "batch" else batch + replayed if c.ce == "added" else each.mean()
        loss = self.derpp(l_ce, out.logits, replayed, samples, "class", stage)
        if c.adversary and g.requires_grad:  # where FiLM follows g, it is constant for P
            sign = -1 if c.adversarial == "minus" else 1  # eq. 7: g is to fool D
            loss = torch.add(loss, self.adversarial_loss(g, samples, stage), alpha=sign * c.lambda3)
        self.engine.log({f"{stage}ce": l_ce, f"{stage}replay": replayed, f"{stage}loss": loss})
        return loss

    def derpp(self, loss: Tensor, o: Tensor, ce: Tensor, samples: Samples, kind: str, stage: str = "") -> Tensor:
        """`loss` + L_DER++ of equations 3 and 8 over the replayed samples, with their cross-entropy `ce`, if any."""
        if samples.rows is None:
            return loss
        h, exists = self.memory.stored_logits(samples.rows, o.shape[1], kind)
        distance = logit_distance(samples.from_memory(o), h, exists)
        if kind == "class":
            self.engine.log({f"{stage}distance": distance})
        loss = torch.add(loss, distance, alpha=self.config.lambda1)
        return torch.add(loss, ce, alpha=self.config.lambda2)

    def adversarial_loss(self, g: Tensor, samples: Samples, stage: str = "") -> Tensor:
        """L_adv of equations 3 and 7: how well D, which is held fixed, tells the task of features g."""
        fake = self.config.adversarial == "fake"
        l_adv = cross_entropy(self.discriminator(g), torch.zeros_like(samples.task) if fake else samples.task + 1)
        self.engine.log({f"{stage}adversarial": l_adv})
        return l_adv

    def discriminator_loss(self, g: Tensor, val: Samples) -> Tensor:
        """Equation 8: D tells features g by task, and as much noise as task 0; plus L_DER++ on its own outputs."""
        guess = self.discriminator(torch.cat([g, self.engine.randn(g)]))
        each = cross_entropies(guess, torch.cat([val.task + 1, torch.zeros_like(val.task)]))
        _, replayed = val.means(each[: len(g)])
        loss = self.derpp(each.mean(), guess[: len(g)], replayed, val, "task")
        self.log(discriminator=loss)
        return loss

    def seen(self, out: Outputs) -> Tensor:
        """The features that the discriminator sees."""
        return out.common if self.config.discriminator_on == "common" else out.features

    @torch.no_grad()
    def task_ended(self, task: int) -> None:
        """Store h of equation 3 and d of equation 8: "the previous model's logits" of the task's samples."""
        for k in range(len(self.engine.classes)) if self.config.refresh_logits else (task,):
            rows = self.memory.rows_of(k)
            if len(rows):
                logits = self.to_store((len(rows),), rows)
                self.memory.keep_logits("class", rows, logits["class"][:, : self.engine.classes[k]])
                if self.discriminator:
                    self.memory.keep_logits("task", rows, logits["task"][:, : len(self.engine.classes) + 1])

    def stored_outputs(self, rows: Tensor) -> dict[str, Tensor]:
        """Class logits h and task logits d of stored samples, by the weights that predict."""
        out = self.engine.evaluated(self.memory.x[rows], self.memory.task[rows])
        return {"class": out.logits} | ({"task": self.discriminator(self.seen(out))} if self.discriminator else {})

    @classmethod
    def step_size(cls, config: Any, batch: int, stored: int, tasks: int) -> StepSize:
        """Batch and replay; in second order all inner steps stay in memory."""
        return StepSize(
            (1 + config.second_order) * (batch + min(config.replay, stored)),
            config.outer_steps * (config.inner_steps + 1),
            copies=1 + config.second_order * (2 * config.inner_steps + 2),
        )
