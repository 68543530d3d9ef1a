"""What Learn to Grow chooses from: a backbone taken apart into layers, copies of these, and layers that adapt them.

A layer is a linear layer of an MLP, or the first convolution or a block of a ResNet, with its batch norms. Another
backbone is one layer. What adapts is a 1 x 1 convolution, for a linear layer a bottleneck.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from scale_cl.nets import MLP, Backbone, ReducedResNet18
from scale_cl.nets.backbones import unmodulated
from scale_cl.nets.growing_parameter import linear_rows


class Layers:
    """A backbone taken apart into layers; makes copies of them, and adapters."""

    def __init__(
        self, make: Callable[[], Backbone], draw: Callable[[], torch.Generator], adapter: int, like: Backbone
    ) -> None:
        """`make` draws a backbone like `like`; adapters of so many units are drawn by the generator of `draw`."""
        self.make, self.draw, self.adapter, self.like = make, draw, adapter, like
        self.count = len(_taken_apart(like))

    def new(self) -> list[nn.Module]:
        """New copies of all layers."""
        return _taken_apart(self.make())

    def adapters(self, layer: int, count: int) -> list[nn.Module]:
        """As many new adapters of a layer; they add nothing yet. Another backbone cannot be adapted."""
        part = _taken_apart(self.like)[layer]
        if isinstance(part, nn.Linear):
            sizes = part.in_features, self.adapter, part.out_features
            return [Bottleneck(*sizes, generator=self.draw()) for _ in range(count)]
        return [Pointwise(*_sizes(part)) for _ in range(count)] if isinstance(self.like, ReducedResNet18) else []

    def before(self, layer: int, h: Tensor) -> Tensor:
        """What a layer is given, from the output of the one below."""
        if isinstance(self.like, MLP):
            return h.flatten(1) if layer == 0 else torch.relu(h)
        rectified = isinstance(self.like, ReducedResNet18) and self.like.relu_sums and layer > 1
        return torch.relu(h) if rectified else h

    def features(self, h: Tensor) -> Tensor:
        """[B, width] from the output of the last layer."""
        if isinstance(self.like, ReducedResNet18):
            return torch.relu(h).mean((2, 3))
        return torch.relu(h) if isinstance(self.like, MLP) else h


class First(nn.Module):
    """The first convolution of a ResNet, with what belongs to it."""

    def __init__(self, backbone: ReducedResNet18) -> None:
        """Take it out of `backbone`."""
        super().__init__()
        self.conv, self.norm, self.pool = backbone.conv, backbone.norm, backbone.pool

    def forward(self, x: Tensor, parts: tuple[int, ...]) -> Tensor:
        """[B, width, H, W]."""
        out: Tensor = self.norm(self.conv(x), parts, then="relu-pool" if self.pool else "relu")
        return out


class Whole(nn.Module):
    """A backbone as one layer."""

    def __init__(self, backbone: Backbone) -> None:
        """All of it."""
        super().__init__()
        self.backbone = backbone

    def forward(self, x: Tensor, parts: tuple[int, ...]) -> Tensor:
        """Features [B, width]."""
        return self.backbone.top(self.backbone.stem(x, parts), unmodulated)[0]


class Bottleneck(nn.Module):
    """U V x, with U zero at first."""

    def __init__(self, inputs: int, width: int, outputs: int, *, generator: torch.Generator) -> None:
        """Draw V."""
        super().__init__()
        self.v = nn.Parameter(linear_rows((width,), inputs, xavier=True, generator=generator)[0])
        self.u = nn.Parameter(torch.zeros(outputs, width))

    def forward(self, x: Tensor) -> Tensor:
        """[B, outputs]."""
        return F.linear(F.linear(x, self.v), self.u)


class Pointwise(nn.Module):
    """A 1 x 1 convolution, zero at first."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        """With the stride of what it adapts."""
        super().__init__()
        self.weight, self.stride = nn.Parameter(torch.zeros(outside, inside, 1, 1)), stride

    def forward(self, x: Tensor) -> Tensor:
        """[B, outside, H, W]."""
        return F.conv2d(x, self.weight, stride=self.stride)


def run_layer(layer: nn.Module, x: Tensor, parts: tuple[int, ...] = (), *, training: bool) -> Tensor:
    """The output of a layer, in training or evaluation mode."""
    if layer.training != training:
        layer.train(training)
    out: Tensor = layer(x) if isinstance(layer, nn.Linear) else layer(x, parts)
    return out


def _taken_apart(backbone: Backbone) -> list[nn.Module]:
    """The layers of a backbone, in order."""
    if isinstance(backbone, MLP):
        return list(backbone.layers)
    if isinstance(backbone, ReducedResNet18):
        return [First(backbone), *backbone.blocks]
    return [Whole(backbone)]


def _sizes(layer: nn.Module) -> tuple[int, int, int]:
    """Channels that go in and come out of a layer of a ResNet, and its stride."""
    first = layer.get_submodule("conv" if isinstance(layer, First) else "conv1")
    assert isinstance(first, nn.Conv2d)
    stride = first.stride[0] * (2 if isinstance(layer, First) and layer.pool else 1)
    return first.in_channels, first.out_channels, stride
