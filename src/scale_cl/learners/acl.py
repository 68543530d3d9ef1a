"""ACL: Adversarial Continual Learning. A shared module by which tasks cannot be told apart, and a private one a task.

There is no memory: a finished task is remembered by its private module and head, which are never trained again, and
is predicted by them with the shared module of the day. A weight average covers the shared module and the heads only.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from scale_cl.learners.base import Learner, LearnerConfig, State, StepStats, plain_copy
from scale_cl.learners.traits import Traits
from scale_cl.losses import cross_entropy
from scale_cl.nets import ContinualNet, Heads
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
    shared_steps: int = setting(5, "steps of modules and heads a batch", low=1)
    discriminator_steps: int = setting(1, "steps of the discriminator a batch", low=1)
    discriminator_units: int = setting(175, "width of the discriminator's two hidden layers", low=1)
    private_channels: int = setting(32, "channels of a private module's convolutions", low=1)
    task_heads: bool = setting(True, "a head a task on every stream; off: one head where the stream has one for all")
    epochs: int = setting(1, "passes over a task's data; the authors make 200, an online learner one", low=1)


class Acl(Learner):
    """Ebrahimi, Meier, Calandra, Darrell and Rohrbach (2020), without their replay of single samples."""

    config_class = AclConfig
    traits = Traits(task_specific_parameters=True, history_in_testing=True)
    config: AclConfig
    net: SharedPrivateNet

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """As `Learner`."""
        super().__init__(*args, **kwargs)
        self.discriminator: nn.Sequential | None = None
        self._private: list[Tensor] = []  # of the open task
        self._head: list[Tensor] = []
        self._momentum: list[Tensor] = []  # of trunk, head and private module, in this order
        self._trained: list[int] | None = None  # number and classes of the task that momentum and discriminator are of

    def _update(self, x: Tensor, y: Tensor) -> StepStats:
        stats = StepStats()
        for _ in range(self.config.shared_steps):
            self._shared_step(self._prepared(x), y, stats)
        with torch.no_grad():
            shared = self.net.shared(self._prepared(x))
        for _ in range(self.config.discriminator_steps):
            self._discriminator_step(shared, stats)
        return stats

    def _shared_step(self, x: Tensor, y: Tensor, stats: StepStats) -> None:
        """CE + adv * CE(D(S(x) with its gradient reversed)) + orth * mean((S P')^2)."""
        c = self.config
        assert self.discriminator is not None
        shared, private = self.net.shared(x), self.net.private.features(x, self._private)
        ce = cross_entropy(F.linear(torch.cat([private, shared], 1), *self._head), y)
        # to reverse the gradient where it enters S is to ascend this loss: D is held fixed here
        confusion = cross_entropy(self.discriminator(shared), (self._task + 1).expand(len(y)))
        overlap = (_unit(shared) @ _unit(private).T).square().mean()
        loss = ce - c.adversarial * confusion + c.orthogonal * overlap
        stats["ce"], stats["adversarial"], stats["orthogonal"] = ce.detach(), confusion.detach(), overlap.detach()
        stats["loss"] = loss.detach()
        trained = self._trained_parameters()
        gradients = list(torch.autograd.grad(loss, trained))
        with torch.no_grad():
            torch._foreach_add_(gradients, trained, alpha=c.weight_decay)
            torch._foreach_mul_(self._momentum, c.momentum)
            torch._foreach_add_(self._momentum, gradients)
            torch._foreach_add_(trained, self._momentum, alpha=-c.lr)
        self._update_average()

    def _discriminator_step(self, shared: Tensor, stats: StepStats) -> None:
        """D descends CE(D(S(x)), task) + CE(D(noise), 0)."""
        c = self.config
        assert self.discriminator is not None
        noise = torch.randn(shared.shape, generator=self._rng, device=self.device, dtype=shared.dtype)
        guess = self.discriminator(torch.cat([shared, noise]))
        label = torch.zeros(2, len(shared), dtype=torch.int64, device=self.device)
        label[0] = self._task + 1
        loss = cross_entropy(guess[: len(shared)], label[0]) + cross_entropy(guess[len(shared) :], label[1])
        stats["discriminator"] = loss.detach()
        parameters: list[Tensor] = list(self.discriminator.parameters())
        gradients = list(torch.autograd.grad(loss, parameters))
        with torch.no_grad():
            torch._foreach_add_(gradients, parameters, alpha=c.weight_decay)
            torch._foreach_add_(parameters, gradients, alpha=-c.discriminator_lr)

    def _trained_parameters(self) -> list[Tensor]:
        trunk = [p for p in self.net.backbone.parameters() if p.requires_grad]
        return [*trunk, *self._head, *self._private]

    # ---- tasks and state ---------------------------------------------------------------------------------------------

    def _make_net(self) -> ContinualNet:
        net = super()._make_net()
        backbone = net.backbone
        shared = net.heads.shared and not self.config.task_heads
        heads = Heads(2 * backbone.feature_width, shared=shared, xavier=backbone.xavier)
        private = PrivateModules(self.spec.shape, backbone, channels=self.config.private_channels)
        return SharedPrivateNet(net.inputs, backbone, heads, private)

    def _task_began(self, task: int) -> None:
        """A task has a discriminator and an optimizer of its own; one that goes on at once keeps them."""
        trained = [task, self._classes[task]]
        self._view(task)
        if trained != self._trained:
            self._trained = trained
            outputs = len(self._classes) + 1
            self.discriminator = self._new_discriminator(outputs)
            self._momentum = [torch.zeros_like(p) for p in self._trained_parameters()]

    def _view(self, task: int) -> None:
        """Make the open task's rows the parameters that are trained."""
        heads = self.net.heads
        head = 0 if heads.shared else task
        rows = heads.weight.data[head], heads.bias.data[head]
        self._head = [row[: self._classes[task]].detach().requires_grad_() for row in rows]
        self._private = self.net.private.own(task)
        self._step.drop()  # recordings of the last task train its rows
        self._guard.drop()

    def _new_discriminator(self, outputs: int) -> nn.Sequential:
        """From features to noise (0) or the task they come from (its number + 1)."""
        units = self.config.discriminator_units
        widths = (self.net.backbone.feature_width, units, units, outputs)
        layers = [nn.Linear(inputs, out, device="meta") for inputs, out in itertools.pairwise(widths)]
        for layer in layers:
            shape = (layer.out_features,)
            weight, bias = linear_rows(shape, layer.in_features, xavier=False, generator=self._weights_rng)
            layer.weight, layer.bias = nn.Parameter(weight), nn.Parameter(bias)
        first, second, last = layers
        return nn.Sequential(first, nn.LeakyReLU(), second, last).to(self._base[0])

    def _learned(self) -> list[Tensor]:
        discriminator = [] if self.discriminator is None else self.discriminator.parameters()
        return [*super()._learned(), *discriminator, *self._momentum]

    def state_dict(self) -> State:
        """Everything, momentum and discriminator included."""
        state = super().state_dict()
        state["meta"]["trained"] = self._trained
        if self.discriminator is not None:
            state["tensors"] |= {
                f"discriminator.{n}": plain_copy(t) for n, t in self.discriminator.state_dict().items()
            }
        state["tensors"] |= {f"momentum.{i}": plain_copy(t) for i, t in enumerate(self._momentum)}
        return state

    def _take_state(self, state: State) -> None:
        """As `Learner`, with momentum and discriminator."""
        super()._take_state(state)
        tensors, trained = state["tensors"], state["meta"].get("trained")
        self._trained = None if trained is None else [int(n) for n in trained]
        self.discriminator, self._momentum = None, []
        if self._trained is not None:
            weights = self._weights_rng.get_state()
            self.discriminator = self._new_discriminator(len(tensors["discriminator.3.bias"]))
            self._weights_rng.set_state(weights)
            self._load_module(self.discriminator, "discriminator.", tensors)
            self._view(self._trained[0])
            self._momentum = [tensors[f"momentum.{i}"].clone().to(p) for i, p in enumerate(self._trained_parameters())]


def _unit(rows: Tensor) -> Tensor:
    """Rows of length one; the lengths are constants to the gradient, as in the authors' code."""
    lengths: Tensor = torch.linalg.vector_norm(rows, dim=1, keepdim=True).detach()
    return rows / (lengths + 1e-6)
