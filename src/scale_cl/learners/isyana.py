"""ISYANA: inter-task synaptic mapping. A neuron is held unless it serves classes that are near the present task.

Mao, Weng, Pratama and Yee, "Continual Learning via Inter-Task Synaptic Mapping", 2021. SCALE's paper says of it: "[It]
follows the same principle as [NPC] and goes one step further using the concept of inter-task similarity. Such approach
allows a node to be shared across related tasks". R_jc in [0, 1] says how much neuron j and the output of class c have
in common: their mutual information as Gaussian variables, relative to their entropies. With s_c, how near class c is to
the present task, `omega_j = exp(-sharing * mean over c of R_jc s_c)`: a neuron of near classes is free to be
shared, one of far classes is held, by the penalty `sum of omega_j |w_j - w_j before the task|^2` and by its learning
rate, `lr * exp(-omega_j - 0.1)`.

Adapted to one pass: R is the mean over the batches of a task, as ten samples say little (the authors take the last
batch of 128); s_c is the inverse of the distance between the mean features of class and task, relative to their lengths
(the authors' is that of a divergence between clusters in the latent space of an autoencoder that they train beside);
its mean over classes of other tasks replaces the sum, which would grow with the tasks until nothing is held, and in
which the authors count the task's own classes too, with s_c = 1; lr scales the authors' rates, which is 1 for them. A
neuron is a unit of a linear layer or, beyond the authors' MLP, a channel of a convolution.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from scale_cl.engine import Batch, Engine, LearnerConfig
from scale_cl.engine.network import Hook, Layer, layers_of, watched
from scale_cl.errors import ConfigError
from scale_cl.learners.class_tables import ClassTables
from scale_cl.learners.learner import Learner, StepSize, Traits
from scale_cl.losses import NO_CLASS, cross_entropy
from scale_cl.settings import setting

_ENTROPY_FLOOR = 0.01  # added to the entropies, which may be zero
_ALIKE = 1 - 1e-6  # squared correlation from which on neuron and class count as the same
_NEAR = 1e-2  # smaller distances count as this one


@dataclass(frozen=True)
class IsyanaConfig(LearnerConfig):
    """Settings of ISYANA."""

    lr: float = setting(0.03, "learning rate of the weights into a neuron, before it is lowered by omega", above=0)
    other_lr: float = setting(0.03, "learning rate of biases, batch norms and heads", above=0)
    penalty: float = setting(0.1, "weight of the penalty on weights that move away from where the task began", low=0)
    sharing: float = setting(1.0, "how much nearness to the classes that a neuron serves frees it", low=0)
    epochs: int = setting(1, "passes over a task's data; the authors make many, an online learner one", low=1)


class SynapticMap(ClassTables):
    """R of neurons and classes, and mean features of classes."""

    running_relevance: Tensor  # [tasks, classes, neurons] R
    running_batches: Tensor  # [tasks] batches in R
    running_features: Tensor  # [tasks, classes, width] mean features
    running_count: Tensor  # [tasks, classes] samples in them

    def __init__(self, neurons: int, width: int) -> None:
        """No task yet."""
        super().__init__()
        self.table("running_relevance", "tc", neurons)
        self.table("running_batches", "t")
        self.table("running_features", "tc", width)
        self.table("running_count", "tc")

    def note(self, task: Tensor, relevance: Tensor, features: Tensor, y: Tensor) -> None:
        """Take a batch of task number `task` []: R [classes, neurons], and the features [B, width] of its samples."""
        here = torch.arange(len(self.running_batches), device=task.device) == task  # [tasks]
        self.running_batches += here.to(self.running_batches)
        share = (here / self.running_batches.clamp(min=1)).to(relevance)[:, None, None]
        self.running_relevance.lerp_(relevance.expand_as(self.running_relevance), share)
        classes = torch.arange(self.running_count.shape[1], device=y.device)
        own = (classes.unsqueeze(1) == y).to(features)  # [classes, B]
        count = own.sum(1) * here.to(features).unsqueeze(1)  # [tasks, classes]
        self.running_count += count
        mean = own @ features / own.sum(1, keepdim=True).clamp(min=1)
        self.running_features.lerp_(mean.expand_as(self.running_features), _share(count, self.running_count))

    def omega(self, task: Tensor, sharing: float) -> Tensor:
        """How much each neuron is held [neurons], in (0, 1]; 0 if there is no class of another task."""
        here = (torch.arange(len(self.running_batches), device=task.device) == task).unsqueeze(1)  # [tasks, 1]
        own = torch.where(here, self.running_count, torch.zeros_like(self.running_count)).unsqueeze(2)
        now = (own * self.running_features).sum((0, 1)) / own.sum().clamp(min=1)
        lengths = self.running_features.norm(dim=2) + now.norm()
        distance = (self.running_features - now).norm(dim=2) / lengths.clamp(min=torch.finfo(now.dtype).tiny)
        counts = ((self.running_count > 0) & ~here).to(now)  # [tasks, classes] the others
        nearness = counts / distance.clamp(min=_NEAR) / counts.sum().clamp(min=1)
        served = nearness.flatten() @ self.running_relevance.flatten(0, 1)
        return torch.exp(-sharing * served) * (counts.sum() > 0)


class Isyana(Learner):
    """CE(batch) + penalty * sum over neurons of omega |w - w before|^2, with a rate per neuron."""

    config_class = IsyanaConfig
    needs_boundaries = True
    config: IsyanaConfig
    traits = Traits(history_in_training=True)
    after = "npc"

    def build(self, engine: Engine) -> None:
        """Declare the network, the weights as they were before the task, and the map of neurons and classes."""
        self.network = engine.network()
        trained = self.network.base.named
        self.layers = [layer for layer in layers_of(self.net) if f"backbone.{layer.name}.weight" in trained]
        if not self.layers:
            raise ConfigError(f"{self.name} needs weights into units that are trained; the backbone's are frozen")
        self.held = engine.weights(self.incoming)
        self.before = engine.like("before", self.held, changes="task")
        neurons = sum(layer.width for layer in self.layers)
        self.map = engine.part("map", lambda: SynapticMap(neurons, engine.backbone.feature_width))

    def incoming(self) -> Mapping[str, Tensor]:
        """The weights into neurons; biases, batch norms and heads are not held."""
        names = {f"backbone.{layer.name}.weight" for layer in self.layers}
        return {name: p for name, p in self.network.base.named.items() if name in names}

    def update(self, batch: Batch) -> None:
        """One step of SGD in which every neuron has a rate and a penalty of its own."""
        c, samples, base = self.config, self.engine.samples(batch), self.network.base
        with watched(self.net, self.layers, noting) as found:
            out = self.network(samples)
        ce = cross_entropy(out.logits, samples.y)
        gradient = base.gradient(ce)
        with torch.no_grad():
            for layer in self.layers:  # a layer is not called if others use its weights, as in attention
                if layer.name not in found:
                    found[layer.name] = out.features.new_zeros(len(out.features), layer.width)
            hidden = torch.cat([found[layer.name] for layer in self.layers], 1)
            kept = self.kept_map()
            logits = out.logits[:, : kept.running_count.shape[1]]
            kept.note(self.engine.task, relevance(hidden, logits), out.features.detach(), samples.y)
            omega = dict(zip(self.held.named, self.omegas(), strict=True))
            penalty = ce.new_zeros(())
            for i, name in enumerate(base.named):
                own = omega.get(name)
                if own is None:
                    gradient[i] = gradient[i] * c.other_lr
                    continue
                way = self.held.named[name] - self.before.named[name]
                penalty += c.penalty * (own * way.square()).sum()
                gradient[i] = (gradient[i] + 2 * c.penalty * own * way) * (c.lr * torch.exp(-own - 0.1))
            self.log(ce=ce, penalty=penalty, loss=ce + penalty)
            base.move(gradient, 1.0)

    def omegas(self) -> list[Tensor]:
        """Omega of every tensor that is held, to be multiplied with it."""
        each = self.kept_map().omega(self.engine.task, self.config.sharing)
        parts = each.split([layer.width for layer in self.layers])
        shapes = [w.shape for w in self.held.tensors]
        return [part.view(-1, *[1] * (len(shape) - 1)) for part, shape in zip(parts, shapes, strict=True)]

    def kept_map(self) -> SynapticMap:
        """The map's module."""
        assert isinstance(self.map.module, SynapticMap)
        return self.map.module

    def task_ended(self, task: int) -> None:
        """Weights are held where they are now."""
        self.before.set(self.held.tensors)

    @classmethod
    def step_size(cls, config: Any, batch: int, stored: int, tasks: int) -> StepSize:
        """The batch, a gradient, and what moves a tensor."""
        return StepSize(batch, copies=3)


