"""A learner without replay beside a plain re-computation of its network, compared after every step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from scale_cl.learners import Learner
from scale_cl.streams import InputSpec, TaskInfo
from tests.learners.plain import PlainNet, gradients, in_double, mean_ce, pixels
from tests.learners.reference_networks import Parameters


class PlainMethod:
    """Plain SGD on the cross-entropy; a method adds to the gradient and looks back when a task ends."""

    def __init__(self, learner: Learner) -> None:
        self.config: Any = learner.config
        self.net = PlainNet(learner)
        self.task = -1
        self.alone: Parameters = {}  # the gradient of the cross-entropy in the last step
        self.batches: list[tuple[Tensor, list[int]]] = []  # of the open task

    def began(self) -> None:
        """After a task was opened."""

    def ended(self) -> None:
        """Before the open task closes."""

    def step(self, x: Tensor, y: list[int]) -> None:
        ce, base = self.ce(x, y), self.net.base
        self.alone = gradients(ce, base)
        pulled = gradients(self.penalty() + 0 * next(iter(base.values())).sum(), base)
        gradient = {name: g + pulled[name] for name, g in self.alone.items()}
        self.net.base = {
            name: (p - self.config.lr * gradient[name]).detach().requires_grad_() for name, p in base.items()
        }

    def penalty(self) -> Tensor:
        """What is added to the cross-entropy."""
        return torch.zeros((), dtype=torch.float64)

    def ce(self, x: Tensor, y: Sequence[int]) -> Tensor:
        return mean_ce(self.net.logits(x, [self.task] * len(y)), y)

    def samples(self) -> list[tuple[Tensor, int]]:
        """All samples of the open task."""
        return [(x[i : i + 1], label) for x, y in self.batches for i, label in enumerate(y)]

    def held(self) -> list[str]:
        """Trunk, and a head that all tasks share."""
        return [name for name in self.net.base if name.startswith("trunk.") or self.net.one_head]

    def values(self) -> Parameters:
        return {name: self.net.base[name].detach().clone() for name in self.held()}


class Beside:
    """A learner in float64 and its re-computation."""

    def __init__(self, learner: Learner, plain: type[PlainMethod], *, seed: int = 1) -> None:
        self.learner = in_double(learner)
        for tensor, _ in learner.engine.owned.tensors.values():
            tensor.data = tensor.data.double()
        self.plain = plain(learner)
        self.data = torch.Generator().manual_seed(seed)

    def run(self, tasks: Sequence[tuple[str, int, int]], *, n: int = 4) -> None:
        """Tasks by name, classes and steps."""
        for name, classes, steps in tasks:
            self.learner.begin_task(TaskInfo(name, classes))
            self.plain.net.meet(self.learner)
            self.plain.task, self.plain.batches = self.learner.tasks.index(name), []
            self.plain.began()
            for _ in range(steps):
                x, y = pixels(self.learner.spec, n, classes, self.data)
                self.learner.observe(x, y)
                self.plain.batches.append((x, y.tolist()))
                self.plain.step(x, y.tolist())
                self.plain.net.compare(self.learner)
            self.learner.end_task()
            self.plain.ended()


def some_tasks(spec: InputSpec, steps: int = 3) -> list[tuple[str, int, int]]:
    """Heads of different widths where tasks have their own; a task comes back."""
    widths = (3, 3, 3) if spec.scenario == "domain" else (2, 4, 3)
    return [*((name, width, steps) for name, width in zip("abc", widths, strict=True)), ("a", widths[0], 2)]
