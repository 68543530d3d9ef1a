"""Whether a run or a task will fit, said before it begins: what it takes against what the device has free.

What one learner takes is counted, not allocated. What it declares comes from the learner itself, built of tensors that
have a shape and no memory, with all the tasks it will see: networks, memories, teachers, tensors. The rest is counted
from shapes: the memories' rows, copies that the guard holds, and the values that a forward keeps for its backward.
It is an estimate from above; tests hold it against what learners really take.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch

from scale_cl.engine import Compute, LearnerConfig, TaskPart, TaskShape
from scale_cl.engine.weightless import Weightless
from scale_cl.errors import FAILURES, ConfigError
from scale_cl.learners import Learner, registry
from scale_cl.memory import first_tasks
from scale_cl.memory.ragged_rows import FIRST_ROOM
from scale_cl.streams import InputSpec, Stream
from scale_cl.streams.keeping import free_memory
from scale_cl.streams.reading import LazyRows
from scale_cl.training.config import Config
from scale_cl.training.learner_run import CHUNK

_PROCESS = 200 * 2**20  # bytes of a process of its own: Python, torch and what they load
_LIBRARIES = 64 * 2**20  # bytes that cuBLAS and cuDNN work in, for each CUDA stream
_UNITS = ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))
_BUILT = 64  # tasks that are built; beyond, growth goes on as it was from half of these on
_ROW = 58  # bytes of a memory's row beside the sample: label, task, number, two flags, where its logits lie
_FLOAT, _INT = 4, 8
_KEPT_MAPS = 3.0  # tensors kept of each convolution: its output, what norm and activation make of it, a joined copy
_PASSING_MAPS = 4.0  # tensors of the largest size that are there at once in evaluation
_UNIT, _FILM = 4, 10  # values kept of each hidden unit: before and after activation; of FiLM, scales and shifts too
_FIRST_CAPACITY = 32  # tasks that heads and embeddings have room for from the start
_LARGEST_TASK = 20  # times what a learner holds: a task adds less, but for a gradient of each task before
_log = logging.getLogger("scale_cl")


def needed(
    config: Config, stream: Stream, *, on_gpu: bool, learners: int, apart: bool = False, whole: bool = True
) -> dict[str, int]:
    """Bytes that a run of so many learners at once takes, beyond what it has taken already, by purpose.

    Learners that run `apart` have a process and a copy of the stream each. Without `whole`, only what is there for
    certain and needs no model to be known: stream, tasks and the samples of a memory that the setting `memory` sizes.
    """
    arrays, data = stream.arrays, sum(source.nbytes for source in stream.sources())
    sample = math.prod(arrays.x_train.shape[1:]) * arrays.x_train.dtype.itemsize
    if isinstance(arrays.x_train, LazyRows):  # a batch, a chunk of a test set, and what is read ahead of each
        at_once = (config.run.batch_size + CHUNK) * sample + 2 * arrays.x_train.ahead_bytes
    else:  # a task's own data, permuted or gathered, is made as it begins
        at_once = max(len(task.train) + len(task.test) for task in stream.tasks) * sample
    work = work_of(config, stream, on_gpu=on_gpu)
    parts = {
        "processes": learners * _PROCESS if apart else 0,
        "stream": data if on_gpu else learners * data if apart else 0,
        "tasks": learners * at_once,
        "memory": learners * memory_bytes(_setting_of_memory(config.learner), work),
    }
    if not whole:
        return parts
    one = footprint(config.learner_name, config.learner, work)
    step = {"gradients": one.gradients, "step": one.step}
    others = [{"evaluation": one.evaluation}, {"checkpoint": one.checkpoint}]
    if on_gpu and config.run.capture:  # a recording keeps its own room
        step |= others.pop(0)
    largest = max([step, *others], key=lambda part: sum(part.values()))  # they come and go in turns
    parts |= {name: learners * getattr(one, name) for name in ("memory", "model", "copies")}
    parts |= {name: learners * size for name, size in largest.items()}
    parts["libraries"] = learners * _LIBRARIES if on_gpu else 0
    return parts


def work_of(config: Config, stream: Stream, *, on_gpu: bool) -> Work:
    """What each learner of a run is to be used for."""
    classes = tuple(task.info.classes for task in stream.tasks)
    tested = max(len(task.test) for task in stream.tasks)
    batch = min(config.run.batch_size, max(len(task.train) for task in stream.tasks))
    return Work(stream.spec, classes, batch, tested, on_gpu)


def check_fits(
    config: Config, stream: Stream, device: torch.device, *, learners: int, apart: bool = False, share: float = 1.0
) -> None:
    """Raise ConfigError if so many learners at once will not fit into `share` of what the device has free.

    Nothing is raised if that is not known.
    """
    known = free_bytes(device)
    if known is None:
        return
    free = int(share * known)
    on_gpu = device.type == "cuda"
    parts = needed(config, stream, on_gpu=on_gpu, learners=learners, apart=apart, whole=False)
    if sum(parts.values()) <= free:  # else the model need not be looked at, nor could it be built around such a memory
        try:
            parts = needed(config, stream, on_gpu=on_gpu, learners=learners, apart=apart)
        except FAILURES as error:  # a guard that cannot count is no reason for a run to fail
            _log.debug("the size of %s is not known: %s", config.learner_name, error)
    total = sum(parts.values())
    if total <= free:
        return
    raise ConfigError(
        f"{learners} learner{'s' if learners > 1 else ''} on {stream.name} need about {_listed(parts)}, "
        f"but {device} has {words(free)} free; take {_advice(config, parts, on_gpu=on_gpu, learners=learners)}"
    )


def check_task_fits(
    name: str, config: LearnerConfig, work: Work, device: torch.device, *, learner: Learner | None
) -> None:
    """Raise ConfigError if the last task of `work` will not fit into what the device has free.

    `learner` has learned all tasks but the last; None: there is none yet. Nothing is raised if what is free or what the
    learner called `name` takes is not known.
    """
    free, tasks = free_bytes(device), len(work.classes)
    if free is None:
        return
    if learner is not None:
        owned = learner.engine.owned
        held = [*owned.module_tensors(), *(t for memory in owned.memories.values() for t in memory.tensors())]
        if (_LARGEST_TASK + tasks) * sum(t.nbytes for t in held) < free:
            return
    try:
        now = footprint(name, config, work)
        before = None if learner is None else footprint(name, config, replace(work, classes=work.classes[:-1]))
    except Exception as error:  # as in `check_fits`
        _log.debug("the size of %s is not known: %s", name, error)
        return
    kept = ("memory", "model", "copies")
    parts = {part: getattr(now, part) - (0 if before is None else getattr(before, part)) for part in kept}
    parts |= {"gradients": now.gradients, "step": now.step}
    if sum(parts.values()) <= free:
        return
    network = ("fewer tasks or " if tasks > 1 else "") + "another backbone (backbone)"
    ways = {
        "fewer memory slots (memory)": parts["memory"],
        _smaller_network(name, network): parts["model"] + parts["copies"] + parts["gradients"],
        f"smaller batches ({'batch_size, replay' if hasattr(config, 'replay') else 'batch_size'})": parts["step"],
    }
    way = _by_size(ways)[0][0]
    raise ConfigError(
        f"task number {tasks} of {name} needs about {_listed(parts)}, but {device} has {words(free)} free; take {way}"
    )


def _listed(parts: dict[str, int]) -> str:
    """`3.0 GiB (model 2.0 GiB, step 1.0 GiB)`."""
    listed = ", ".join(f"{name} {words(size)}" for name, size in _by_size(parts))
    return f"{words(sum(parts.values()))} ({listed})"


def _smaller_network(name: str, way: str, section: str = "") -> str:
    """That way, or the one that the settings of the learner called `name` offer."""
    own = registry.entry(name).kind.smaller
    return way if own is None else f"{way} or {own[0]} ({section}{own[1]})"


def _by_size(parts: dict[str, int]) -> list[tuple[str, int]]:
    return sorted(((name, size) for name, size in parts.items() if size), key=lambda part: -part[1])


def _advice(config: Config, parts: dict[str, int], *, on_gpu: bool, learners: int) -> str:
    """What to change first, by what takes most, and that less at once is less."""
    most = _by_size(parts)[0][0]
    own = config.stream.own_data is not None
    smaller = "smaller images (stream.size)" if own else "another backbone (learner.backbone)"
    slots = "fewer memory slots" + (" (learner.memory)" if hasattr(config.learner, "memory") else "")
    fewer_tasks = _smaller_network(config.learner_name, "fewer tasks (stream.tasks)", "learner.")
    smaller_net = _smaller_network(config.learner_name, smaller, "learner.")
    first = {
        "memory": slots,
        "step": "smaller batches (run.batch_size)",
        "evaluation": smaller_net,
        "model": smaller_net,
        "gradients": smaller_net,
        "copies": fewer_tasks,
        "checkpoint": slots if parts["memory"] > parts.get("model", 0) else fewer_tasks,
    }.get(most, "")
    if most == "step" and hasattr(config.learner, "replay"):
        first = "smaller batches (run.batch_size, learner.replay)"
    fewer = "fewer seeds at once (run.seeds)" if on_gpu else "fewer processes (run.processes)"
    ways = [way for way in (first, fewer if learners > 1 else "", "run.device=cpu" if on_gpu else "") if way]
    return " or ".join(ways) or "fewer tasks (stream.tasks)"


def free_bytes(device: torch.device) -> int | None:
    """What the device has free; None where nobody says."""
    if device.type == "cuda":
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)  # by this process
        return int(torch.cuda.mem_get_info(device)[0]) + unused
    return free_memory()


def words(size: int) -> str:
    """`1.5 GiB`."""
    unit, name = next(((u, n) for u, n in _UNITS if size >= u), (1, "bytes"))
    return f"{size / unit:.1f} {name}" if unit > 1 else f"{size} bytes"


# ---- one learner -----------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Footprint:
    """Bytes of one learner: what it holds all the time, and what comes and goes."""

    memory: int  # samples with labels and stored logits
    model: int  # parameters and running statistics of all networks
    copies: int  # of parameters: the last good ones, a weight average, teachers; and other tensors that a method keeps
    gradients: int  # and other tensors of the weights' shapes that a step holds
    step: int  # activations of the largest training batch
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
    memory = sum(memory_bytes(declared, work) for declared in built.memories)
    guarded = 2 if work.on_gpu else 1  # copies of all that a step changes, which the divergence guard holds
    grows = built.grows or len(work.classes) > _FIRST_CAPACITY
    average = built.base * (config.weight_average > 0)
    kept = average + built.kept
    copies = guarded * built.learned * (2 if grows else 1)  # as tensors grow, the new ones beside the old
    copies += kept + guarded * (average + built.changing)
    stored = sum(_slots(declared, work) for declared in built.memories)
    size = registry.entry(name).kind.step_size(config, work.batch, stored, len(work.classes))
    graph = size.samples * _sample(built, work, _KEPT_MAPS * sum(built.maps), 3)  # until its backward is done
    prepared = size.sets * size.samples * math.prod(work.spec.shape) * (2 * _FLOAT + 1)
    hashed = size.sets * sum(_rows(declared, work) for declared in built.memories) * 3 * _INT
    return Footprint(
        memory=memory,
        model=built.learned,
        copies=copies,
        gradients=size.copies * built.base + built.others,
        step=graph + prepared + hashed,
        evaluation=min(CHUNK, work.tested) * _sample(built, work, _PASSING_MAPS * max(built.maps, default=0), 2),
        checkpoint=(built.learned + kept + memory) * (1 if work.on_gpu else 3),
    )


@dataclass(frozen=True)
class DeclaredMemory:
    """An episodic memory that a method declares."""

    slots: int
    budget: str  # what the slots are counted by: task, class or total
    logits: tuple[str, ...] = ()  # kinds that are stored with samples
    features: int = 0  # width of what is stored as another kind than class or task


def memory_bytes(declared: DeclaredMemory, work: Work) -> int:
    """Bytes of an episodic memory with all tasks in it, as it is allocated."""
    slots, tasks = declared.slots, len(work.classes)
    if slots == 0:
        return 0
    rows = _rows(declared, work)
    over_classes = 2 * max(FIRST_ROOM, rows // tasks * sum(work.classes)) * _FLOAT  # in a tensor that doubles
    over_tasks = max(FIRST_ROOM, slots * (tasks + 2) ** 2) * _FLOAT
    over_features = 2 * max(FIRST_ROOM, rows * declared.features) * _FLOAT
    widths = {"class": over_classes, "task": over_tasks}
    logits = sum(widths.get(kind, over_features) for kind in declared.logits)
    grown = 1.5 if rows > slots * first_tasks(slots, _sample_bytes(work.spec)) else 1  # the old beside the new
    return int(rows * grown * (_sample_bytes(work.spec) + _ROW)) + logits


def _setting_of_memory(config: LearnerConfig) -> DeclaredMemory:
    """The memory that most methods with these settings will declare; without such a setting, none."""
    return DeclaredMemory(int(getattr(config, "memory", 0)), getattr(config, "memory_budget", "task"))


def _slots(declared: DeclaredMemory, work: Work) -> int:
    """Samples that a memory can hold when all tasks are done."""
    counted = {"task": len(work.classes), "class": sum(work.classes), "total": 1}
    return declared.slots * counted[declared.budget]


def _rows(declared: DeclaredMemory, work: Work) -> int:
    """Rows that are allocated for them: a number that doubles."""
    if declared.budget == "total" or declared.slots == 0:
        return declared.slots
    rows = declared.slots * first_tasks(declared.slots, _sample_bytes(work.spec))
    while rows < _slots(declared, work):
        rows *= 2
    return rows


def _sample_bytes(spec: InputSpec) -> int:
    return math.prod(spec.shape) * (_FLOAT if spec.pixel_max is None else 1)


# ---- networks ----------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class _Built:
    """Bytes of a learner's parameters, and the forms that its activations follow from."""

    base: int  # trunk and heads
    others: int  # gradients of all other networks
    learned: int  # all networks, running statistics included
    kept: int  # what is declared beside networks: teachers, tensors of the weights' shapes and others
    changing: int  # those of these tensors that change in every step
    grows: bool  # whether large tensors are made anew as tasks arrive
    memories: tuple[DeclaredMemory, ...]
    hidden: tuple[int, ...]  # units of each layer of an MLP
    film: bool
    maps: tuple[int, ...]  # values of each convolution's output for one sample
    head: int  # values of the widest head


