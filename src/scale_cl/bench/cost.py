"""What a method costs, counted: images through the backbone per batch, and the bytes that it keeps.

The cost of a batch is image forwards + 2 x image backwards. A learner runs a few steps in the middle of a stream, on
tiny noise, or all steps of a task if it does other work between some of them. Whatever multiplies whole images by
weights reports them: those of a teacher, of a weight average, of each column or private module of a growing network and
at the end of a task as well, whose work is spread over the batches of the task. A small network counts as a large one.
An image counts as backward when a gradient returns to where it entered. Where a step is differentiated itself (second
order), its backward counts once more, and so does its forward if a gradient returns through it. Predictions are not
counted. Bytes are those of all that the learner has declared, with all tasks of the stream.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._C._functorch import get_unwrapped, is_functorch_wrapped_tensor
from torch.overrides import TorchFunctionMode

from scale_cl.bench.conditions import shape_of
from scale_cl.learners import Compute, Learner, LearnerConfig
from scale_cl.learners import registry as learners
from scale_cl.learners.method_properties import parameter_growth
from scale_cl.settings import build
from scale_cl.streams import InputSpec, TaskInfo
from scale_cl.streams import catalog as streams
from scale_cl.training.memory_check import weightless_learner

_STEPS = 3  # that are counted
_RATE = 1e-6  # in place of all learning rates, which change no count: on noise, good ones may diverge
_COLOUR, _GREY = (3, 8, 8), (1, 5, 5)  # tiny images: no layer but the first has inputs of such a shape
_FLOAT, _INT = 4, 8


@dataclass(frozen=True)
class Cost:
    """Of a learner in the middle of a stream."""

    forward: float  # images per batch
    backward: float
    samples: int  # bytes: inputs, labels and tasks in memory slots
    logits: int  # stored with samples
    importances: int  # tensors of the weights' shapes, and others that a method keeps
    networks: int  # beside one trunk with its heads: a weight average, teachers, a generator, columns

    @property
    def images(self) -> float:
        """The cost of a batch: image forwards + 2 x image backwards."""
        return self.forward + 2 * self.backward

    @property
    def bytes(self) -> int:
        """All that is kept beside one trunk with its heads."""
        return self.samples + self.logits + self.importances + self.networks


@dataclass(frozen=True)
class Size:
    """Of a learner on a stream."""

    parameters: int  # of all networks in the first task
    growth: int  # parameters more with each further task, at most
    bytes: int  # all that is kept beside one trunk with its heads, when all tasks are learnt


class ImageCount(TorchFunctionMode):
    """Within the context, count images of a shape that enter a network, forward and backward."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.forward = self.backward = 0
        self._size = math.prod(shape)
        self._entered: dict[Any, tuple[int, ...]] = {F.conv2d: shape, F.linear: (self._size,)}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call `func`, and note whether it is the first layer of a network."""
        out = func(*args, **(kwargs or {}))
        if func not in self._entered or args[0].shape[1:] != self._entered[func]:
            return out
        x = args[0]
        if is_functorch_wrapped_tensor(x):  # one gradient per sample: all samples are behind this one
            while is_functorch_wrapped_tensor(x):
                x = get_unwrapped(x)
            self.forward += x.numel() // self._size
            self.backward += x.numel() // self._size
            return out
        self.forward += len(x)
        if out.requires_grad:
            out.register_hook(self._returned)
        return out

    def _returned(self, gradient: Tensor) -> None:
        """A gradient has come back to the first layer; if it can be differentiated, that is a pass of its own."""
        self.backward += len(gradient)
        if gradient.requires_grad:
            gradient.register_hook(self._returned)


@lru_cache(maxsize=256)
def cost_of(name: str, config: LearnerConfig, stream: str, *, batch: int = 10, tasks: int | None = None) -> Cost:
    """What the learner `name` costs on a stream of the catalog, or on its first `tasks` tasks."""
    spec, classes = _tasks_of(stream, tasks)
    before, steps = len(classes) // 2, -(-streams.entry(stream).train // batch)
    tiny = replace(spec, shape=_COLOUR if spec.shape[0] > 1 else _GREY)
    forward, backward = _images(name, config, tiny, classes[0], batch, before=before, steps=steps)
    return Cost(forward, backward, *bytes_kept(name, config, spec, classes))


@lru_cache(maxsize=256)
def size_of(name: str, config: LearnerConfig, stream: str, *, tasks: int | None = None) -> Size:
    """How large the learner `name` is on a stream of the catalog, or on its first `tasks` tasks."""
    spec, classes = _tasks_of(stream, tasks)
    learner = learners.make(name, spec, config, compute=Compute(capture=False))
    return Size(*parameter_growth(learner, classes[0]), sum(bytes_kept(name, config, spec, classes)))


def _tasks_of(stream: str, tasks: int | None) -> tuple[InputSpec, tuple[int, ...]]:
    """The inputs of a stream of the catalog, and the classes of each of its first `tasks` tasks, or of all."""
    entry, (shape, classes) = streams.entry(stream), shape_of(stream)
    count = min(tasks or entry.continual, entry.continual)
    return InputSpec(shape, 255.0, entry.scenarios[0]), (entry.classes_per_task or classes,) * count


def cost_row(name: str, stream: str, *, batch: int) -> dict[str, Any]:
    """A row of a benchmark: a learner with its preset."""
    config = build(learners.config_class(name), learners.preset_settings(name, stream))
    cost = cost_of(name, config, stream, batch=batch)
    return {"stream": stream, "data": "synthetic", "learner": name, **asdict(cost), "images": cost.images}


def _images(
    name: str, config: LearnerConfig, spec: InputSpec, classes: int, batch: int, *, before: int, steps: int
) -> tuple[float, float]:
    """Images forward and backward per batch after so many tasks, each of so many `steps`."""
    rates: dict[str, Any] = {f.name: _RATE for f in fields(config) if f.name == "lr" or f.name.endswith("_lr")}
    learner = learners.make(name, spec, replace(config, **rates), compute=Compute(capture=False))
    rng = torch.Generator().manual_seed(0)

    def observe(count: int) -> None:
        for _ in range(count):
            y = torch.randint(0, classes, (batch,), generator=rng)
            learner.observe(torch.randint(0, 256, (batch, *spec.shape), dtype=torch.uint8, generator=rng), y)

    full = max(_STEPS, -(-int(getattr(config, "memory", 0)) // batch))  # steps that fill the slots of a task
    pauses = type(learner).pauses is not Learner.pauses  # then steps differ, and all of a task count
    for task in range(before + 1):
        learner.begin_task(TaskInfo(f"task {task}", classes))
        if task < before or not pauses:
            observe(full)
        if task < before:
            learner.end_task()
    several = steps if pauses else _STEPS
    with ImageCount(spec.shape) as step:
        observe(several)
    with ImageCount(spec.shape) as end:
        learner.end_task()
    epochs = int(getattr(config, "epochs", 1))
    forward, backward = (
        epochs * each / several + at_end / steps
        for each, at_end in ((step.forward, end.forward), (step.backward, end.backward))
    )
    return forward, backward


def bytes_kept(
    name: str, config: LearnerConfig, spec: InputSpec, classes: tuple[int, ...]
) -> tuple[int, int, int, int]:
    """Bytes of samples, logits, importances and further networks when all tasks are learnt."""
    learner = weightless_learner(name, config, spec, classes)
    owned, net, tasks = learner.engine.owned, learner.net, len(classes)
    every = classes[0] if spec.scenario == "domain" else sum(classes)
    widths = {"class": sum(classes) / tasks, "task": sum(k + 2 for k in range(tasks)) / tasks}  # means over tasks
    samples = logits = 0
    for memory in owned.memories.values():
        rows = memory.slots * {"task": tasks, "class": every, "total": 1}[memory.budget]
        samples += rows * (memory.x[0].nbytes + 2 * _INT)  # with label and task
        logits += int(sum(rows * widths.get(kind, net.heads.width) * _FLOAT for kind in memory.logits))
    importances = _total(t for t, _ in owned.tensors.values())
    for state in owned.states.values():
        importances += _used(learner, state.tensors) if state.weights is owned.base else _total(state.tensors)
    networks = sum(_size(module) for module in owned.modules()) - _size(learner.engine.backbone) - _size(net.heads)
    networks += len(owned.teachers) * _size(net)
    if config.weight_average > 0:
        networks += _used(learner, owned.base.tensors)
    return samples, logits, importances, networks


def _used(learner: Learner, tensors: Sequence[Tensor]) -> int:
    """Bytes of tensors of the base weights' shapes, without rows that are only allocated ahead."""
    network = learner.engine.owned.network
    assert network is not None
    return _total(network.in_use(tensors))


def _size(module: nn.Module) -> int:
    """Bytes of a module's state as it is saved."""
    return _total(module.state_dict().values())


def _total(tensors: Iterable[Tensor]) -> int:
    return sum(t.nbytes for t in tensors)
