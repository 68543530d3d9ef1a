"""Backbones: what each must offer, and the two of the paper, a 256-256 MLP and a reduced ResNet-18."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor, nn

from scale_cl.nets.growing_parameter import BlankLinear
from scale_cl.nets.kernels.convolution import Convolution
from scale_cl.nets.kernels.norm import BatchNorm

Modulation = Callable[[int, Tensor, Tensor], Tensor]
"""Features of FiLM site `i` from its pre-activation h and from relu(h); without a generator they are just relu(h)."""


def unmodulated(_site: int, _h: Tensor, common: Tensor) -> Tensor:
    """The modulation of a network without a parameter generator."""
    return common


class Backbone(nn.Module):
    """A trunk cut in two: `stem` runs before the first FiLM site, `top` from there to the features."""

    film_widths: tuple[int, ...]  # channels at each FiLM site, in order
    feature_width: int  # what the heads and the discriminator see
    xavier: bool  # whether layers added later are drawn Xavier-uniform with zero bias
    detach_norms: bool  # whether FiLM's L2 norms are constants to the gradient
    embedding_width: int  # of the task embedding that goes with this backbone

    def stem(self, x: Tensor, parts: tuple[int, ...] = ()) -> Tensor:
        """Pre-activation of the first FiLM site; batch statistics, if any, are taken of each of the `parts` (sizes)."""
        raise NotImplementedError

    def top(self, h: Tensor, modulate: Modulation) -> tuple[Tensor, Tensor]:
        """Common features relu(h) of the last site, and the features for the heads: both [B, feature_width]."""
        raise NotImplementedError


class MLP(Backbone):
    """Linear layers, Xavier-uniform with zero bias; each hidden layer is a FiLM site."""

    xavier = True
    detach_norms = False
    embedding_width = 16

    def __init__(self, inputs: int, hidden: tuple[int, ...] = (256, 256), *, generator: torch.Generator) -> None:
        """Draw the weights from `generator`."""
        super().__init__()
        sizes = (inputs, *hidden)
        layers: list[nn.Linear] = [BlankLinear(*pair) for pair in pairwise(sizes)]
        for layer in layers:
            nn.init.xavier_uniform_(layer.weight, generator=generator)
            nn.init.zeros_(layer.bias)
        self.layers = nn.ModuleList(layers)
        self.film_widths = hidden
        self.feature_width = hidden[-1]

    def stem(self, x: Tensor, parts: tuple[int, ...] = ()) -> Tensor:
        """First linear layer, [B, ...] -> [B, 256]."""
        first: Tensor = self.layers[0](x.flatten(1))
        return first

    def top(self, h: Tensor, modulate: Modulation) -> tuple[Tensor, Tensor]:
        """The other layers, each on the modulated features of the one before."""
        for site, layer in enumerate(list(self.layers)[1:]):
            h = layer(modulate(site, h, torch.relu(h)))
        common = torch.relu(h)
        return common, modulate(len(self.layers) - 1, h, common)


class ReducedResNet18(Backbone):
    """conv3x3, batch norm, ReLU, max-pool 3/2/1, then four stages of two basic blocks.

    The paper's trunk does not activate the sums of the blocks. Variants: `relu_sums` does, as the CTN repository for
    some learners and the usual ResNet; without `pool` there is no max-pool, as in networks for images of 32 x 32.
    """

    xavier = False
    detach_norms = True
    embedding_width = 64

    def __init__(
        self,
        channels: int = 3,
        width: int = 20,
        *,
        momentum: float = 0.1,
        relu_sums: bool = False,
        pool: bool = True,
        generator: torch.Generator,
    ) -> None:
        """Draw the convolutions from `generator`, distributed as torch's own default; `momentum` is batch norm's."""
        super().__init__()
        self.relu_sums, self.pool = relu_sums, pool
        self.conv = _conv3x3(channels, width, 1)
        self.norm = BatchNorm(width)
        blocks, inside = [], width
        for stage in range(4):
            outside = width * 2**stage
            blocks.append(_BasicBlock(inside, outside, stride=1 if stage == 0 else 2))
            blocks.append(_BasicBlock(outside, outside, stride=1))
            inside = outside
        self.blocks = nn.ModuleList(blocks)
        for module in self.modules():
            if isinstance(module, BatchNorm):
                module.momentum = momentum
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_uniform_(module.weight, a=math.sqrt(5), generator=generator)
        self.film_widths = (inside,)
        self.feature_width = inside

    def stem(self, x: Tensor, parts: tuple[int, ...] = ()) -> Tensor:
        """All convolutions, [B, C, H, W] -> [B, 160, h, w]; no ReLU after the last residual sum."""
        x = self.entry(x, parts)
        for number in range(len(self.blocks)):
            x = self.block(number, x, parts)
        return x

    def entry(self, x: Tensor, parts: tuple[int, ...]) -> Tensor:
        """What the first block is given."""
        out: Tensor = self.norm(self.conv(x), parts, then="relu-pool" if self.pool else "relu")
        return out

    def block(self, number: int, x: Tensor, parts: tuple[int, ...]) -> Tensor:
        """One block, from the output of the one below."""
        out: Tensor = self.blocks[number](torch.relu(x) if self.relu_sums and number > 0 else x, parts)
        return out

    def top(self, h: Tensor, modulate: Modulation) -> tuple[Tensor, Tensor]:
        """Average pools of the plain and of the modulated last stage."""
        common = torch.relu(h)
        return _pooled(common), _pooled(modulate(0, h, common))


class _BasicBlock(nn.Module):
    """Two convolutions and a shortcut; the sum is not activated."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.norm1 = _conv3x3(inside, outside, stride), BatchNorm(outside)
        self.conv2, self.norm2 = _conv3x3(outside, outside, 1), BatchNorm(outside)
        self.shortcut: nn.Sequential | None = None
        if stride != 1 or inside != outside:
            project = Convolution(inside, outside, 1, stride=stride, bias=False)
            self.shortcut = nn.Sequential(project, BatchNorm(outside))

    def forward(self, x: Tensor, parts: tuple[int, ...]) -> Tensor:
        shortcut = x
        if self.shortcut is not None:
            project, norm = self.shortcut
            shortcut = norm(project(x), parts)
        y: Tensor = self.norm1(self.conv1(x), parts, then="relu")
        y = self.norm2(self.conv2(y), parts, shortcut=shortcut)
        return y


def _conv3x3(inside: int, outside: int, stride: int) -> Convolution:
    return Convolution(inside, outside, 3, stride=stride, padding=1, bias=False)


def _pooled(h: Tensor) -> Tensor:
    return h.mean((2, 3))
