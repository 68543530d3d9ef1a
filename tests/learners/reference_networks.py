"""The two trunks, written out plainly over dicts of tensors; batch norm by hand."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

Parameters = dict[str, Tensor]
Trunk = Callable[[Parameters, Tensor, Callable[[int, Tensor], Tensor], bool], tuple[Tensor, Tensor]]
"""Parameters, inputs, FiLM at a site, training? -> common features and features for the head."""


def mlp(p: Parameters, x: Tensor, film: Callable[[int, Tensor], Tensor], training: bool) -> tuple[Tensor, Tensor]:
    """inputs - 256 - 256, a FiLM at each hidden layer."""
    h1 = x.flatten(1) @ p["layers.0.weight"].T + p["layers.0.bias"]
    h2 = film(0, h1) @ p["layers.1.weight"].T + p["layers.1.bias"]
    return torch.relu(h2), film(1, h2)


class ResNet:
    """The reduced ResNet-18; it keeps the running statistics of its batch norms."""

    def __init__(self) -> None:
        self.running: Parameters = {}
        self.share = 0.1  # of a batch in them

    def __call__(
        self, p: Parameters, x: Tensor, film: Callable[[int, Tensor], Tensor], training: bool
    ) -> tuple[Tensor, Tensor]:
        h = torch.relu(self._norm(p, "norm", F.conv2d(x, p["conv.weight"], padding=1), training))
        h = F.max_pool2d(h, kernel_size=3, stride=2, padding=1)
        for number in range(8):  # four stages of two
            block = f"blocks.{number}"
            stride = 2 if number in (2, 4, 6) else 1
            inside = torch.relu(self._norm(p, f"{block}.norm1", _conv(h, p, f"{block}.conv1", stride), training))
            inside = self._norm(p, f"{block}.norm2", _conv(inside, p, f"{block}.conv2", 1), training)
            if stride == 2:
                h = F.conv2d(h, p[f"{block}.shortcut.0.weight"], stride=2)
                h = self._norm(p, f"{block}.shortcut.1", h, training)
            h = h + inside  # and no activation
        return torch.relu(h).mean((2, 3)), film(0, h).mean((2, 3))

    def _norm(self, p: Parameters, name: str, h: Tensor, training: bool) -> Tensor:
        mean_name, variance_name = f"{name}.running_mean", f"{name}.running_var"
        if training:
            mean, variance = h.mean((0, 2, 3)), h.var((0, 2, 3), correction=0)
            n = h.numel() / h.shape[1]
            for key, new in ((mean_name, mean), (variance_name, variance * n / (n - 1))):
                self.running[key] = (1 - self.share) * self.running[key] + self.share * new.detach()
        else:
            mean, variance = self.running[mean_name], self.running[variance_name]
        mean, variance = mean[None, :, None, None], variance[None, :, None, None]
        scaled = (h - mean) / torch.sqrt(variance + 1e-5)
        return scaled * p[f"{name}.weight"][None, :, None, None] + p[f"{name}.bias"][None, :, None, None]


def _conv(h: Tensor, p: Parameters, name: str, stride: int) -> Tensor:
    return F.conv2d(h, p[f"{name}.weight"], stride=stride, padding=1)
