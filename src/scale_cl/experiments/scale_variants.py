"""SCALE with one of its choices made otherwise: each class serves one claim of the paper.

The experiment `variants` compares them with SCALE, but for `ScaleLastLayer`, whose claim is about time:
`benchmarks/generator_layers.py`.

They are methods from outside, as anybody's own: `--learner scale_cl.experiments.scale_variants:ScaleReversal`. A
variant has all settings and both presets of SCALE, and `docs/methods.md` says which claim it serves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from scale_cl.engine import Batch, Engine, Part, ReplayMemory, Samples, TaskShape, Weights
from scale_cl.engine.weights import clipped
from scale_cl.errors import ConfigError
from scale_cl.learners import Scale, ScaleConfig
from scale_cl.learners.acl import unit
from scale_cl.learners.ctn import held_out, open_semantic, semantic_slots
from scale_cl.learners.presets import PRESETS, Preset
from scale_cl.nets import MLP, Discriminator, Outputs
from scale_cl.nets.backbones import Modulation
from scale_cl.settings import setting


class ScaleVariant(Scale):
    """What the variants share: the presets of SCALE, and their place in tables."""

    presets: ClassVar[Mapping[str, Preset]] = {preset: own["scale"] for preset, own in PRESETS.items()}
    after = "scale"

    def require(self, name: str, value: object, why: str) -> None:
        """ConfigError if a setting has another value than this variant can have."""
        given = getattr(self.config, name)
        if given != value:
            said, right = (str(v).lower() if isinstance(v, bool) else v for v in (given, value))
            raise ConfigError(f"{name} is {said}; {type(self).__name__} needs {right}, as {why}")


class ScaleReversal(ScaleVariant):
    """SCALE with gradient reversal: the trunk ascends what the discriminator descends, in one backward.

    Equation 8 is a term of the inner loss, of features whose gradient is multiplied by -lambda3 where it enters g. So
    in each inner step D and g move together, by gradients at the same point, on T_train. With the alternating steps of
    SCALE, D moves after the inner and outer steps, on T_val, by the features of the g that has moved. And g ascends the
    whole of equation 8 here (a mean over features and noise, and L_DER++ of D), in SCALE the cross-entropy on features.
    The outer step is SCALE's: for P, D is held fixed.
    """

    def build(self, engine: Engine) -> None:
        """Refuse what reversal replaces, and declare what SCALE does."""
        self.require("adversarial", "minus", "reversal takes the place of the minus sign")
        self.require("discriminator_steps", 1, "the discriminator moves once in each inner step")
        self.require("second_order", False, "its inner step is of first order")
        super().build(engine)

    def inner_step(self, train: Samples, theta: Weights) -> Weights:
        """Trunk, heads and D after one step on T_train, with one backward."""
        c = self.config
        if not c.adversary:
            return super().inner_step(train, theta)
        loss = self.loss(self.network(train), train)
        descend_together(loss, (theta, c.inner_lr, c.clip), (self.discriminator.weights, c.adversarial_lr, 0.0))
        return theta

    def adversarial(self, loss: Tensor, g: Tensor, samples: Samples, stage: str = "") -> Tensor:
        """`loss` + equation 8 of features that are as they are, with their gradient times -lambda3."""
        if stage:
            return super().adversarial(loss, g, samples, stage)
        fixed = g.detach()
        return loss + self.discriminator_loss(fixed + self.config.lambda3 * (fixed - g), samples)

    def discriminator_step(self, out: Outputs, val: Samples) -> None:
        """None: D has moved in the inner steps."""


class _NoTaskLogits(ScaleVariant):
    """SCALE that stores no logits of its discriminator."""

    def stored_outputs(self, x: Tensor, task: Tensor) -> dict[str, Tensor]:
        """Class logits h of stored samples; no task logits."""
        return {"class": self.engine.evaluated(x, task).logits}


class ScaleTaskDiscriminators(_NoTaskLogits):
    """SCALE with a new discriminator for each task, which replaces the one before, as ACL has it.

    It is drawn anew when a task begins, of SCALE's form and with an output for each task so far; copies of the earlier
    one would start from what it knows, which is the single discriminator again. It learns the finished tasks from the
    replayed samples of T_val. The first term of its L_DER++, a distance to the logits of a discriminator that does not
    exist any more, falls away; the second, their cross-entropy, stays.
    """

    def new_discriminator(self, engine: Engine) -> Part:
        """D of the open task."""

        def make(shape: TaskShape) -> Discriminator:
            rng, width = engine.weights_rng, engine.backbone.feature_width
            made = Discriminator(width, generator=rng, capacity=max(engine.capacity, shape.tasks + 1))
            made.ensure_task(shape.tasks - 1, shape.classes, generator=rng)
            return made

        adversary = self.config.adversary
        return engine.task_part("discriminator", make) if adversary else super().new_discriminator(engine)

    def derpp(self, loss: Tensor, o: Tensor, ce: Tensor, samples: Samples, kind: str, stage: str = "") -> Tensor:
        """`loss` + L_DER++, for D without the distance to stored logits."""
        if kind == "class" or samples.rows is None:
            return super().derpp(loss, o, ce, samples, kind, stage)
        return torch.add(loss, ce, alpha=self.config.lambda2)


class ScalePlainDiscriminator(_NoTaskLogits):
    """SCALE with a discriminator that has no DER++: equation 8 is L_adv alone, over batch, replay and noise."""

    def derpp(self, loss: Tensor, o: Tensor, ce: Tensor, samples: Samples, kind: str, stage: str = "") -> Tensor:
        """`loss` + L_DER++, for D just `loss`."""
        return loss if kind == "task" else super().derpp(loss, o, ce, samples, kind, stage)


@dataclass(frozen=True)
class OrthogonalConfig(ScaleConfig):
    """Settings of SCALE with the orthogonal loss."""

    orthogonal: float = setting(0.1, "weight of the loss that keeps common and task-specific features apart", low=0)


class ScaleOrthogonal(ScaleVariant):
    """SCALE with ACL's orthogonal loss between common and task-specific features, on both levels.

    The mean squared cosine of the common features of each sample and the task-specific ones of each other; lengths are
    constants to the gradient, as in ACL. Task-specific is what FiLM adds to the common features at the last site:
    equation 1 after its activation.
    """

    config_class = OrthogonalConfig
    config: OrthogonalConfig

    def loss(self, out: Outputs, samples: Samples, stage: str = "") -> Tensor:
        """Equation 3 + the orthogonal loss."""
        loss = super().loss(out, samples, stage)
        if not self.config.generator:  # nothing is task-specific
            return loss
        overlap = (unit(out.common) @ unit(out.features - out.common).T).square().mean()
        loss = torch.add(loss, overlap, alpha=self.config.orthogonal)
        self.engine.log({f"{stage}orthogonal": overlap, f"{stage}loss": loss})
        return loss


class ScaleOneLevel(ScaleVariant):
    """SCALE with its generator trained in the inner step: one step of trunk, heads and generator on T_train.

    There is no bilevel problem: one backward gives the gradients of all three, the generator moves at `outer_lr` and
    the others at `inner_lr`. T_val serves the discriminator only.
    """

    def build(self, engine: Engine) -> None:
        """Refuse what needs two levels, and declare what SCALE does."""
        self.require("second_order", False, "there is no outer step to differentiate through")
        super().build(engine)

    def inner_step(self, train: Samples, theta: Weights) -> Weights:
        """Trunk, heads and P after one step on T_train, with one backward."""
        c = self.config
        if not c.generator:
            return super().inner_step(train, theta)
        loss = self.loss(self.network(train, wrt="all"), train)
        descend_together(loss, (theta, c.inner_lr, c.clip), (self.generator.weights, c.outer_lr, c.clip))
        return theta

    def outer_step(self, out: Outputs, val: Samples) -> None:
        """None: P has moved in the inner steps."""


@dataclass(frozen=True)
class TwoMemoriesConfig(ScaleConfig):
    """Settings of SCALE with two memories."""

    memory: int = setting(50, "memory slots per task, episodic and semantic together", low=2)
    semantic: float = setting(0.2, "share of the slots that is semantic memory", above=0, below=1)


class ScaleTwoMemories(ScaleVariant):
    """SCALE with two memories in the slots of one, as CTN has it: episodic for T_train, semantic for T_val.

    The first sample of a batch goes to the semantic memory, a ring, and the one that went there before joins the batch
    in its place. T_val is the semantic samples of the open task, in the place of the batch, and a draw of at most
    `replay` from those of finished tasks; the newest is one that the base learner was not trained on yet. Equations 3
    and 8 are as in SCALE, with logits h and d stored in both memories.
    """

    config_class = TwoMemoriesConfig
    config: TwoMemoriesConfig
    needs_boundaries = True

    def new_memory(self, engine: Engine) -> ReplayMemory:
        """The episodic memory, and beside it the semantic one."""
        c = self.config
        self.require("memory_budget", "task", "it divides the slots of each task")
        slots, kinds = semantic_slots(c.memory, c.semantic), ("class", "task")
        self.semantic = engine.memory("semantic", slots, logits=kinds)
        policy, norms = c.memory_policy, c.norm_on_memory
        return engine.memory("memory", c.memory - slots, policy=policy, logits=kinds, measure_norms=norms)

    def update(self, batch: Batch) -> None:
        """SCALE's step, with the first sample held back."""
        super().update(held_out(self.semantic, batch))

    def sets(self, batch: Batch, *, validates: bool) -> Sequence[Samples]:
        """T_train: batch and episodic samples; T_val: semantic samples."""
        c, n, own = self.config, self.config.replay if self.config.derpp else 0, open_semantic(self.semantic)
        open_task = Batch(self.semantic.x[own], self.semantic.y[own], self.semantic.task[own])
        train = iter(self.memory.replay_with(batch, n, times=c.outer_steps * c.inner_steps))
        val = iter(self.semantic.replay_with(open_task, n, times=c.outer_steps) if validates else ())
        order = ([train] * c.inner_steps + [val] * validates) * c.outer_steps
        return [next(sets) for sets in order]

    def replayed_from(self, kind: str, stage: str) -> ReplayMemory:
        """The semantic memory for what T_val serves: the outer step, and the discriminator."""
        return self.semantic if stage or kind == "task" else self.memory

    def task_ended(self, task: int) -> None:
        """Store h and d in both memories."""
        super().task_ended(task)
        self.store(self.semantic, task)


