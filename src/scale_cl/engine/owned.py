"""What a method owns, as it declared it: the network, parts, memories, state of the weights' shapes, teachers, tensors.

Because everything is declared once, it is grown, guarded, listed, saved and loaded here for every method alike.
"""

from __future__ import annotations

import gc
import random
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from functools import partial
from types import FunctionType, MethodType
from types import MemberDescriptorType as _Slot
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from scale_cl.engine.network import Network, running_statistics
from scale_cl.engine.parts import Part, TaskModules, TaskPart, TaskShape, Teacher
from scale_cl.engine.replay import ReplayMemory
from scale_cl.engine.settings import tensors_of
from scale_cl.engine.weights import Changes, Weights, WeightState
from scale_cl.errors import CheckpointError
from scale_cl.nets import GrowingParameter

_DEPTH = 6  # how far the search for undeclared state goes into lists and objects
_GENERATORS = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)
_RESERVED = {"net", "average", "rng", "weights_rng"}  # names of what every learner has


class Owned:
    """Everything declared, by name."""

    def __init__(self) -> None:
        """Nothing yet."""
        self.network: Network | None = None
        self.memories: dict[str, ReplayMemory] = {}
        self.parts: dict[str, Part] = {}
        self.task_modules: dict[str, TaskModules] = {}
        self.states: dict[str, WeightState] = {}
        self.teachers: dict[str, Teacher] = {}
        self.tensors: dict[str, tuple[Tensor, Changes]] = {}
        self.weights: list[Weights] = []
        self.average: WeightState | None = None

    @property
    def net(self) -> Any:
        """The module of the network."""
        assert self.network is not None
        return self.network.module

    @property
    def base(self) -> Weights:
        """Trunk and heads."""
        assert self.network is not None
        return self.network.base

    def is_free(self, name: str) -> bool:
        """Whether nothing of that name was declared."""
        kinds: tuple[Mapping[str, object], ...] = (
            self.memories,
            self.parts,
            self.task_modules,
            self.states,
            self.teachers,
            self.tensors,
        )
        return "." not in name and name not in _RESERVED and not any(name in kind for kind in kinds)

    # ---- what there is -----------------------------------------------------------------------------------------------

    def modules(self) -> list[nn.Module]:
        """All networks in use: the common one, parts and modules per task; a frozen teacher is not among them."""
        parts = [part.module for part in self.parts.values() if part.module is not None]
        return [self.net, *parts, *self.task_modules.values()]

    def module_tensors(self) -> list[Tensor]:
        """Parameters and buffers of all networks in use."""
        return [t for module in self.modules() for t in (*module.parameters(), *module.buffers())]

    def all_states(self) -> dict[str, WeightState]:
        """State of the weights' shapes, the weight average included."""
        return self.states | ({} if self.average is None else {"average": self.average})

    def learned(self) -> list[Tensor]:
        """All that a step changes and that must stay finite."""
        own = [*self.net.parameters(), *running_statistics(self.net)]
        own += [] if self.average is None else self.average.tensors
        for module in self.modules()[1:]:
            own += [*(p for p in module.parameters() if p.requires_grad), *running_statistics(module)]
        own += [t for state in self.states.values() if state.changes == "step" for t in state.tensors]
        return own + [t for t, changes in self.tensors.values() if changes == "step" and t.is_floating_point()]

    def others(self) -> list[Tensor]:
        """What else a step may change: buffers that are part of the state, such as counts, and tensors of integers."""
        learned = {id(t) for t in self.learned()}
        own = [t for t, changes in self.tensors.values() if changes == "step"]
        for module in self.modules():
            saved = module.state_dict(keep_vars=True)
            own += [buffer for name, buffer in module.named_buffers() if name in saved]
        return [t for t in own if id(t) not in learned]

    def places(self) -> object:
        """Where every tensor lies that a step may read or write, and whether heads differ in width.

        While this stays the same, a recorded step stays valid.
        """
        return self.net.heads.ragged, tuple((t.data_ptr(), t.shape) for t in self._all_tensors())

    def undeclared(self, method: object, saved: Iterable[torch.Generator]) -> tuple[str, str] | None:
        """The first attribute of a method with a tensor, array or generator that is not declared or saved, and which.

        A function that stands for one of the class, as in a program that watches a method, is no state of it.
        """
        known = {id(t) for t in (*self._all_tensors(), *saved)}
        for name, value in _attributes(method).items():
            if callable(value) and callable(getattr(type(method), name, None)):
                continue
            for held in _state_in(value, {id(method)}):
                if id(held) not in known:
                    return name, "a random generator" if isinstance(held, _GENERATORS) else "a tensor"
        return None

    def _all_tensors(self) -> list[Tensor]:
        """Every tensor of what was declared."""
        tensors = [*self.module_tensors(), *(t for weights in self.weights for t in weights.tensors)]
        tensors += [t for state in self.all_states().values() for t in state.tensors]
        tensors += [t for memory in self.memories.values() for t in memory.tensors()]
        teachers = [teacher.module for teacher in self.teachers.values() if teacher.module is not None]
        tensors += [t for module in teachers for t in (*module.parameters(), *module.buffers())]
        return tensors + [t for t, _ in self.tensors.values()]

    # ---- growth ------------------------------------------------------------------------------------------------------

    def grow(self, task: int, classes: int, *, generator: torch.Generator) -> None:
        """Make what task number `task` needs in every network, in the order of declaration."""
        self.net.ensure_task(task, classes, generator=generator)
        for part in self.parts.values():
            ensure = getattr(part.module, "ensure_task", None)
            if ensure is not None:
                ensure(task, classes, generator=generator)
        for modules in self.task_modules.values():
            modules.ensure_task(task, classes)

    def look_up(self) -> None:
        """After growth: find the parameters again, and let state of their shapes follow."""
        for weights in (*self.weights, *(part.weights for part in self.parts.values())):
            weights.look_up()
        for state in self.all_states().values():
            state.follow()

    # ---- state -------------------------------------------------------------------------------------------------------

    def state_tensors(self) -> dict[str, Tensor]:
        """Everything declared as tensors by name, without rows that are only allocated ahead."""
        saved = self.module_state()
        for name, state in self.all_states().items():
            saved |= _named(name, self._trimmed(state))
        for name, memory in self.memories.items():
            saved |= {f"{name}.{key}": t for key, t in memory.state_dict().items()}
        for name, teacher in self.teachers.items():
            saved |= {} if teacher.module is None else _named(name, teacher.module.state_dict())
        return saved | {name: plain_copy(t) for name, (t, _) in self.tensors.items()}

    def module_state(self) -> dict[str, Tensor]:
        """The tensors of all networks in use by name."""
        named = (_named(name, module.state_dict()) for name, module in self._named_modules().items())
        return {name: t for own in named for name, t in own.items()}

    def sized_by_state(self) -> tuple[str, ...]:
        """What the names of tensors begin with whose number and size a state decides: of modules that say so."""
        return tuple(
            f"{name}.{path}".rstrip(".") + "."  # the path of the module itself is empty
            for name, module in self._named_modules().items()
            for path, part in module.named_modules()
            if getattr(part, "sized_by_state", False)
        )

    def _named_modules(self) -> dict[str, nn.Module]:
        parts = {name: part.module for name, part in self.parts.items() if part.module is not None}
        return {**parts, "net": self.net, **self.task_modules}

    def shapes(self) -> dict[str, Any]:
        """Plain values from which modules of a single task and teachers are made again."""
        shapes: dict[str, Any] = {}
        for name, part in self.parts.items():
            if isinstance(part, TaskPart):
                shapes[name] = None if part.shape is None else list(asdict(part.shape).values())
        for name, modules in self.task_modules.items():
            shapes[name] = [list(asdict(shape).values()) for shape in modules.shapes]
        for name, teacher in self.teachers.items():
            shapes[name] = None if teacher.module is None else list(teacher.module.heads.classes)
        return shapes

    def load_memories(self, tensors: Mapping[str, Tensor]) -> None:
        """Take the memories over."""
        for name, memory in self.memories.items():
            memory.load_state_dict(tensors_of(name, tensors))

    def clear(self, shapes: Mapping[str, Any]) -> None:
        """No head any more, and modules of single tasks as these shapes describe, for a state that brings its own."""
        self.net.heads.clear()
        for name, part in self.parts.items():
            if isinstance(part, TaskPart):
                part.set(None if shapes[name] is None else TaskShape(*shapes[name]))
        for name, modules in self.task_modules.items():
            modules.clear()
            for shape in shapes[name]:
                modules.add(TaskShape(*shape))

    def load_modules(self, tensors: Mapping[str, Tensor], shapes: Mapping[str, Any]) -> None:
        """Take the networks over, grown already to the size that they have in the state."""
        _load(self.net, "net", tensors)
        self.net.heads.refresh()
        modules: dict[str, nn.Module] = {n: part.module for n, part in self.parts.items() if part.module is not None}
        for name, module in (modules | self.task_modules).items():
            _load(module, name, tensors)
            refresh = getattr(module, "refresh", None)
            if refresh is not None:
                refresh()
        for name, teacher in self.teachers.items():
            teacher.module = None
            if shapes[name] is not None:
                teacher.take(self.net)
                assert teacher.module is not None
                teacher.module.heads.clear()
                teacher.module.heads.classes = [int(n) for n in shapes[name]]
                _load(teacher.module, name, tensors)
                teacher.module.heads.refresh()
                teacher.module.requires_grad_(False)

    @torch.no_grad()
    def load_states(self, tensors: Mapping[str, Tensor]) -> None:
        """Take over state of the weights' shapes, and plain tensors."""
        if any(name.startswith("average.") for name in tensors) != (self.average is not None):
            raise CheckpointError("state has another weight average than this learner; make it with the same config")
        for name, state in self.all_states().items():
            state.reset()
            for key, saved in tensors_of(name, tensors).items():
                own = state.named[key]
                own[tuple(slice(n) for n in saved.shape)] = saved.to(own)
        for name, (t, _) in self.tensors.items():
            t.copy_(tensors[name])

    def _trimmed(self, state: WeightState) -> dict[str, Tensor]:
        parts = (part for module in self.modules() for part in module.modules())
        counts = {id(part.data): part.count for part in parts if isinstance(part, GrowingParameter)}
        pairs = zip(state.named.items(), state.weights.tensors, strict=True)
        return {name: t[: counts[id(p)]] if id(p) in counts else t for (name, t), p in pairs}


