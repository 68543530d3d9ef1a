"""The network of one task: raw samples in, logits of that task's classes out, and nothing of the other tasks.

What the parameter generator makes of the task's embedding is computed once, here, and is a constant from then on; so
are the statistics by which inputs are standardised, and the weights of a private module.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from scale_cl.export.folding import fold_batch_norms
from scale_cl.nets import ContinualNet, Inputs, ParameterGenerator
from scale_cl.nets.acl_net import SharedPrivateNet


class Preparation(nn.Module):
    """Raw samples to what the backbone sees, as `Inputs` does, by the statistics of this moment."""

    origin: Tensor | None
    mean: Tensor | None
    deviation: Tensor | None

    def __init__(self, inputs: Inputs, *, origin: Tensor | None = None, channels_last: bool = False) -> None:
        """For samples [B, *shape], or images [B, H, W, C]; `origin` is subtracted in 64 bits before all else."""
        super().__init__()
        self.channels_last, self.pixel_max = channels_last, inputs.pixel_max
        self.register_buffer("origin", origin)
        mean = deviation = None
        if inputs.standardise:
            mean, deviation = (t.float() for t in inputs.statistics())
        self.register_buffer("mean", mean)
        self.register_buffer("deviation", deviation)

    def forward(self, x: Tensor) -> Tensor:
        """[B, *shape] float32."""
        if self.channels_last:
            x = x.permute(0, 3, 1, 2)
        if self.origin is not None:
            x = x - self.origin
        x = x.to(torch.float32)
        if self.pixel_max is not None:
            x = x / self.pixel_max
        if self.mean is not None and self.deviation is not None:
            x = (x - self.mean) / self.deviation
        return x


class TaskNet(nn.Module):
    """A continual network cut down to one of its tasks."""

    weight: Tensor
    bias: Tensor

    def __init__(self, net: ContinualNet, task: int, classes: int, preparation: Preparation) -> None:
        """Take the parts of `net`, a copy in evaluation mode on the CPU, that task number `task` needs."""
        super().__init__()
        self.preparation, self.backbone = preparation, net.backbone
        fold_batch_norms(self.backbone)
        self.film = None if net.generator is None else _Film(net.generator, task)
        self.private = _Private(net, task) if isinstance(net, SharedPrivateNet) else None
        head = 0 if net.heads.shared else task
        self.register_buffer("weight", net.heads.weight.data[head, :classes].detach().clone())
        self.register_buffer("bias", net.heads.bias.data[head, :classes].detach().clone())
        self.requires_grad_(False)
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        """Logits [B, classes] of raw samples."""
        x = self.preparation(x)
        modulate = _plain if self.film is None else self.film
        common, features = self.backbone.top(self.backbone.stem(x), modulate)
        if self.private is not None:
            features = torch.cat([self.private(x), common], 1)
        return F.linear(features, self.weight, self.bias)


def _plain(_site: int, _h: Tensor, common: Tensor) -> Tensor:
    return common


class _Film(nn.Module):
    """FiLM by constants: relu(scale * h + shift) + relu(h), or, as a sum, relu((1 + scale) * h + shift)."""

    def __init__(self, generator: ParameterGenerator, task: int) -> None:
        super().__init__()
        self.sum = generator.form == "sum"
        with torch.no_grad():
            made = generator.films()
        for site, (scale, shift) in enumerate(made):
            self.register_buffer(f"scale_{site}", scale[task : task + 1] + float(self.sum))
            self.register_buffer(f"shift_{site}", shift[task : task + 1].clone())

    def forward(self, site: int, h: Tensor, common: Tensor) -> Tensor:
        scale, shift = self.get_buffer(f"scale_{site}"), self.get_buffer(f"shift_{site}")
        if h.dim() == 4:
            scale, shift = scale[:, :, None, None], shift[:, :, None, None]
        own = torch.relu(scale * h + shift)
        return own if self.sum else own + common


class _Private(nn.Module):
    """The private module of one task."""

    def __init__(self, net: SharedPrivateNet, task: int) -> None:
        super().__init__()
        own = net.private.own(task)
        self._count = len(own)
        for i, t in enumerate(own):
            self.register_buffer(f"own_{i}", t.detach().clone())
        self._features = net.private.features  # a method: the module itself, with all tasks' rows, stays outside

    def forward(self, x: Tensor) -> Tensor:
        return self._features(x, [self.get_buffer(f"own_{i}") for i in range(self._count)])
