"""The network all learners share: inputs, a backbone, growing heads and perhaps a parameter generator."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from scale_cl.nets.backbone import Backbone, Modulation, unmodulated
from scale_cl.nets.film import Films, ParameterGenerator
from scale_cl.nets.heads import Heads
from scale_cl.nets.inputs import Inputs
from scale_cl.nets.task_net import TaskNet


class ContinualNet(nn.Module):
    """f(g(x)) of the paper; the trunk and the heads are the base learner, the generator is trained apart."""

    def __init__(self, inputs: Inputs, backbone: Backbone, heads: Heads, generator: ParameterGenerator | None) -> None:
        """Put the parts together."""
        super().__init__()
        self.inputs, self.backbone, self.heads, self.generator = inputs, backbone, heads, generator

    def forward(
        self,
        x: Tensor,
        task: Tensor,
        *,
        frozen_stem: bool = False,
        parts: tuple[int, ...] = (),
        films: Films | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Common features, features for the head, and logits of each sample's own head.

        Args:
            x: [B, ...] prepared by `inputs`.
            task: [B] int64.
            frozen_stem: no gradient is kept for what stands before the first FiLM site.
            parts: sizes of parts of the batch that have batch statistics of their own, as if each had a forward.
            films: what the generator makes for each task, where that is known already.
        """
        with torch.set_grad_enabled(torch.is_grad_enabled() and not frozen_stem):
            h = self.backbone.stem(x, parts)
        common, features = self.backbone.top(h, self._modulation(task, films))
        return common, features, self.heads(features, task)

    def common(self, x: Tensor, task: Tensor) -> Tensor:
        """The common features alone."""
        common: Tensor = self.backbone.top(self.backbone.stem(x), self._modulation(task))[0]
        return common

    def _modulation(self, task: Tensor, films: Films | None = None) -> Modulation:
        return unmodulated if self.generator is None else self.generator.modulation(task, films)

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

    @property
    def version(self) -> tuple[int, int]:
        """Changes whenever a parameter moved or the arithmetic changed: graphs recorded before are void."""
        return self.heads.version, 0 if self.generator is None else self.generator.embedding.capacity