def noting(layer: Layer, found: dict[str, Tensor]) -> Hook:
    """A forward hook that notes the activations of a layer's neurons, averaged over space."""

    def hook(_module: nn.Module, _inputs: Any, out: Tensor) -> None:
        channel = out.dim() - 1 if layer.is_linear else 1
        others = [d for d in range(1, out.dim()) if d != channel]
        activation = torch.relu(out.detach())
        found[layer.name] = activation.mean(others) if others else activation

    return hook


def relevance(hidden: Tensor, logits: Tensor) -> Tensor:
    """R [classes, neurons] in [0, 1] of neurons [B, neurons] and outputs [B, classes]; 0 where one of them is constant.

    I = -1/2 ln(1 - rho^2), relative to the mean of the two entropies; an output that does not exist is constant.
    """
    exact = torch.promote_types(hidden.dtype, torch.float32)
    h, o = hidden.to(exact), logits.detach().to(exact)
    o = torch.where(o == NO_CLASS, torch.zeros_like(o), o)
    h, o = h - h.mean(0), o - o.mean(0)
    freedom = max(len(h) - 1, 1)
    of_neurons, of_classes = h.square().sum(0) / freedom, o.square().sum(0) / freedom
    product = of_classes.unsqueeze(1) * of_neurons
    squared = (o.T @ h / freedom).square() / product.clamp(min=torch.finfo(product.dtype).tiny)
    information = -0.5 * torch.log1p(-squared.clamp(max=_ALIKE))
    entropies = _entropy(of_classes).unsqueeze(1) + _entropy(of_neurons)
    found = (2 * information / (entropies + _ENTROPY_FLOOR)).clamp(max=1)
    return torch.where(squared >= _ALIKE, torch.ones_like(found), found).to(hidden)


def _entropy(variance: Tensor) -> Tensor:
    """Of a Gaussian variable, in nats; not below 0."""
    tiny = torch.finfo(variance.dtype).tiny
    return (0.5 * (1 + math.log(2 * math.pi) + variance.clamp(min=tiny).log())).clamp(min=0)


def _share(new: Tensor, total: Tensor) -> Tensor:
    """The share [..., 1] of new samples in all."""
    return (new / total.clamp(min=1)).unsqueeze(-1)
