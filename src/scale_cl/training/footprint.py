"""What one learner will take, in bytes by purpose, before it is made: its tensors are counted, not allocated.

Parameters come from the learner itself, built of tensors that have a shape and no memory, with all the tasks it will
see. The rest is counted from shapes: the memory's rows, copies of the parameters that a method holds, and the values
that a forward keeps for its backward. It is an estimate from above; tests hold it against what learners really take.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._device import _device_constructors

from scale_cl.learners import Compute, Learner, LearnerConfig, registry
from scale_cl.memory import first_tasks
from scale_cl.ragged_rows import FIRST_ROOM
from scale_cl.streams import InputSpec
from scale_cl.training.learner_run import CHUNK

_BUILT = 64  # tasks that are built; beyond, growth goes on as it was from half of these on
_ROW = 58  # bytes of a memory's row beside the sample: label, task, number, two flags, where its logits lie
_FLOAT, _INT = 4, 8
_KEPT_MAPS = 3.0  # tensors kept of each convolution: its output, what norm and activation make of it, a joined copy
_PASSING_MAPS = 4.0  # tensors of the largest size that are there at once in evaluation
_UNIT, _FILM = 4, 10  # values kept of each hidden unit: before and after activation; of FiLM, scales and shifts too
# Gradients and copies of all base parameters that a step holds at its peak.
_HELD = {"scale": 1, "scale-ema": 1, "er": 1, "der": 1, "derpp": 1, "joint": 1, "finetune": 1, "ctn": 1}
_HELD |= {"mer": 3, "mir": 4, "agem": 5, "gem": 3, "acl": 2}
_HELD_BY_OTHERS = 5


@dataclass(frozen=True)
class Footprint:
    """Bytes of one learner: what it holds all the time, and what comes and goes."""

    memory: int  # samples with labels and stored logits
    model: int  # parameters and running statistics of all networks
    copies: int  # of parameters: the last good ones, a weight average, momentum, gradients of earlier tasks
    step: int  # gradients and activations of the largest training batch
    evaluation: int  # activations of the largest batch that is predicted
    checkpoint: int  # the state taken out and made a file's content


@dataclass(frozen=True)
class Work:
    """What a learner is to be used for."""

    spec: InputSpec
    classes: tuple[int, ...]  # of each task, in order
    batch: int
    tested: int  # samples of the largest test
    on_gpu: bool


@lru_cache(maxsize=64)
def footprint(name: str, config: LearnerConfig, work: Work) -> Footprint:
    """What the learner called `name` takes; nothing of size is allocated."""
    built = _built(name, config, work.spec, work.classes)
    base, learned, grows = built.base, built.learned, built.grows or len(work.classes) > _FIRST_CAPACITY
    memory = memory_bytes(config, work)
    state = learned + memory
    guarded = 2 if work.on_gpu else 1  # copies of all that is learned, which the divergence guard holds
    copies = guarded * learned * (2 if grows else 1)  # as tensors grow, the new ones beside the old
    copies += base * (config.weight_average > 0) * (1 + guarded)  # the average itself, and the guard's of it
    if name == "gem":
        copies += base * len(work.classes)
    if name == "acl":
        copies += (1 + guarded) * (base + built.private)  # momentum, and the guard's of it
    samples, rounds = _samples(config, work, name)
    second = 2 * int(getattr(config, "inner_steps", 1)) + 2 if getattr(config, "second_order", False) else 0
    held = _HELD.get(name, _HELD_BY_OTHERS) + second
    step = held * base + built.private + built.others
    kept = samples * _kept(built, work) * (2 if second else 1)
    prepared = rounds * samples * math.prod(work.spec.shape) * (2 * _FLOAT + 1)
    hashed = rounds * _rows(config, work) * 3 * _INT
    return Footprint(
        memory=memory,
        model=learned,
        copies=copies,
        step=step + kept + prepared + hashed,
        evaluation=min(CHUNK, work.tested) * _passing(built, work),
        checkpoint=state * (1 if work.on_gpu else 3),
    )


def memory_bytes(config: LearnerConfig, work: Work) -> int:
    """Bytes of the episodic memory with all tasks in it, as it is allocated."""
    slots, tasks = int(getattr(config, "memory", 0)), len(work.classes)
    if slots == 0:
        return 0
    rows = _rows(config, work)
    logits = 2 * max(FIRST_ROOM, slots * sum(work.classes)) * _FLOAT  # in a tensor that doubles
    if hasattr(config, "discriminator_steps"):
        logits += max(FIRST_ROOM, slots * (tasks + 2) ** 2) * _FLOAT
    grown = 1.5 if rows > slots * first_tasks(slots, _sample_bytes(work.spec)) else 1  # the old beside the new
    return int(rows * grown * (_sample_bytes(work.spec) + _ROW)) + logits


def _rows(config: LearnerConfig, work: Work) -> int:
    slots = int(getattr(config, "memory", 0))
    tasks = first_tasks(slots, _sample_bytes(work.spec))
    while tasks < len(work.classes):
        tasks *= 2
    return tasks * slots


def _sample_bytes(spec: InputSpec) -> int:
    return math.prod(spec.shape) * (_FLOAT if spec.pixel_max is None else 1)


def _samples(config: LearnerConfig, work: Work, name: str) -> tuple[int, int]:
    """Samples in the largest forward of a step, and how many such batches are prepared at once."""
    c: Any = config
    earlier = len(work.classes) * int(getattr(c, "memory", 0))
    replay = min(max(int(getattr(c, "replay", 0)), int(getattr(c, "candidates", 0))), earlier)
    draws = 2 if name == "derpp" else 1
    samples = work.batch + draws * replay
    if name == "gem":
        samples = max(work.batch, int(c.memory))
    if name == "ctn":  # all semantic samples at once
        samples = max(samples, math.ceil(earlier * c.semantic) + len(work.classes))
    rounds = int(getattr(c, "updates", 1))
    if hasattr(c, "outer_steps"):
        rounds = c.outer_steps * (c.inner_steps + 1)
    return samples, rounds


# ---- networks ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Built:
    """Bytes of a learner's parameters, and the forms that its activations follow from."""

    base: int  # trunk and heads
    private: int  # of one private module
    others: int  # generator and discriminator
    learned: int  # all of it, running statistics included
    grows: bool  # whether large tensors are made anew as tasks arrive
    hidden: tuple[int, ...]  # units of each layer of an MLP
    film: bool
    maps: tuple[int, ...]  # values of each convolution's output for one sample
    head: int  # values of the widest head


