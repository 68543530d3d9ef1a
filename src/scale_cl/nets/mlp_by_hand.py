"""The MLP with one head, forward and backward written out, with FiLM or without it.

Batches of ten on small layers spend much of their time in the bookkeeping of automatic differentiation. On a CPU this
is the cheaper way to the gradients that autograd would give (a test compares them).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from scale_cl.nets.mlp import MLP
from scale_cl.nets.model import ContinualNet

_SCALE, _SHIFT = 0, 1


@dataclass
class _Site:
    """A hidden layer."""

    inputs: Tensor  # [m, ...] of its linear layer
    h: Tensor  # [m, width] its pre-activation
    common: Tensor  # relu(h)
    film: tuple[Tensor, Tensor] | None = None  # relu(scale * h + shift), and the scale


@dataclass
class Pass:
    """A forward with what its gradients need."""

    sites: list[_Site]
    features: Tensor  # [m, width]
    logits: Tensor  # [m, C]

    @property
    def common(self) -> Tensor:
        """The common features, [m, width]."""
        return self.sites[-1].common


class MlpByHand:
    """Forward and gradients of a network of which this is the trunk and the only head."""

    def __init__(self, net: ContinualNet) -> None:
        """For a network to which it `applies`; to be made anew when parameters have moved."""
        layers = cast("Iterable[nn.Linear]", cast(MLP, net.backbone).layers)
        self._layers = [(layer.weight.detach(), layer.bias.detach()) for layer in layers]
        self._head = net.heads.weight.data.detach().flatten(0, 1), net.heads.bias.data.detach().flatten()

    @staticmethod
    def applies(net: ContinualNet) -> bool:
        """Whether the network is of this kind; all of the layers must be trained, and equally wide."""
        return (
            type(net.backbone) is MLP
            and len(set(net.backbone.film_widths)) == 1
            and net.heads.shared
            and all(p.requires_grad for p in net.backbone.parameters())
        )

    def forward(self, x: Tensor, films: Tensor | None = None) -> Pass:
        """Features and logits of prepared samples [m, ...]; `films` [m, sites, 2, width] are scales and shifts."""
        features, sites = x.flatten(1), list[_Site]()
        for number, (weight, bias) in enumerate(self._layers):
            h = torch.addmm(bias, features, weight.t())
            site = _Site(features, h, h.relu())
            features = site.common
            if films is not None:
                scale, shift = films[:, number, _SCALE], films[:, number, _SHIFT]
                private = torch.addcmul(shift, scale, h).relu_()
                features, site.film = site.common + private, (private, scale)
            sites.append(site)
        weight, bias = self._head
        return Pass(sites, features, torch.addmm(bias, features, weight.t()))

    def descend(self, passed: Pass, rate: float, at_logits: Tensor, at_common: Tensor | None = None) -> None:
        """A step of plain SGD, from the gradients at the logits and at the common features."""
        found = self._backward(passed, at_logits, at_common)
        for (site, at_h, _), (weight, bias) in zip(found, reversed(self._layers), strict=True):
            descend_linear(weight, bias, site.inputs, at_h, rate)
        descend_linear(*self._head, passed.features, at_logits, rate)

    def film_gradients(self, passed: Pass, at_logits: Tensor, at_common: Tensor) -> Tensor:
        """[m, sites, 2, width] of each sample's scales and shifts."""
        m, width, number = *passed.features.shape, len(passed.sites)
        found = passed.features.new_empty(m, number, 2, width)
        for site, _, at_private in self._backward(passed, at_logits, at_common):
            number -= 1
            torch.mul(at_private, site.h, out=found[:, number, _SCALE])
            found[:, number, _SHIFT] = at_private
        return found

    def _backward(
        self, passed: Pass, at_logits: Tensor, at_common: Tensor | None
    ) -> list[tuple[_Site, Tensor, Tensor]]:
        """From the last site to the first: the gradient at h, and with FiLM at scale * h + shift."""
        at_features, found = at_logits @ self._head[0], list[tuple[_Site, Tensor, Tensor]]()
        for site, (weight, _) in zip(reversed(passed.sites), reversed(self._layers), strict=True):
            of_last = at_common if site is passed.sites[-1] else None
            at_h = through_relu(at_features if of_last is None else at_features + of_last, site.common)
            at_private = at_h
            if site.film is not None:
                private, scale = site.film
                at_private = through_relu(at_features, private)
                at_h.addcmul_(at_private, scale)
            found.append((site, at_h, at_private))
            if site is not passed.sites[0]:
                at_features = at_h @ weight
        return found


def through_relu(gradient: Tensor, activated: Tensor) -> Tensor:
    """The gradient before a ReLU whose output is `activated`."""
    before: Tensor = torch.ops.aten.threshold_backward(gradient, activated, 0)
    return before


def descend_linear(weight: Tensor, bias: Tensor, inputs: Tensor, at_outputs: Tensor, rate: float) -> None:
    """A step of plain SGD for a linear layer; the gradient is never stored, but added to the weight as it is made."""
    weight.addmm_(at_outputs.t(), inputs, alpha=-rate)
    bias.sub_(at_outputs.sum(0), alpha=rate)