class LastFilmMLP(MLP):
    """An MLP with FiLM at its last hidden layer only, as the ResNet has it: all linear layers are the stem."""

    def __init__(self, mlp: MLP) -> None:
        """Take over the layers of `mlp`."""
        nn.Module.__init__(self)
        self.layers, self.film_widths, self.feature_width = mlp.layers, mlp.film_widths[-1:], mlp.feature_width

    def stem(self, x: Tensor, parts: tuple[int, ...] = ()) -> Tensor:
        """All linear layers, [B, ...] -> [B, width of the last]."""
        h = super().stem(x, parts)
        for layer in list(self.layers)[1:]:
            h = layer(torch.relu(h))
        return h

    def top(self, h: Tensor, modulate: Modulation) -> tuple[Tensor, Tensor]:
        """The last activation without and with FiLM."""
        common = torch.relu(h)
        return common, modulate(0, h, common)


class ScaleLastLayer(ScaleVariant):
    """SCALE with its generator in the last hidden layer of the MLP, not in all; the outer step is cheaper then."""

    def build(self, engine: Engine) -> None:
        """Move FiLM, and declare what SCALE does."""
        if not isinstance(engine.backbone, MLP):
            raise ConfigError("ScaleLastLayer needs backbone mlp: on others SCALE has FiLM in the last layer already")
        engine.backbone = LastFilmMLP(engine.backbone)
        super().build(engine)


def descend_together(loss: Tensor, *steps: tuple[Weights, float, float]) -> None:
    """One backward, and a step of SGD of each of these weights, with its rate and the norm that it is clipped to."""
    for weights, _, _ in steps:
        loss = loss if weights.extra is None else weights.extra(loss)
    gradient = list(torch.autograd.grad(loss, [t for weights, _, _ in steps for t in weights.tensors]))
    for weights, rate, clip in steps:
        own, gradient = gradient[: len(weights.tensors)], gradient[len(weights.tensors) :]
        weights.move(clipped(own, clip) if clip > 0 else own, rate)
