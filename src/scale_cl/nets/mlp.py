"""The multi-layer perceptron of the permuted streams: 256-256, FiLM at each hidden layer."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn

from scale_cl.nets.backbone import Backbone, Modulation
from scale_cl.nets.blank import BlankLinear


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
