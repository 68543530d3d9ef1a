"""ACL: Adversarial Continual Learning. A shared module by which tasks cannot be told apart, and a private one per task.

Ebrahimi, Meier, Calandra, Darrell and Rohrbach (2020), without their replay of single samples. There is no memory: a
finished task is remembered by its private module and head, which are never trained again, and is predicted by them with
the current shared module. A weight average covers the shared module and the heads only.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from scale_cl.engine import Batch, Engine, LearnerConfig, Samples, TaskShape
from scale_cl.learners.learner import Learner, StepSize, Traits
from scale_cl.losses import cross_entropy, entropy
from scale_cl.nets import Heads
from scale_cl.nets.acl_net import PrivateModules, SharedPrivateNet
from scale_cl.nets.growing_parameter import linear_rows
from scale_cl.settings import setting


@dataclass(frozen=True)
class AclConfig(LearnerConfig):
    """Settings of ACL; the defaults are its authors' for CIFAR-100, apart from the epochs."""

    lr: float = setting(0.01, "learning rate of the shared and private modules and the heads", above=0)
    discriminator_lr: float = setting(0.001, "learning rate of the discriminator", above=0)
    momentum: float = setting(0.9, "of the modules and heads; the discriminator has none", low=0, below=1)
    weight_decay: float = setting(0.01, "of modules, heads and discriminator", low=0)
    adversarial: float = setting(0.05, "weight of the adversarial loss", low=0)
    orthogonal: float = setting(0.1, "weight of the loss that keeps shared and private features apart", low=0)
    shared_steps: int = setting(5, "steps of modules and heads per batch", low=1)
    discriminator_steps: int = setting(1, "steps of the discriminator per batch", low=1)
    discriminator_units: int = setting(175, "width of the discriminator's two hidden layers", low=1)
    private_channels: int = setting(32, "channels of a private module's convolutions", low=1)
    task_heads: bool = setting(True, "a head per task on every stream; off: one head where the stream has one for all")
    epochs: int = setting(1, "passes over a task's data; the authors make 200, an online learner one", low=1)
    max_tasks: int = setting(100, "most tasks; another one is refused, as the network grows with each", low=1)


