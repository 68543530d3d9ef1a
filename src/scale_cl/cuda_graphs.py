"""Recording a step as a CUDA graph, so that batches of ten do not drown in launches.

A function of device tensors with fixed shapes and no host work is called through `RecordedFunction`. On a GPU its first
call with a key runs eagerly, the next one in a row is recorded, and from then on it is replayed; elsewhere it is just
called. A recording changes nothing: eager calls and replays draw the same random numbers from the same generator.
"""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock
from typing import Any

import torch
from torch import Tensor

Outputs = dict[str, Tensor]
_alone = Lock()  # a recording breaks if another thread loads kernels meanwhile, as a call that is not replayed may
_WARM_UP = 1  # eager calls with one key, in a row, before it is worth a graph (libraries load and tune in them)


@dataclass
class _Recording:
    graph: torch.cuda.CUDAGraph
    inputs: tuple[Tensor, ...]
    outputs: Outputs


class RecordedFunction:
    """Calls `function`, as a graph where that is possible."""

    def __init__(
        self, function: Callable[..., Outputs], *, device: torch.device, generator: torch.Generator, enabled: bool
    ) -> None:
        """Record calls of `function` when `enabled` and on a CUDA device; `generator` is what it draws from."""
        self._function, self._generator = function, generator
        self._possible = enabled and device.type == "cuda"
        self._recordings: dict[Hashable, _Recording] = {}
        self._last: Hashable = None
        self._streak = 0
        self._pool: Any = None

    def __call__(self, key: Hashable, *inputs: Tensor) -> Outputs:
        """The outputs for `inputs`; a replay's outputs are overwritten by the next one of the same key.

        Args:
            key: all that the host decides inside `function`: shapes, sizes of draws, versions of tensors.
            inputs: device tensors; copied into the recording's own.
        """
        if not self._possible:
            return self._function(*inputs)
        recording = self._recordings.get(key)
        if recording is None:
            with _alone:
                self._streak = self._streak + 1 if key == self._last else 1
                self._last = key
                if self._streak > _WARM_UP:
                    recording = self._record(inputs)
                if recording is None:
                    return self._function(*inputs)
                self._recordings[key] = recording
        for own, given in zip(recording.inputs, inputs, strict=True):
            own.copy_(given, non_blocking=True)
        recording.graph.replay()
        return recording.outputs

    @property
    def recorded(self) -> int:
        """How many graphs there are."""
        return len(self._recordings)

    def drop(self) -> None:
        """Forget all recordings: tensors they read or write have moved."""
        self._recordings.clear()
        self._last, self._streak, self._pool = None, 0, None

    def _record(self, inputs: tuple[Tensor, ...]) -> _Recording | None:
        own = tuple(x.clone() for x in inputs)
        graph = torch.cuda.CUDAGraph()
        graph.register_generator_state(self._generator)
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        before = self._generator.get_state()
        here = torch.cuda.current_stream()
        aside = torch.cuda.Stream() if here == torch.cuda.default_stream() else here  # the default one cannot record
        aside.wait_stream(here)
        try:
            with torch.cuda.stream(aside), _no_collection():
                graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
                try:
                    outputs = self._function(*own)
                finally:
                    graph.capture_end()
        except Exception as error:  # whatever the driver or a kernel objects to: the step still runs, only slower
            self._possible = False
            self._restore(before)
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            warnings.warn(f"steps run one kernel at a time, as they cannot be recorded: {reason}", RuntimeWarning, 3)
            return None
        here.wait_stream(aside)
        return _Recording(graph, own, outputs)

    def _restore(self, state: Tensor) -> None:
        """A recording that broke off leaves the generator waiting for its end: give it a new inside."""
        fresh = torch.Generator(self._generator.device)
        fresh.set_state(state)
        self._generator.graphsafe_set_state(fresh.graphsafe_get_state())


@contextmanager
def _no_collection() -> Iterator[None]:
    """No garbage collection meanwhile: a graph that is freed during a recording breaks it."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