_FIRST_CAPACITY = 32  # tasks that heads and embeddings have room for from the start


@lru_cache(maxsize=64)
def _built(name: str, config: LearnerConfig, spec: InputSpec, classes: tuple[int, ...]) -> _Built:
    few = _built_with(name, config, spec, classes[:_BUILT])
    if len(classes) <= _BUILT:
        return few
    half = _built_with(name, config, spec, classes[: _BUILT // 2])
    times = 2 ** math.ceil(math.log2(len(classes))) / (_BUILT // 2) - 1

    def grown(field: str) -> int:
        return int(getattr(half, field) + times * (getattr(few, field) - getattr(half, field)))

    return _Built(
        grown("base"),
        few.private,
        grown("others"),
        grown("learned"),
        few.grows,
        few.hidden,
        few.film,
        few.maps,
        few.head,
    )


def _built_with(name: str, config: LearnerConfig, spec: InputSpec, classes: Sequence[int]) -> _Built:
    small = {"memory": min(2, config.memory)} if hasattr(config, "memory") else {}  # rows are counted apart
    with Weightless():
        learner = registry.make(name, spec, replace(config, **small), compute=Compute("fp32", capture=False))
        for task, outputs in enumerate(classes):
            learner._ensure_task(task, outputs, new=True)
    base = sum(p.nbytes for p in learner.net.base_parameters().values())
    private_modules = getattr(learner.net, "private", None)
    rows = [] if private_modules is None else list(private_modules.parameters())
    whole = sum(t.nbytes for t in (*learner.net.parameters(), *learner.net.buffers()))
    discriminator = _discriminator(learner, len(classes))
    backbone = learner.net.backbone
    maps = _maps(backbone, spec.shape)
    if rows and maps:  # two convolutions of stride 2, each of as many channels as its bias has values
        maps += tuple(
            len(p[0]) * math.prod(-(-s // by) for s in spec.shape[1:]) for p, by in zip(rows[:2], (2, 4), strict=True)
        )
    return _Built(
        base=base,
        private=sum(p[0].nbytes for p in rows),
        others=sum(p.nbytes for p in learner.net.generator_parameters().values()) + discriminator,
        learned=whole + discriminator,
        grows=bool(rows),
        hidden=() if maps else backbone.film_widths,
        film=learner.net.generator is not None,
        maps=maps,
        head=max(classes) * learner.net.heads.width,
    )


def _discriminator(learner: Learner, tasks: int) -> int:
    made = getattr(learner, "discriminator", None)
    if made is not None:
        return sum(p.nbytes for p in made.parameters())
    units = int(getattr(learner.config, "discriminator_units", 0))  # ACL makes one a task
    return _FLOAT * units * (learner.net.backbone.feature_width + units + tasks + 3)


def _maps(backbone: torch.nn.Module, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Values of the output of each convolution, in order, for an image of this shape."""
    sides, found = list(shape[1:]), []
    for name, layer in backbone.named_modules():
        if isinstance(layer, torch.nn.Conv2d):
            if name == "conv":  # the first, with a pool after it
                found.append(layer.out_channels * math.prod(sides))
                sides = [-(-side // 2) for side in sides]
                found.append(layer.out_channels * math.prod(sides))
                continue
            if layer.kernel_size[0] > 1:
                sides = [-(-side // layer.stride[0]) for side in sides]
            found.append(layer.out_channels * math.prod(sides))
    return tuple(found)


def _kept(built: _Built, work: Work) -> int:
    """Bytes that a forward keeps of one sample until its backward is done."""
    inputs = math.prod(work.spec.shape)
    units = (_FILM if built.film else _UNIT) * sum(built.hidden) + _KEPT_MAPS * sum(built.maps)
    return int(_FLOAT * (2 * inputs + units + 3 * built.head))


def _passing(built: _Built, work: Work) -> int:
    """Bytes of one sample at the widest place of a prediction."""
    inputs = math.prod(work.spec.shape)
    units = (_FILM if built.film else _UNIT) * sum(built.hidden) + _PASSING_MAPS * max(built.maps, default=0)
    return int(_FLOAT * (2 * inputs + units + 2 * built.head))


class Weightless(TorchFunctionMode):
    """Whatever is made inside has a shape and a type, but no memory and no values.

    Not a mode of dispatch, nor torch's own fake tensors: both load its compiler, which takes a second.
    """

    _META = torch.device("meta")
    _DRAWN = (Tensor.uniform_, Tensor.normal_)  # values that nobody will see
    _COMPARED = (torch.where, Tensor.lt, Tensor.__lt__)

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Send what would be allocated elsewhere to the device that has no memory."""
        named = dict(kwargs or {})
        if func in self._DRAWN:
            return args[0]
        if func is torch.randn or func is torch.arange:
            func, named = torch.empty, {"dtype": torch.int64} if func is torch.arange else {}
        if func in self._COMPARED:
            shapes = [a.shape for a in args if isinstance(a, Tensor)]
            func, args = torch.empty, (shapes[0] if len(shapes) == 1 else np.broadcast_shapes(*shapes),)
        if func is torch.empty_like:
            given: Tensor = args[0]
            return torch.empty_strided(given.shape, given.stride(), dtype=given.dtype, device=self._META)
        if func in _device_constructors() or named.get("device") is not None:
            named["device"] = self._META
        if func is Tensor.to:
            args = tuple(self._META if isinstance(a, torch.device) else a for a in args)
        return func(*args, **named)