class Acl(Learner):
    """An adversarial shared module and a private module per task, no memory."""

    config_class = AclConfig
    traits = Traits(task_specific_parameters=True, history_in_testing=True)
    update_settings = ("shared_steps",)
    needs_boundaries = True
    config: AclConfig

    def build(self, engine: Engine) -> None:
        """Declare the network, the discriminator of the open task, and the momentum of what is trained."""
        c, backbone = self.config, engine.backbone
        shared = engine.spec.scenario == "domain" and not c.task_heads
        heads = Heads(2 * backbone.feature_width, shared=shared, xavier=backbone.xavier)
        private = PrivateModules(engine.spec.shape, backbone, channels=c.private_channels)
        self.module = SharedPrivateNet(engine.inputs(), backbone, heads, private, c.max_tasks)
        self.network = engine.network(self.module)
        self.discriminator = engine.task_part("discriminator", self.new_discriminator)
        self.trained = engine.weights(self.open_parameters)
        self.momentum = engine.like("momentum", self.trained, changes="step")

    def update(self, batch: Batch) -> None:
        """Steps of modules and head, then of the discriminator."""
        c = self.config
        for _ in range(c.shared_steps):
            self.shared_step(self.engine.samples(batch))
        with torch.no_grad():
            shared = self.module.shared(self.engine.prepared(batch.x))
        for _ in range(c.discriminator_steps):
            self.discriminator_step(shared)

    def shared_step(self, samples: Samples) -> None:
        """CE + adv * CE(D(S(x) with its gradient reversed)) + orth * mean((S P')^2)."""
        c, x, y = self.config, samples.x, samples.y
        head, own = self.open_rows()
        shared, private = self.module.shared(x), self.module.private.features(x, own)
        logits = F.linear(torch.cat([private, shared], 1), *head)
        ce = cross_entropy(logits, y)
        # reversing the gradient where it enters S means to ascend this loss: D is held fixed here
        confusion = cross_entropy(self.discriminator(shared), (self.engine.task + 1).expand(len(y)))
        overlap = (unit(shared) @ unit(private).T).square().mean()
        loss = ce - c.adversarial * confusion + c.orthogonal * overlap
        self.log(ce=ce, adversarial=confusion, orthogonal=overlap, loss=loss)
        if c.entropy > 0:  # these forwards are not the network's, which adds it otherwise
            loss = loss - c.entropy * entropy(logits)
        gradient = self.trained.gradient(loss)
        with torch.no_grad():
            torch._foreach_add_(gradient, self.trained.tensors, alpha=c.weight_decay)
            torch._foreach_mul_(self.momentum.tensors, c.momentum)
            torch._foreach_add_(self.momentum.tensors, gradient)
        self.trained.move(self.momentum.tensors, c.lr)
        self.network.base.follow()

    def discriminator_step(self, shared: Tensor) -> None:
        """D descends CE(D(S(x)), task) + CE(D(noise), 0)."""
        c, n, weights = self.config, len(shared), self.discriminator.weights
        guess = self.discriminator(torch.cat([shared, self.engine.randn(shared)]))
        label = torch.zeros(2, n, dtype=torch.int64, device=self.device)
        label[0] = self.engine.task + 1
        loss = cross_entropy(guess[:n], label[0]) + cross_entropy(guess[n:], label[1])
        self.log(discriminator=loss)
        gradient = weights.gradient(loss)
        with torch.no_grad():
            torch._foreach_add_(gradient, weights.tensors, alpha=c.weight_decay)
        weights.move(gradient, c.discriminator_lr)

    def task_began(self, task: int) -> None:
        """A task has a momentum of its own; one that continues at once keeps it."""
        if self.discriminator.is_new:
            self.momentum.reset()

    def open_parameters(self) -> Mapping[str, Tensor]:
        """Trunk, and head and private module of the task that is trained: views of their rows."""
        shape = self.discriminator.shape
        if shape is None:
            return {}
        heads = self.module.heads
        head = 0 if heads.shared else shape.task
        rows = [p.data[head][: shape.classes] for p in (heads.weight, heads.bias)]
        trunk = [p for p in self.module.backbone.parameters() if p.requires_grad]
        own = [row.detach().requires_grad_() for row in rows] + self.module.private.own(shape.task)
        return {str(i): p for i, p in enumerate([*trunk, *own])}

    def open_rows(self) -> tuple[list[Tensor], list[Tensor]]:
        """Weight and bias of the open task's head, and the weights of its private module."""
        private = len(self.module.private.weights) + len(self.module.private.biases)
        tensors = self.trained.tensors
        return tensors[-private - 2 : -private], tensors[-private:]

    def new_discriminator(self, shape: TaskShape) -> nn.Sequential:
        """From features to noise (0) or the task they come from (its number + 1)."""
        units = self.config.discriminator_units
        widths = (self.engine.backbone.feature_width, units, units, shape.tasks + 1)
        layers = [nn.Linear(inputs, out, device="meta") for inputs, out in itertools.pairwise(widths)]
        for layer in layers:
            outputs = (layer.out_features,)
            weight, bias = linear_rows(outputs, layer.in_features, xavier=False, generator=self.engine.weights_rng)
            layer.weight, layer.bias = nn.Parameter(weight), nn.Parameter(bias)
        first, second, last = layers
        return nn.Sequential(first, nn.LeakyReLU(), second, last)

    @classmethod
    def step_size(cls, config: Any, batch: int, stored: int, tasks: int) -> StepSize:
        """The batch; gradients and decayed gradients."""
        return StepSize(batch, copies=2)


def unit(rows: Tensor) -> Tensor:
    """Rows of length one; the lengths are constants to the gradient, as in the authors' code."""
    lengths: Tensor = torch.linalg.vector_norm(rows, dim=1, keepdim=True).detach()
    return rows / (lengths + 1e-6)
