"""Part `steps`: the time of each learner's step beside its floor, measured in turns in the same process."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from scale_cl.bench.conditions import BenchData, Conditions
from scale_cl.cuda_graphs import Outputs, RecordedFunction
from scale_cl.learners import Learner
from scale_cl.memory import EpisodicMemory
from scale_cl.nets.backbones import unmodulated
from scale_cl.streams import Stream

_TASKS = 4  # the last one is timed: replay has its full size by then
_WARM_UP = 10  # steps; a CUDA graph is recorded at the second
_RATE = 1e-6


def step_times(data: BenchData, learners: list[str], how: Conditions) -> list[dict[str, Any]]:
    """One row per learner: its step beside its floor, with images per update and updates of the backbone per step."""
    stream, batch_size = data.stream(tasks=_TASKS).to(how.clock.device), how.batch_size
    rows = []
    for name in learners:
        learner = how.learner(name, stream)
        fill_memory(learner, stream, batch_size)
        x, y = (part[:batch_size] for part in stream.train_data(len(stream) - 1))
        samples, count = images(learner, batch_size), updates(learner)
        floor = Floor(learner, samples, classes=len(stream.tasks[-1].classes))
        calls: dict[str, Callable[[], object]] = {"step": partial(learner.observe, x, y), "floor": floor}
        for call in calls.values():
            for _ in range(_WARM_UP):
                call()
        seconds = how.clock.medians(calls, rounds=how.rounds, block=how.block)
        ratio = seconds["step"] / seconds["floor"]
        row = {"stream": stream.name, "data": data.data, "learner": name, "images": samples, "updates": count}
        row |= {f"{what}_ms": 1e3 * taken for what, taken in seconds.items()}
        rows.append(row | {"ratio": ratio, "ratio_updates": ratio / count})
    return rows


def fill_memory(learner: Learner, stream: Stream, batch_size: int) -> None:
    """Train on all tasks but the last, just long enough to fill the memory, and begin the last one."""
    slots = int(getattr(learner.config, "memory", batch_size))
    for number, task in enumerate(stream.tasks):
        learner.begin_task(task.info)
        if number == len(stream) - 1:
            return
        x, y = stream.train_data(number)
        for some_x, some_y in zip(x[:slots].split(batch_size), y[:slots].split(batch_size), strict=True):
            learner.observe(some_x, some_y)


class Floor:
    """The floor under a step: forward, backward and SGD update of a learner's plain backbone with a linear head.

    It trains on noise, without memory or tasks. The images are floats in the learner's memory format, and on a GPU the
    update is one recorded graph, as the learner's step is.
    """

    def __init__(self, learner: Learner, samples: int, *, classes: int) -> None:
        """Copy the backbone; the learner does not change."""
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
    """Images per update of the learner: the batch and the samples replayed with it."""
    memory: EpisodicMemory | None = getattr(learner, "memory", None)
    replay = int(getattr(learner.config, "replay", 0))
    return batch_size + (0 if memory is None else min(replay, memory.available()))


def updates(learner: Learner) -> int:
    """Updates of the backbone per step, from the settings of the method."""
    c = learner.config
    if hasattr(c, "updates"):
        return int(c.updates)
    if hasattr(c, "inner_steps"):
        return int(c.inner_steps * c.outer_steps)
    return int(getattr(c, "shared_steps", 1))
