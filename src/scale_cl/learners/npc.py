"""NPC: Neuron-level Plasticity Control. The more important a neuron, the slower its incoming weights learn.

Paik, Oh, Kwak and Kim, "Overcoming Catastrophic Forgetting by Neuron-level Plasticity Control", 2020. SCALE's paper
says of it: "The regularization strategy is better performed in the neuron level rather than in the synaptic level".
There is no penalty and no task boundary: importance is a running mean over all steps. A neuron is a unit of a linear
layer or a channel of a convolution, with the batch norm that follows it.

Slow weights alone would not keep a neuron as it is while the running statistics of its batch norm drift, so these move
at the neuron's own pace too. Heads, and parameters of other kinds of layers, learn at the full rate.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from scale_cl.engine import Batch, Engine, LearnerConfig
from scale_cl.engine.network import Hook, Layer, layers_of, watched
from scale_cl.learners.learner import Learner, StepSize, Traits
from scale_cl.losses import cross_entropy
from scale_cl.nets.custom_backbone import AnyBatchNorm
from scale_cl.settings import setting


@dataclass(frozen=True)
class NpcConfig(LearnerConfig):
    """Settings of NPC."""

    lr: float = setting(0.03, "largest learning rate, of neurons without importance: eta_max", above=0)
    alpha: float = setting(0.01, "scale of the learning rate of important neurons", above=0)
    beta: float = setting(1.0, "importance at which that rate falls off, where 1 is usual in a layer", above=0)
    inertia: float = setting(0.99, "share of the running mean of importance that stays in a step", low=0, below=1)


class Npc(Learner):
    """CE(batch), with rate min(eta_max, alpha * sqrt(exp(beta / importance) - 1)) for the weights into a neuron."""

    config_class = NpcConfig
    config: NpcConfig
    traits = Traits(history_in_training=True)

    def build(self, engine: Engine) -> None:
        """Declare the network, and the importance of all its neurons side by side."""
        self.network = engine.network()
        self.layers = layers_of(self.net)
        self.importance = engine.tensor(
            "importance", torch.zeros(sum(layer.width for layer in self.layers)), changes="step"
        )

    def update(self, batch: Batch) -> None:
        """One step of SGD in which every neuron has a rate of its own."""
        samples, before = self.engine.samples(batch), self.statistics()
        with watched(self.net, self.layers, noting) as found:
            loss = cross_entropy(self.network(samples).logits, samples.y)
            gradient = self.network.base.gradient(loss)
        self.log(loss=loss)
        with torch.no_grad():
            now = torch.cat([found.get(layer.name, self.importance.new_zeros(layer.width)) for layer in self.layers])
            self.importance.lerp_(now.to(self.importance), 1 - self.config.inertia)
            paces = dict(zip(self.layers, self.paces().split([layer.width for layer in self.layers]), strict=True))
            self.hold_statistics(before, paces)
            self.network.base.move(self.paced(gradient, paces), self.config.lr)

    def paces(self) -> Tensor:
        """The rate of each neuron as a share of the largest: 1 for a neuron without importance."""
        c = self.config
        rates: Tensor = c.alpha * torch.special.expm1(c.beta / self.importance).sqrt()
        return (rates / c.lr).clamp(max=1)

    def paced(self, gradient: list[Tensor], paces: dict[Layer, Tensor]) -> list[Tensor]:
        """The gradient, with the part of every neuron multiplied by its pace."""
        owners = {f"backbone.{part}.": pace for layer, pace in paces.items() for part in layer.parts}
        out = []
        for name, g in zip(self.network.base.named, gradient, strict=True):
            pace = owners.get(f"{name.rpartition('.')[0]}.")
            out.append(g if pace is None else g * pace.to(g).view(-1, *[1] * (g.dim() - 1)))
        return out

    # ---- batch norm --------------------------------------------------------------------------------------------------

    def norms(self) -> Iterator[tuple[Layer, AnyBatchNorm]]:
        """The batch norms with running statistics, and the neurons that they belong to."""
        for layer in self.layers:
            module = self.net.backbone.get_submodule(layer.parts[-1])
            if isinstance(module, AnyBatchNorm) and module.running_mean is not None:
                yield layer, module

    def statistics(self) -> list[tuple[Tensor, Tensor]]:
        """Copies of all running means and variances."""
        pairs = ((norm.running_mean, norm.running_var) for _, norm in self.norms())
        return [(mean.clone(), var.clone()) for mean, var in pairs if mean is not None and var is not None]

    def hold_statistics(self, before: list[tuple[Tensor, Tensor]], paces: dict[Layer, Tensor]) -> None:
        """Let running statistics go only as much of their way as the neuron's pace says."""
        for (layer, norm), (mean, var) in zip(self.norms(), before, strict=True):
            assert norm.running_mean is not None
            assert norm.running_var is not None
            norm.running_mean.copy_(mean.lerp(norm.running_mean, paces[layer].to(mean)))
            norm.running_var.copy_(var.lerp(norm.running_var, paces[layer].to(var)))

    @classmethod
    def step_size(cls, config: Any, batch: int, stored: int, tasks: int) -> StepSize:
        """The batch, and a copy of every activation; two gradients."""
        return StepSize(2 * batch, copies=2)


def noting(layer: Layer, found: dict[str, Tensor]) -> Hook:
    """A forward hook that notes the layer's importance: mean |a dL/da|, divided by its root mean square."""

    def hook(_module: nn.Module, _inputs: Any, out: Tensor) -> None:
        if not out.requires_grad:
            return
        activation = out.detach()

        def note(gradient: Tensor) -> None:
            mean = layer.activation_mean((activation * gradient).abs())
            scale = mean.square().mean().sqrt()
            found[layer.name] = mean / scale.clamp(min=torch.finfo(mean.dtype).tiny)

        out.register_hook(note)

    return hook
