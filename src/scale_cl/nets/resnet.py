"""The reduced ResNet-18 of the image streams: 20, 40, 80, 160 channels, FiLM on the last stage's output only."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from scale_cl.nets.backbone import Backbone, Modulation
from scale_cl.nets.convolution import Convolution
from scale_cl.nets.norm import BatchNorm


class ReducedResNet18(Backbone):
    """conv3x3, batch norm, ReLU, max-pool 3/2/1, then four stages of two basic blocks."""

    xavier = False
    detach_norms = True
    embedding_width = 64

    def __init__(
        self, channels: int = 3, width: int = 20, *, momentum: float = 0.1, generator: torch.Generator
    ) -> None:
        """Draw the convolutions from `generator`, distributed as torch's own default; `momentum` is batch norm's."""
        super().__init__()
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
        x = self.norm(self.conv(x), parts, then="relu-pool")
        for block in self.blocks:
            x = block(x, parts)
        return x

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
