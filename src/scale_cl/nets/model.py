"""The network all learners share: inputs, a backbone, growing heads and perhaps a parameter generator."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from scale_cl.nets.backbones import Backbone, Modulation, unmodulated
from scale_cl.nets.film import ParameterGenerator
from scale_cl.nets.heads import Heads
from scale_cl.nets.inputs import Inputs

Wrt = Literal["base", "generator", "all"]
"""Of which parameters a forward keeps a graph."""


class Outputs(NamedTuple):
    """What a forward returns."""

    common: Tensor  # [B, width] features that no task-specific parameter has touched at the last site
    features: Tensor  # [B, width] what the heads see
    logits: Tensor  # [B, classes] of each sample's own head


class ContinualNet(nn.Module):
    """f(g(x)) of the paper; the trunk and the heads are the base learner, the generator is trained apart."""

    several_tasks = False  # whether the forward of a subclass takes tasks [T, B] too

    def __init__(self, inputs: Inputs, backbone: Backbone, heads: Heads, generator: ParameterGenerator | None) -> None:
        """Put the parts together."""
        super().__init__()
        self.inputs, self.backbone, self.heads, self.generator = inputs, backbone, heads, generator

    def forward(self, x: Tensor, task: Tensor, *, parts: tuple[int, ...] = (), wrt: Wrt = "all") -> Outputs:
        """Common features, features for the head, and logits of each sample's own head.

        Args:
            x: [B, ...] prepared by `inputs`.
            task: [B] int64; or [T, B]: several tasks of the same samples, whose stem is computed once. The outputs
                are [T, B, ...] then.
            parts: sizes of parts of the batch that have batch statistics of their own, as if each had a forward.
            wrt: what the gradient is wanted of; for the generator, no graph is kept before the first FiLM site.
        """
        with torch.no_grad() if wrt == "generator" else nullcontext():
            h = self.backbone.stem(x, parts)
        if task.dim() == 2:
            each = [self._from_stem(h, own, wrt) for own in task]
            return Outputs(*(torch.stack(part) for part in zip(*each, strict=True)))
        return self._from_stem(h, task, wrt)

    def _from_stem(self, h: Tensor, task: Tensor, wrt: Wrt) -> Outputs:
        """The outputs of samples of these tasks [B] from the pre-activations of the first FiLM site."""
        modulate: Modulation = unmodulated
        if self.generator is not None:
            with torch.no_grad() if wrt == "base" else nullcontext():
                modulate = self.generator.modulation(task)
        common, features = self.backbone.top(h, modulate)
        return Outputs(common, features, self.heads(features, task))

    def for_task(self, task: int) -> nn.Module:
        """The network of task number `task` alone: prepared inputs [B, ...] to logits [B, classes of its head].

        It shares this network's backbone; FiLM parameters and head are copies.
        """
        return TaskNet(self.backbone, self.heads, self.generator, task)

    def ensure_task(self, task: int, classes: int, *, generator: torch.Generator) -> None:
        """Make sure that head and embedding of task number `task` exist."""
        self.heads.ensure(task, classes, generator=generator)
        if self.generator is not None:
            while self.generator.embedding.count <= task:
                self.generator.add_task(generator=generator)

    def base_parameters(self) -> dict[str, Tensor]:
        """Trunk and heads by name: what the inner step trains; what is frozen is not among them."""
        named = self.named_parameters()
        return {name: p for name, p in named if p.requires_grad and not name.startswith("generator.")}

    def generator_parameters(self) -> dict[str, Tensor]:
        """Embedding and FiLM layers by name: what the outer step trains."""
        return {name: p for name, p in self.named_parameters() if name.startswith("generator.")}


class TaskNet(nn.Module):
    """The network of a single task, with its FiLM parameters and head as constants; see `ContinualNet.for_task`."""

    def __init__(self, backbone: Backbone, heads: Heads, generator: ParameterGenerator | None, task: int) -> None:
        """Share the backbone; copy what task number `task` needs of the heads and the generator."""
        super().__init__()
        self.backbone = backbone
        self.film = None if generator is None else _ConstantFilm(generator, task)
        self.head = heads.alone(task)

    def features(self, x: Tensor) -> Tensor:
        """Features [B, width] that the head sees."""
        modulate = unmodulated if self.film is None else self.film
        features: Tensor = self.backbone.top(self.backbone.stem(x), modulate)[1]
        return features

    def forward(self, x: Tensor) -> Tensor:
        """Logits [B, classes]."""
        logits: Tensor = self.head(self.features(x))
        return logits


class _ConstantFilm(nn.Module):
    """FiLM with constants: relu(scale * h + shift) + relu(h), or relu((1 + scale) * h + shift) in the form `sum`."""

    def __init__(self, generator: ParameterGenerator, task: int) -> None:
        super().__init__()
        self.sum = generator.form == "sum"
        with torch.no_grad():
            films = generator.films()
        for site, (scale, shift) in enumerate(films):
            self.register_buffer(f"scale_{site}", scale[task : task + 1] + float(self.sum))
            self.register_buffer(f"shift_{site}", shift[task : task + 1].clone())

    def forward(self, site: int, h: Tensor, common: Tensor) -> Tensor:
        scale, shift = self.get_buffer(f"scale_{site}"), self.get_buffer(f"shift_{site}")
        if h.dim() == 4:
            scale, shift = scale[:, :, None, None], shift[:, :, None, None]
        private = torch.relu(scale * h + shift)
        return private if self.sum else private + common
