"""The network as a method sees it: forwards that name their outputs, by the present weights or by weights ahead.

For methods of single neurons: the layers of its backbone, and hooks on their activations.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from scale_cl.engine.parts import Part
from scale_cl.engine.replay import ReplayMemory, Samples
from scale_cl.engine.weights import AheadWeights, Weights
from scale_cl.errors import ConfigError
from scale_cl.nets import ContinualNet, GrowingParameter, Outputs
from scale_cl.nets.custom_backbone import AnyBatchNorm
from scale_cl.nets.kernels.convolution import torch_convolutions

Statistics = Literal["separate", "joint"]
_MEASURED, _AT_ONCE = 1024, 64  # samples that batch-norm statistics are measured on: in all, and per forward
_WITHIN = 128  # samples that they are measured on for a prediction within a task, in one forward


class Network:
    """f(g(x)) of the paper: trunk and heads are its `base` weights."""

    def __init__(self, module: ContinualNet, *, statistics: Statistics = "separate", twice: bool = False) -> None:
        """`statistics`: batch and replay have batch statistics of their own, or joint ones.

        With `twice`, forwards can be differentiated twice and keep the graph of all parameters.
        """
        self.module, self._statistics, self._twice = module, statistics, twice
        self.base = Weights(module.base_parameters)
        norms = (norm for norm in module.modules() if isinstance(norm, AnyBatchNorm))
        self._momenta = {norm: norm.momentum for norm in norms}
        self._dropouts = {rnn: rnn.dropout for rnn in module.modules() if isinstance(rnn, nn.RNNBase)}
        self._apart: dict[str, Tensor] = {}  # statistics for predictions within a task; always the same tensors
        self.trained_on: Callable[[Samples, Outputs], None] | None = None  # called after each forward to train on

    def __call__(
        self,
        samples: Samples,
        theta: Weights | None = None,
        *,
        wrt: Part | Literal["all"] | None = None,
        keep_statistics: bool = False,
    ) -> Outputs:
        """Common features, features and logits of samples, in training mode.

        Args:
            samples: prepared inputs with their tasks.
            theta: weights of trunk and heads; by default the present ones.
            wrt: the part whose gradient is wanted, if it is not trunk and heads, or "all" for both. For the generator,
                what stands before the first FiLM site keeps no graph; for an absent part nothing does.
            keep_statistics: leave batch norm's running statistics as they are.
        """
        parts = samples.parts if self._statistics == "separate" else ()
        every = self._twice or wrt == "all"
        keywords = {"parts": parts, "wrt": "all" if every else "base" if wrt is None else "generator"}
        other: dict[str, Tensor] = dict(theta.named) if isinstance(theta, AheadWeights) else {}
        if keep_statistics:
            other |= {name: b.clone() for name, b in self.module.named_buffers() if "running" in name}
        inputs = samples.x, samples.task
        is_absent = isinstance(wrt, Part) and not wrt  # settings leave the part out: there is no gradient to take
        with torch.no_grad() if is_absent else nullcontext():
            out: Outputs = (
                functional_call(self.module, other, inputs, keywords) if other else self.module(*inputs, **keywords)
            )
        if self.trained_on is not None and wrt in (None, "all") and not keep_statistics:
            self.trained_on(samples, out)
        return out

    def evaluated(self, x: Tensor, task: Tensor, weights: Mapping[str, Tensor]) -> Outputs:
        """Outputs of raw samples in evaluation mode, without a graph; `weights` replace tensors of the same name.

        The tasks are [B] or, if tasks share features, [T, B] for several tasks of the same samples: the outputs are
        [T, B, ...] then.
        """
        with torch.no_grad(), self._evaluation():
            out: Outputs = functional_call(self.module, dict(weights), (self.module.inputs(x), task))
        return out

    def in_evaluation(self, samples: Samples, theta: Weights | None = None) -> Outputs:
        """Outputs of samples in evaluation mode: none depends on the others. By other weights, and with a graph."""
        other = dict(theta.named) if theta is not None else {}
        with self._evaluation(gradients=True):
            out: Outputs = functional_call(self.module, other, (samples.x, samples.task))
        return out

    @property
    def shares_features(self) -> bool:
        """Whether one forward serves several tasks, because it computes what they have in common once."""
        return type(self.module).forward is ContinualNet.forward or self.module.several_tasks

    def predicting(self, weights: Mapping[str, Tensor]) -> ContinualNet:
        """A copy in evaluation mode; `weights` replace parameters and buffers of the same name."""
        net = copy.deepcopy(self.module).eval()
        own = dict(net.named_parameters()) | dict(net.named_buffers())
        with torch.no_grad():
            for name, value in weights.items():
                own[name].copy_(value)
        return net

    @contextmanager
    def _evaluation(self, *, gradients: bool = False) -> Iterator[None]:
        """Evaluation mode. For gradients, RNNs train without dropout, which is the same: cuDNN has none otherwise."""
        try:
            self.module.eval()
            for rnn in self._dropouts if gradients else ():
                rnn.train()
                rnn.dropout = 0.0
            yield
        finally:
            self.restore_modes()

    def restore_modes(self) -> None:
        """Training mode, the momentum of each batch norm and the dropout of each RNN as they were made."""
        self.module.train()
        for norm, momentum in self._momenta.items():
            norm.momentum = momentum
        for rnn, dropout in self._dropouts.items():
            rnn.dropout = dropout

    def in_use(self, gradient: Sequence[Tensor]) -> list[Tensor]:
        """A gradient of the base weights without the rows of heads that are only allocated ahead."""
        modules = self.module.named_modules()
        counts = {f"{name}.data": m.count for name, m in modules if isinstance(m, GrowingParameter)}
        return [g[: counts[name]] if name in counts else g for name, g in zip(self.base.named, gradient, strict=True)]

    def sample_gradients(self, samples: Samples, loss: Callable[[Tensor, Tensor], Tensor]) -> list[Tensor]:
        """Gradients of each sample's loss with respect to the base weights, [n, *shape] per parameter.

        In evaluation mode and by torch's own kernels, so it is for the end of a task, not for a step. `loss` is a
        function of logits [1, C] and labels [1]. A backbone that torch cannot vectorise over samples, such as an RNN,
        computes one sample after another.
        """

        def one(theta: dict[str, Tensor], x: Tensor, y: Tensor, task: Tensor) -> Tensor:
            out: Outputs = functional_call(self.module, theta, (x.unsqueeze(0), task.unsqueeze(0)))
            return loss(out.logits, y.unsqueeze(0))

        theta = {name: p.detach() for name, p in self.base.named.items()}
        sets = samples.x, samples.y, samples.task
        with self._evaluation(gradients=True), torch_convolutions(self.module):
            try:
                found = vmap(grad(one), in_dims=(None, 0, 0, 0))(theta, *sets)
            except RuntimeError:
                each = [grad(one)(theta, *sample) for sample in zip(*sets, strict=True)]
                found = {name: torch.stack([g[name] for g in each]) for name in theta}
        return [found[name] for name in self.base.named]

    # ---- batch norm's statistics on stored samples -------------------------------------------------------------------

    def measurement(self, memory: ReplayMemory) -> Iterator[tuple[Tensor, Tensor]]:
        """Arguments of the calls of `measure` that cover the stored samples evenly: rows, and the share of each call.

        The forwards have one size, so that one recording serves all tasks; what is stored is spread evenly over them,
        some samples twice where they do not come out even, and all tasks are in each.
        """
        rows = memory.candidates
        if not self._live_norms() or len(rows) < 2:
            return
        size = min(_AT_ONCE, len(rows))
        pieces = -(-min(_MEASURED, len(rows)) // size)
        spread = torch.arange(pieces * size, device=rows.device) * len(rows) // (pieces * size)
        for piece in range(pieces):
            share = torch.full((), 1 / (piece + 1), device=rows.device, dtype=self.base.tensors[0].dtype)
            yield rows[spread[piece::pieces]], share

    @torch.no_grad()
    def measure(self, memory: ReplayMemory, weights: Mapping[str, Tensor], rows: Tensor, share: Tensor) -> None:
        """Let the batch statistics of one forward have that share in the running ones."""
        norms = self._live_norms()
        running = [t for norm in norms for t in (norm.running_mean, norm.running_var) if t is not None]
        before = [t.clone() for t in running]
        with _taking_over(norms):
            functional_call(self.module, dict(weights), (self.module.inputs(memory.x[rows]), memory.task[rows]))
        torch._foreach_mul_(running, share)
        torch._foreach_mul_(before, 1 - share)
        torch._foreach_add_(running, before)

    def measurable(self, memory: ReplayMemory) -> int:
        """How many stored samples `measure_apart` takes now; 0 if there is nothing to measure, or too few samples."""
        count = min(_WITHIN, memory.available(current=True))
        return count if count > 1 and self._live_norms() else 0

    @torch.no_grad()
    def measure_apart(self, memory: ReplayMemory, weights: Mapping[str, Tensor], order: Tensor) -> None:
        """Take the statistics of one forward over stored samples into `statistics_apart`; nothing else changes.

        `order` is 0 to n - 1: the samples are spread evenly over all that are stored, the open task's included. Device
        work only. Other modules are in evaluation mode, so that dropout draws no random numbers.
        """
        stored = memory.stored.cumsum(0)  # the k-th stored sample is in the first row where this is k
        rows = torch.searchsorted(stored, order * stored[-1] // len(order) + 1)
        norms = self._live_norms()
        replaced = dict(weights) | self.statistics_apart
        with self._evaluation(), _taking_over(norms):
            for norm in norms:
                norm.training = True
            functional_call(self.module, replaced, (self.module.inputs(memory.x[rows]), memory.task[rows]))

    @property
    def statistics_apart(self) -> dict[str, Tensor]:
        """Batch-norm buffers, by name, that a prediction within a task uses in place of the running ones."""
        if not self._apart:
            live = {id(b) for norm in self._live_norms() for b in norm.buffers()}
            self._apart = {name: b.clone() for name, b in self.module.named_buffers() if id(b) in live}
        return self._apart

    def _live_norms(self) -> list[AnyBatchNorm]:
        """The batch norms that keep running statistics."""
        norms = [module for module in self.module.modules() if isinstance(module, AnyBatchNorm)]
        return [norm for norm in norms if norm.training and norm.running_mean is not None]


@contextmanager
def _taking_over(norms: Sequence[AnyBatchNorm]) -> Iterator[None]:
    """Within the context, the statistics of a forward replace the running ones."""
    usual = [norm.momentum for norm in norms]
    for norm in norms:
        norm.momentum = 1.0
    try:
        yield
    finally:
        for norm, momentum in zip(norms, usual, strict=True):
            norm.momentum = momentum


def running_statistics(module: nn.Module) -> list[Tensor]:
    """Buffers that a forward in training mode changes."""
    return [b for name, b in module.named_buffers() if "running" in name]


# ---- activations -----------------------------------------------------------------------------------------------------
Hook = Callable[[nn.Module, Any, Tensor], None]


@dataclass(frozen=True)
class Layer:
    """Neurons side by side: a linear layer or convolution, perhaps with its batch norm."""

    name: str
    width: int
    parts: tuple[str, ...]  # names of the modules, in order; the output of the last is the activation
    is_linear: bool

    def activation_mean(self, values: Tensor) -> Tensor:
        """Mean [width] over everything but the channel: the last dimension of a linear layer, else the second."""
        channel = values.dim() - 1 if self.is_linear else 1
        return values.mean([d for d in range(values.dim()) if d != channel])


def layers_of(net: nn.Module) -> list[Layer]:
    """The linear layers and convolutions of a network's backbone, each with the batch norm that follows it."""
    layers: list[Layer] = []
    free = False  # whether the last layer may still be joined by a norm
    for name, module in net.get_submodule("backbone").named_modules():
        if isinstance(module, nn.Linear | nn.Conv2d):
            layers.append(Layer(name, module.weight.shape[0], (name,), isinstance(module, nn.Linear)))
            free = True
        elif free and isinstance(module, AnyBatchNorm) and module.num_features == layers[-1].width:
            last = layers.pop()
            layers.append(Layer(last.name, last.width, (*last.parts, name), last.is_linear))
            free = False
    if not layers:
        raise ConfigError("the backbone has no linear layer or convolution, on whose units this learner works")
    return layers


@contextmanager
def watched(
    net: nn.Module, layers: Sequence[Layer], make: Callable[[Layer, dict[str, Tensor]], Hook]
) -> Iterator[dict[str, Tensor]]:
    """Within the context, forward hooks on the layers of a network's backbone; they note what they find by name."""
    found: dict[str, Tensor] = {}
    handles = []
    try:
        for layer in layers:
            module = net.get_submodule(f"backbone.{layer.parts[-1]}")
            handles.append(module.register_forward_hook(make(layer, found)))
        yield found
    finally:
        for handle in handles:
            handle.remove()
