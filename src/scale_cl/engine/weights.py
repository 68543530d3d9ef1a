"""Weights that are trained together, with the few verbs that methods need, and state that has their shapes.

A method never touches `.data` or an optimizer: it asks weights for a `gradient` and lets them `move` along it, or lets
them `descend` a loss, which is both. Weights that lie `ahead` are a function of the present ones and are settled later.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor

from scale_cl.errors import ConfigError

Changes = Literal["step", "task"]


class Weights:
    """Named parameters: trunk and heads, a generator, a discriminator."""

    def __init__(self, find: Callable[[], Mapping[str, Tensor]]) -> None:
        """`find` looks the parameters up; it is asked again whenever they may have grown."""
        self._find = find
        self.named: dict[str, Tensor] = {}
        self.tensors: list[Tensor] = []
        self.look_up()
        self.moved: Callable[[Sequence[Tensor]], None] | None = None  # called after every move, with the new values
        self.extra: Callable[[Tensor], Tensor] | None = None  # adds a term to every loss whose gradient is taken

    def look_up(self) -> None:
        """Find the parameters again: tasks may have added some."""
        found = self._find()
        if not isinstance(found, Mapping):
            form = "a dict of names and parameters, such as dict(module.named_parameters())"
            raise ConfigError(f"the function given to engine.weights returned a {type(found).__name__}; return {form}")
        self.named = dict(found)
        self.tensors = list(self.named.values())

    def gradient(self, loss: Tensor, *, create_graph: bool = False) -> list[Tensor]:
        """The gradient of `loss` with respect to each parameter."""
        if self.extra is not None:
            loss = self.extra(loss)
        return list(torch.autograd.grad(loss, self.tensors, create_graph=create_graph))

    def move(self, direction: Sequence[Tensor], rate: float, *, average: bool = True) -> None:
        """Theta <- theta - rate * direction; the weight average follows, unless `average` is false."""
        with torch.no_grad():
            torch._foreach_add_(self.tensors, list(direction), alpha=-rate)
        if average:
            self.follow()

    def follow(self) -> None:
        """Let the weight average follow the present values."""
        if self.moved is not None:
            self.moved(self.tensors)

    def descend(
        self, loss: Tensor, rate: float, *, clip: float = 0.0, through: bool = False, average: bool = True
    ) -> Weights:
        """One step of plain SGD on `loss`; returns the weights after it.

        Args:
            loss: what to descend.
            rate: learning rate.
            clip: scale a gradient whose norm over all parameters is larger down to this norm; 0: off.
            through: leave these weights as they are and return new ones through which gradients flow (second order).
            average: let the weight average follow.
        """
        if not self.tensors:
            return self
        gradient = self.gradient(loss, create_graph=through)
        if clip > 0:
            gradient = clipped(gradient, clip)
        if not through:
            self.move(gradient, rate, average=average)
            return self
        after = self.ahead(gradient, rate)
        if average:
            after.follow()
        return after

    def ahead(self, gradient: Sequence[Tensor], rate: float) -> AheadWeights:
        """Theta - rate * gradient as weights of their own; these stay as they are."""
        values = torch._foreach_sub(self.tensors, torch._foreach_mul(list(gradient), rate))
        return AheadWeights(self, dict(zip(self.named, values, strict=True)))

    @torch.no_grad()
    def set(self, values: Sequence[Tensor]) -> None:
        """Take these values."""
        torch._foreach_copy_(self.tensors, list(values))

    def copy(self) -> list[Tensor]:
        """The present values."""
        return [p.detach().clone() for p in self.tensors]

    @torch.no_grad()
    def lerp(self, start: list[Tensor], rate: float, *, average: bool = True) -> None:
        """Theta <- start + rate * (theta - start); `start` is used up."""
        torch._foreach_lerp_(start, self.tensors, rate)
        torch._foreach_copy_(self.tensors, start)
        if average:
            self.follow()

    def settle(self) -> None:
        """Make these values the present ones: they are already."""


class AheadWeights(Weights):
    """Values that other weights would have after a step."""

    def __init__(self, base: Weights, values: Mapping[str, Tensor]) -> None:
        """They become those of `base` when they are settled."""
        super().__init__(lambda: values)
        self.base: Weights = base.base if isinstance(base, AheadWeights) else base
        self.moved, self.extra = base.moved, base.extra

    @torch.no_grad()
    def settle(self) -> None:
        """Make these values the present ones."""
        torch._foreach_copy_(self.base.tensors, self.tensors)


def clipped(gradient: Sequence[Tensor], norm: float) -> list[Tensor]:
    """The gradient, scaled down if its norm over all parameters is larger than `norm`; a norm that is NaN stays NaN."""
    if gradient[0].requires_grad:  # second order: _foreach_norm has no derivative
        length = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(g) for g in gradient]))
        return [g * (norm / length.clamp(min=norm)) for g in gradient]
    length = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(list(gradient))))
    return list(torch._foreach_mul(list(gradient), norm / length.clamp(min=norm)))


class WeightState:
    """Tensors of the shapes of some weights, such as importances, momentum or an average.

    They grow with the weights, are saved and loaded with the learner and, if they change in every step, are guarded
    against divergence.
    """

    def __init__(self, weights: Weights, *, changes: Changes, start: Literal["zeros", "values"] = "zeros") -> None:
        """`changes` says whether a step or only the end of a task changes them; they `start` at 0 or as the weights."""
        self.weights, self.changes, self._start = weights, changes, start
        self.named: dict[str, Tensor] = {}
        self.follow()

    @property
    def tensors(self) -> list[Tensor]:
        """One tensor per parameter, in the weights' order."""
        return list(self.named.values())

    @torch.no_grad()
    def follow(self) -> None:
        """Take the weights' present shapes, larger or smaller; what was there stays in its place."""
        grown = {}
        for name, p in self.weights.named.items():
            old = self.named.get(name)
            if old is not None and old.shape == p.shape:
                grown[name] = old
                continue
            grown[name] = p.detach().clone() if self._start == "values" else torch.zeros_like(p.detach())
            if old is not None:
                common = tuple(slice(min(sizes)) for sizes in zip(old.shape, p.shape, strict=True))
                grown[name][common] = old[common]
        self.named = grown

    @torch.no_grad()
    def reset(self) -> None:
        """Begin again."""
        self.named = {}
        self.follow()

    @torch.no_grad()
    def set(self, values: Sequence[Tensor]) -> None:
        """Take these values."""
        torch._foreach_copy_(self.tensors, [v.detach() for v in values])
