"""The network of a single task, with its FiLM parameters and head as constants; see `ContinualNet.for_task`."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from scale_cl.nets.backbone import Backbone, unmodulated
from scale_cl.nets.film import ParameterGenerator
from scale_cl.nets.heads import Heads


class TaskNet(nn.Module):
    """Prepared inputs [B, ...] to the logits [B, classes] of one task."""

    def __init__(self, backbone: Backbone, heads: Heads, generator: ParameterGenerator | None, task: int) -> None:
        """Share the backbone; copy what task number `task` needs of the heads and the generator."""
        super().__init__()
        self.backbone = backbone
        self.film = None if generator is None else _ConstantFilm(generator, task)
        number = 0 if heads.shared else task
        classes = heads.classes[number]
        self.head = nn.Linear(heads.width, classes, device="meta")
        self.head.weight = nn.Parameter(heads.weight.data[number, :classes].detach().clone())
        self.head.bias = nn.Parameter(heads.bias.data[number, :classes].detach().clone())

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
