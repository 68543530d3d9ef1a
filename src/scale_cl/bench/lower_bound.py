"""The floor under a step: one forward, backward and SGD update of the plain backbone on as many images."""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from scale_cl.cuda_graphs import Outputs, RecordedFunction
from scale_cl.learners import Learner
from scale_cl.learners.replay import ReplayLearner
from scale_cl.nets.backbone import unmodulated

_RATE = 1e-6


class Floor:
    """A learner's own backbone with a linear head, trained on noise: no memory, no tasks, nothing but the update.

    The images are prepared floats in the learner's memory format, and on a GPU the update is one recorded graph, as the
    learner's step is.
    """

    def __init__(self, learner: Learner, samples: int, *, classes: int) -> None:
        """Copy the backbone; the learner stays as it is."""
        device, width = learner.device, learner.net.backbone.feature_width
        self._backbone = copy.deepcopy(learner.net.backbone)
        self._head = nn.Linear(width, classes).to(device)
        self._parameters: list[Tensor] = [*self._backbone.parameters(), *self._head.parameters()]
        x = torch.rand(samples, *learner.spec.shape, device=device)
        if learner.compute.channels_last and x.dim() == 4:
            x = x.contiguous(memory_format=torch.channels_last)
        self._inputs = x, torch.randint(0, classes, (samples,), device=device)
        generator, enabled = torch.Generator(device), learner.compute.capture
        self._update = RecordedFunction(self._updated, device=device, generator=generator, enabled=enabled)

    def __call__(self) -> None:
        """One update."""
        self._update("floor", *self._inputs)

    def _updated(self, x: Tensor, y: Tensor) -> Outputs:
        features = self._backbone.top(self._backbone.stem(x), unmodulated)[0]
        loss = F.cross_entropy(self._head(features), y)
        gradients = torch.autograd.grad(loss, self._parameters)
        with torch.no_grad():
            torch._foreach_add_(self._parameters, list(gradients), alpha=-_RATE)
        return {"loss": loss.detach()}


def images(learner: Learner, batch_size: int) -> int:
    """How many images an update of the learner takes: the batch and what is replayed with it."""
    if not isinstance(learner, ReplayLearner):
        return batch_size
    return batch_size + min(int(getattr(learner.config, "replay", 0)), learner.memory.available())


def updates(learner: Learner) -> int:
    """How many updates of the backbone a step makes, by the method's own settings."""
    c = learner.config
    if hasattr(c, "updates"):
        return int(c.updates)
    if hasattr(c, "inner_steps"):
        return int(c.inner_steps * c.outer_steps)
    return int(getattr(c, "shared_steps", 1))