def plain_copy(t: Tensor) -> Tensor:
    """A copy that shares nothing and lies in memory as its shape says, fit for any file format."""
    return t.detach().clone(memory_format=torch.contiguous_format)


def _named(name: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {f"{name}.{key}": plain_copy(t) for key, t in tensors.items()}


def _load(module: nn.Module, name: str, tensors: Mapping[str, Tensor]) -> None:
    try:
        module.load_state_dict(tensors_of(name, tensors))
    except (RuntimeError, KeyError, ValueError, TypeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise CheckpointError(f"state does not fit this learner ({reason}); make it with the same config") from None


def _state_in(value: object, entered: set[int], depth: int = 0) -> Iterator[object]:
    """Tensors, arrays and generators in an attribute's value, or in what it holds: containers, functions, objects.

    Objects of classes of this package are not entered: what they hold is the engine's business, or declared.
    """
    if isinstance(value, (Tensor, np.ndarray, *_GENERATORS)):
        yield value
    elif isinstance(value, nn.Module):
        yield from value.parameters()
        yield from value.buffers()
    elif depth < _DEPTH and id(value) not in entered:
        entered.add(id(value))
        for member in _members(value):
            yield from _state_in(member, entered, depth + 1)


def _members(value: object) -> Iterable[object]:
    if isinstance(value, dict):
        return [*value, *value.values()]
    if isinstance(value, list | tuple | set | frozenset | deque):
        return value
    if isinstance(value, torch.optim.Optimizer):
        return [value.state, value.param_groups]
    if isinstance(value, FunctionType):
        return gc.get_referents(*(value.__closure__ or ()))  # what it was defined with
    if isinstance(value, MethodType):
        return [value.__self__, value.__func__]
    if isinstance(value, partial):
        return [value.func, value.args, value.keywords]
    origins = {_package(cls) for cls in type(value).__mro__}
    return [] if origins & {"scale_cl", "torch"} else _attributes(value).values()


def _attributes(value: object) -> dict[str, object]:
    """Attributes of an object by name: its own, also in slots, and those of its classes from outside this package."""
    found: dict[str, object] = {}
    for cls in reversed(type(value).__mro__):
        if _package(cls) not in {"scale_cl", "torch", "builtins"}:
            found |= {n: getattr(value, n, None) if isinstance(v, _Slot) else v for n, v in vars(cls).items()}
    return found | getattr(value, "__dict__", {})


def _package(cls: type) -> str:
    return cls.__module__.partition(".")[0]