@lru_cache(maxsize=64)
def _built(name: str, config: LearnerConfig, spec: InputSpec, classes: tuple[int, ...]) -> _Built:
    few = _built_with(name, config, spec, classes[:_BUILT])
    if len(classes) <= _BUILT:
        return few
    half = _built_with(name, config, spec, classes[: _BUILT // 2])
    times = 2 ** math.ceil(math.log2(len(classes))) / (_BUILT // 2) - 1

    def grown(field: str) -> int:
        return int(getattr(half, field) + times * (getattr(few, field) - getattr(half, field)))

    sizes: dict[str, Any] = {field: grown(field) for field in ("base", "others", "learned", "kept", "changing")}
    return replace(few, **sizes)


def weightless_learner(name: str, config: LearnerConfig, spec: InputSpec, classes: Sequence[int]) -> Learner:
    """A learner with tasks of so many classes, of tensors that have a shape and no memory."""
    with Weightless():
        learner = registry.make(name, spec, config, compute=Compute("fp32", capture=False))
        owned = learner.engine.owned
        for task, outputs in enumerate(classes):
            owned.grow(task, outputs, generator=learner.engine.weights_rng)
        for part in owned.parts.values():
            if isinstance(part, TaskPart):
                part.begin(TaskShape(len(classes) - 1, classes[-1], len(classes)))
        owned.look_up()
    return learner


def _built_with(name: str, config: LearnerConfig, spec: InputSpec, classes: Sequence[int]) -> _Built:
    learner = weightless_learner(name, config, spec, classes)
    owned = learner.engine.owned
    net, backbone = learner.net, learner.engine.backbone
    base, generator = net.base_parameters(), net.generator_parameters()
    private = [p for n, p in net.named_parameters() if p.requires_grad and n not in base and n not in generator]
    maps = _maps(backbone, spec.shape)
    if maps:  # convolutions of a module per task: rows of weights, each of a stride of 2
        biases = [p for p in private if p.dim() == 2][:-1]
        maps += tuple(b.shape[1] * math.prod(-(-s // 2**i) for s in spec.shape[1:]) for i, b in enumerate(biases, 1))
    teacher = sum(t.nbytes for t in (*net.parameters(), *net.buffers()))
    tensors = [*owned.tensors.values(), *((t, s.changes) for s in owned.states.values() for t in s.tensors)]
    return _Built(
        base=sum(p.nbytes for p in base.values()),
        others=sum(p.nbytes for p in generator.values())
        + sum(p[0].nbytes for p in private)
        + sum(p.nbytes for module in owned.modules()[1:] for p in module.parameters() if p.requires_grad),
        learned=sum(t.nbytes for t in owned.module_tensors()),
        kept=len(owned.teachers) * teacher + sum(t.nbytes for t, _ in tensors),
        changing=sum(t.nbytes for t, changes in tensors if changes == "step"),
        grows=bool(private) or bool(owned.task_modules),
        memories=tuple(
            DeclaredMemory(m.slots, m.budget, tuple(m.logits), net.heads.width) for m in owned.memories.values()
        ),
        hidden=() if maps else backbone.film_widths,
        film=net.generator is not None,
        maps=maps,
        head=max(classes) * net.heads.width,
    )


def _maps(backbone: torch.nn.Module, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Values of the output of each convolution, in order, for an image of this shape."""
    sides, found = list(shape[1:]), []
    for name, layer in backbone.named_modules():
        if isinstance(layer, torch.nn.Conv2d):
            if name == "conv" and getattr(backbone, "pool", True):  # the first, with a pool after it
                found.append(layer.out_channels * math.prod(sides))
                sides = [-(-side // 2) for side in sides]
                found.append(layer.out_channels * math.prod(sides))
                continue
            if layer.kernel_size[0] > 1:
                sides = [-(-side // layer.stride[0]) for side in sides]
            found.append(layer.out_channels * math.prod(sides))
    return tuple(found)


def _sample(built: _Built, work: Work, maps: float, heads: int) -> int:
    """Bytes of one sample: its inputs, hidden units, so many values of maps and so many heads."""
    units = (_FILM if built.film else _UNIT) * sum(built.hidden)
    return int(_FLOAT * (2 * math.prod(work.spec.shape) + units + maps + heads * built.head))
