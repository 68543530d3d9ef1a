"""Private modules, one a task, beside a shared backbone: the networks of ACL.

A private module is small: one linear layer beside an MLP, two convolutions and a linear layer beside a ResNet. The
modules of all tasks are rows of the same tensors, so that prediction finds a task's own by a device index, and training
has views of the open task's rows as its parameters: nothing is computed for the other tasks.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from scale_cl.nets.backbones import MLP, Backbone, unmodulated
from scale_cl.nets.growing_parameter import GrowingParameter, linear_rows
from scale_cl.nets.heads import Heads
from scale_cl.nets.inputs import Inputs
from scale_cl.nets.model import ContinualNet, Outputs, TaskNet, Wrt

_GRID = 4  # what the linear layer sees of an image is at most 4 x 4


class PrivateModules(nn.Module):
    """From inputs to private features [B, width], by weights of each task's own."""

    def __init__(self, shape: tuple[int, ...], backbone: Backbone, *, channels: int = 32) -> None:
        """None yet; features are as wide as the backbone's, and the layers are drawn as it draws its own."""
        super().__init__()
        self.xavier = backbone.xavier
        self.pool = 1
        inputs = math.prod(shape)
        sizes = []  # outputs and inputs of each layer, the linear one last
        if len(shape) == 3 and not isinstance(backbone, MLP):
            sides = [-(-side // 4) for side in shape[1:]]  # after two convolutions of stride 2
            self.pool = max(1, min(sides) // _GRID)
            sizes += [(channels, 9 * shape[0]), (channels, 9 * channels)]
            inputs = channels * math.prod(side // self.pool for side in sides)
        sizes.append((backbone.feature_width, inputs))
        self.weights = nn.ModuleList(GrowingParameter(size, 1) for size in sizes)
        self.biases = nn.ModuleList(GrowingParameter(size[:1], 1) for size in sizes)

    @property
    def count(self) -> int:
        """How many tasks have one."""
        return self._rows()[0].count

    @property
    def capacity(self) -> int:
        """How many are allocated."""
        return self._rows()[0].capacity

    def add_task(self, *, generator: torch.Generator) -> None:
        """One more."""
        rows = self._rows()
        for weights, biases in zip(rows[::2], rows[1::2], strict=True):
            outputs, inputs = weights.data.shape[1:]
            weight, bias = linear_rows((outputs,), inputs, xavier=self.xavier, generator=generator)
            weights.add(weight.unsqueeze(0))
            biases.add(bias.unsqueeze(0))

    def own(self, task: int) -> list[Tensor]:
        """Weights and biases of a task, as leaves that share their storage with the rows."""
        return [rows.data[task].detach().requires_grad_() for rows in self._rows()]

    def forward(self, x: Tensor, task: Tensor) -> Tensor:
        """Features of samples [B, ...] that are all of one task, [1]."""
        return self.features(x, [rows.data.index_select(0, task)[0] for rows in self._rows()])

    def features(self, x: Tensor, own: list[Tensor]) -> Tensor:
        """Features of samples by the weights and biases of one task."""
        *convolutions, linear = zip(own[::2], own[1::2], strict=True)
        for weight, bias in convolutions:
            x = torch.relu(F.conv2d(x, weight.view(len(weight), -1, 3, 3), bias, stride=2, padding=1))
        if self.pool > 1:
            x = F.avg_pool2d(x, self.pool)
        return torch.relu(F.linear(x.flatten(1), *linear))

    def _rows(self) -> list[GrowingParameter]:
        """Weight and bias of each layer in turn."""
        rows = [part for pair in zip(self.weights, self.biases, strict=True) for part in pair]
        return [part for part in rows if isinstance(part, GrowingParameter)]


class SharedPrivateNet(ContinualNet):
    """A shared backbone and private modules; a head sees the features of both."""

    def __init__(
        self, inputs: Inputs, backbone: Backbone, heads: Heads, private: PrivateModules, most_tasks: int
    ) -> None:
        """Put the parts together for at most so many tasks; `heads` are twice as wide as the backbone's features."""
        super().__init__(inputs, backbone, heads, None)
        self.private, self.most_tasks = private, most_tasks

    def shared(self, x: Tensor) -> Tensor:
        """The shared features [B, width]."""
        features: Tensor = self.backbone.top(self.backbone.stem(x), unmodulated)[0]
        return features

    def forward(self, x: Tensor, task: Tensor, *, parts: tuple[int, ...] = (), wrt: Wrt = "all") -> Outputs:
        """Shared features, private and shared features together, and logits, of samples that are all of one task."""
        shared = self.backbone.top(self.backbone.stem(x, parts), unmodulated)[0]
        features = torch.cat([self.private(x, task[:1]), shared], 1)
        return Outputs(shared, features, self.heads(features, task))

    def for_task(self, task: int) -> nn.Module:
        """The network of task number `task` alone, with a copy of its private module."""
        return _TaskNet(self, task)

    def ensure_task(self, task: int, classes: int, *, generator: torch.Generator) -> None:
        """Make sure that head and private module of task number `task` exist."""
        super().ensure_task(task, classes, generator=generator)
        while self.private.count <= task:
            self.private.add_task(generator=generator)

    def base_parameters(self) -> dict[str, Tensor]:
        """Trunk and heads by name; the private modules are not part of what a weight average covers."""
        return {name: p for name, p in super().base_parameters().items() if not name.startswith("private.")}


class _TaskNet(TaskNet):
    """The shared backbone, one private module and one head."""

    def __init__(self, net: SharedPrivateNet, task: int) -> None:
        super().__init__(net.backbone, net.heads, None, task)
        own = net.private.own(task)
        self._count = len(own)
        for i, t in enumerate(own):
            self.register_buffer(f"own_{i}", t.detach().clone())
        self._private = net.private.features  # the bound method: the module holds the weights of all tasks

    def features(self, x: Tensor) -> Tensor:
        own = [self.get_buffer(f"own_{i}") for i in range(self._count)]
        shared = self.backbone.top(self.backbone.stem(x), unmodulated)[0]
        return torch.cat([self._private(x, own), shared], 1)
