"""PNN: Progressive Neural Networks. A column per task, which reads the frozen columns of earlier tasks.

Rusu et al., "Progressive Neural Networks", 2016. SCALE's paper says of it: "The pioneering approach is the progressive
neural network (PNN) where a new network column is integrated when handling a new task". With h_i^k the activation of
column k at site i, what the next layer sees is `h_i^k + U relu(V [s_j h_i^j] over j < k)`, with a learned scalar s_j:
the next layer's weights times U are the authors' lateral weights. Sites are the hidden layers of an MLP, and the ends
of the stages of a ResNet, where U and V are 1 x 1 convolutions; of another backbone, its features. The parameters of
column k grow with k. If a task comes back whose column others read, its head alone learns.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from scale_cl.engine import TaskShape
from scale_cl.learners.independent import Column, ColumnConfig, ColumnLearner
from scale_cl.learners.learner import Traits
from scale_cl.nets import MLP, Backbone, ReducedResNet18
from scale_cl.nets.backbones import unmodulated
from scale_cl.nets.growing_parameter import linear_rows
from scale_cl.settings import setting


@dataclass(frozen=True)
class PnnConfig(ColumnConfig):
    """Settings of PNN."""

    width: int = setting(
        0, "width of a column: units of the mlp's layers, channels of the resnet18's first stage; 0: as others", low=0
    )


class Lateral(nn.Module):
    """U relu(V [s_j h^j]), from the activations of earlier columns at one site."""

    def __init__(self, width: int, earlier: int, *, xavier: bool, generator: torch.Generator) -> None:
        """`width` channels, and so many earlier columns."""
        super().__init__()
        self.scale = nn.Parameter(torch.ones(earlier))
        v, bias = linear_rows((width,), width * earlier, xavier=xavier, generator=generator)
        u, _ = linear_rows((width,), width, xavier=xavier, generator=generator)
        self.v, self.bias, self.u = nn.Parameter(v), nn.Parameter(bias), nn.Parameter(u)

    def forward(self, earlier: list[Tensor]) -> Tensor:
        """[B, width] or [B, width, H, W], as each of `earlier`."""
        joined = torch.cat([s * h for s, h in zip(self.scale.unbind(), earlier, strict=True)], 1)
        if joined.dim() == 2:
            return F.linear(torch.relu(F.linear(joined, self.v, self.bias)), self.u)
        inside = torch.relu(F.conv2d(joined, self.v[:, :, None, None], self.bias))
        return F.conv2d(inside, self.u[:, :, None, None])


class ProgressiveColumn(Column):
    """A trunk with lateral connections at its sites."""

    def __init__(self, backbone: Backbone, earlier: int, *, generator: torch.Generator) -> None:
        """Take over `backbone`; there are so many earlier columns."""
        super().__init__(backbone)
        widths = site_widths(backbone) if earlier else []
        lateral = [Lateral(width, earlier, xavier=backbone.xavier, generator=generator) for width in widths]
        self.laterals = nn.ModuleList(lateral)

    def forward(self, x: Tensor, parts: tuple[int, ...], earlier: list[list[Tensor]]) -> tuple[list[Tensor], Tensor]:
        """Activations at the sites, for later columns, and features."""
        sites: list[Tensor] = []

        def read(h: Tensor) -> Tensor:
            """The site's activation with what comes from earlier columns."""
            number = len(sites)
            sites.append(h)
            return h + self.laterals[number]([column[number] for column in earlier]) if self.laterals else h

        if isinstance(self.backbone, MLP):
            h = x.flatten(1)
            for layer in self.backbone.layers:
                h = read(torch.relu(layer(h)))
        elif isinstance(self.backbone, ReducedResNet18):
            h = self.backbone.entry(x, parts)
            for i in range(len(self.backbone.blocks)):
                h = self.backbone.block(i, h, parts)
                if i % 2 and i + 1 < len(self.backbone.blocks):  # the end of a stage
                    h = read(h)
            h = read(torch.relu(h).mean((2, 3)))
        else:
            h = read(self.backbone.top(self.backbone.stem(x, parts), unmodulated)[0])
        return sites, h


class Pnn(ColumnLearner):
    """Plain SGD on the batch by a column of the task's own, which reads the earlier ones."""

    config_class = PnnConfig
    config: PnnConfig
    traits = Traits(task_specific_parameters=True, history_in_training=True, history_in_testing=True)
    laterals = True
    smaller = ("narrower columns", "width")

    def new_column(self, shape: TaskShape) -> ProgressiveColumn:
        """A column that reads those of the tasks before."""
        return ProgressiveColumn(self.trunk(), shape.task, generator=self.engine.weights_rng)


def site_widths(backbone: Backbone) -> list[int]:
    """Channels of each site with lateral connections."""
    if isinstance(backbone, MLP):
        return list(backbone.film_widths)
    if isinstance(backbone, ReducedResNet18):
        first = backbone.conv.out_channels
        return [first, 2 * first, 4 * first, backbone.feature_width]
    return [backbone.feature_width]
