"""Learners of tensors that have a shape and no memory: to count what one would take, or to compare it with a file."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._device import _device_constructors

from scale_cl.engine.engine import Engine
from scale_cl.engine.settings import State, tensors_of
from scale_cl.engine.validation import check_heads, check_plain_values
from scale_cl.errors import CheckpointError, one_line
from scale_cl.nets.custom_backbone import is_ours

_ALWAYS = 256 << 20  # bytes that a memory may take before it has seen a sample
_UNUSED = 1 << 30  # bytes that all which tasks could have added, and did not, may take while a state is loaded


class HasEngine(Protocol):
    """A learner."""

    engine: Engine


def check_before_making(make: Callable[[], HasEngine], state: State, *, kind: type, backbone: object) -> None:
    """Raise CheckpointError unless the learner that `make` makes would have the tensors of `state`.

    For a state from a file, whose settings decide what is allocated: nothing of size is, before they are compared. A
    class or backbone from outside this package is not tried: it may do what shapes alone cannot.
    """
    if not kind.__module__.startswith("scale_cl.") or not isinstance(backbone, str) or not is_ours(backbone):
        return
    tensors, meta = state["tensors"], state["meta"]
    check_plain_values(meta)
    try:
        with Weightless():
            engine = make().engine
            check_heads(tensors, meta, shared=engine.net.heads.shared)
            engine.owned.clear(meta["shapes"])
            for number, (_, classes) in enumerate(meta["tasks"]):
                engine.owned.grow(number, classes, generator=engine.weights_rng)
            expected, any_size = engine.owned.module_state(), engine.owned.sized_by_state()
            for name, memory in engine.owned.memories.items():
                own = tensors_of(name, tensors)
                memory.check_rows(own)
                if len(own["y"]) == 0 and sum(t.nbytes for t in memory.tensors()) > _ALWAYS:
                    raise CheckpointError(f"state does not fit its settings: its {name} has no rows")
    except CheckpointError:
        raise
    except (RuntimeError, ValueError, TypeError, KeyError, IndexError, OverflowError, MemoryError) as error:
        raise CheckpointError(f"state does not fit its settings ({one_line(error)})") from None
    unused = 0
    for name, t in expected.items():
        found = tensors.get(name)
        if name.startswith(any_size):  # the most that there can be, of which the state has what was used
            unused += t.nbytes - (0 if found is None else found.nbytes)
            continue
        if found is None:
            raise CheckpointError(f"state does not fit its settings: it has no {name}")
        if found.shape != t.shape or found.dtype != t.dtype:
            raise CheckpointError(
                f"state does not fit its settings: {name} is {found.dtype} of {list(found.shape)}, but they make "
                f"{t.dtype} of {list(t.shape)}"
            )
    if unused > _UNUSED:
        raise CheckpointError(
            f"state does not fit its settings: they make networks that are {unused >> 20:,} MiB larger"
        )


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
        if func is torch.empty_like or func is torch.zeros_like:
            given: Tensor = args[0]
            return torch.empty_strided(given.shape, given.stride(), dtype=given.dtype, device=self._META)
        if func in _device_constructors() or named.get("device") is not None:
            named["device"] = self._META
        if func is Tensor.to:
            args = tuple(self._META if isinstance(a, torch.device) else a for a in args)
        return func(*args, **named)
