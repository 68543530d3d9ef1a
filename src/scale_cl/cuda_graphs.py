"""Recording a step as a CUDA graph, so that launching its many small kernels does not cost more than running them.

A function of device tensors with fixed shapes is called through `RecordedFunction`. On a GPU its first call runs
eagerly, the next one under the same conditions is recorded, and from then on it is replayed; elsewhere it is just
called. Eager calls and replays draw the same random numbers from the same generator.

A replay runs no Python. What the host decides inside the function (the size of a draw) and what it does there (count
the samples written) go through a `HostLog`: a recording is replayed only while every decision would be the same, and
each replay repeats what the host did.
"""

from __future__ import annotations

import gc
import warnings
from collections import deque
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock
from typing import TypeVar

import torch
from torch import Tensor

Outputs = dict[str, Tensor]
A = TypeVar("A", bound=Hashable)
_alone = Lock()  # a recording breaks if another thread loads kernels meanwhile, as an eager call may
_AGAIN = 500  # eager calls after a recording that failed for want of memory, until the next attempt
_REMEMBERED = 2  # latest eager calls; one under the same conditions comes before a recording: libraries load and tune


@dataclass
class _Noted:
    """What the host decided and did in one call."""

    recording: bool
    decisions: list[tuple[Callable[[], Hashable], Hashable]] = field(default_factory=list)
    effects: list[Callable[[], None]] = field(default_factory=list)

    def still_holds(self) -> bool:
        """Whether the host would decide the same now."""
        return all(question() == answer for question, answer in self.decisions)


class HostLog:
    """Decisions and effects of the host inside a step; without a GPU it only passes them on."""

    def __init__(self) -> None:
        """Nothing is noted until a `RecordedFunction` asks for it."""
        self._noted: _Noted | None = None

    def ask(self, question: Callable[[], A]) -> A:
        """The answer to `question`, on which the rest of the step depends.

        A replay asks all questions before it does anything, so a question must not depend on an effect of its own step.
        """
        answer = question()
        if self._noted is not None:
            self._noted.decisions.append((question, answer))
        return answer

    def do(self, effect: Callable[[], None]) -> None:
        """Have `effect` now, or in every replay of what is being recorded."""
        if self._noted is None or not self._noted.recording:
            effect()
        else:
            self._noted.effects.append(effect)

    @contextmanager
    def noting(self, *, recording: bool) -> Iterator[_Noted]:
        """Note what is decided inside; while `recording`, what is done is left to the replays."""
        before, self._noted = self._noted, _Noted(recording)
        try:
            yield self._noted
        finally:
            self._noted = before


@dataclass
class _Recording:
    graph: torch.cuda.CUDAGraph
    inputs: tuple[Tensor, ...]
    outputs: Outputs
    noted: _Noted


class _Pool:
    """Memory that recordings work in, one after another; a graph of next to nothing keeps it when they are dropped.

    Without that, the memory of dropped recordings can serve no later one, and is given back only when an allocation
    outside of a recording fails: with each task that drops recordings, less of the device is left.
    """

    def __init__(self, here: torch.cuda.Stream) -> None:
        """Recordings are made on the current stream `here`, or on another one if it is the default: that cannot record.

        Always on the same one, because memory is reused on the stream that it was taken on.
        """
        self.stream = torch.cuda.Stream() if here == torch.cuda.default_stream() else here
        self.handle, self._keeper = torch.cuda.graph_pool_handle(), torch.cuda.CUDAGraph()
        with torch.cuda.stream(self.stream):
            self._keeper.capture_begin(pool=self.handle, capture_error_mode="thread_local")
            try:
                torch.zeros(1, device=here.device)
            finally:
                self._keeper.capture_end()


class RecordedFunction:
    """Calls `function`, as a graph where that is possible."""

    def __init__(
        self,
        function: Callable[..., Outputs],
        *,
        device: torch.device,
        generator: torch.Generator,
        enabled: bool,
        host: HostLog | None = None,
    ) -> None:
        """Record calls of `function` when `enabled` and on a CUDA device; `generator` is what it draws from."""
        self._function, self._generator = function, generator
        self._possible = enabled and device.type == "cuda"
        self._host = HostLog() if host is None else host
        self._recordings: dict[Hashable, list[_Recording]] = {}
        self._eager: deque[tuple[Hashable, _Noted]] = deque(maxlen=_REMEMBERED)
        self._pool: _Pool | None = None
        self._not_yet = 0  # eager calls until a recording is tried again

    def __call__(self, key: Hashable, *inputs: Tensor) -> Outputs:
        """The outputs for `inputs`; a replay's outputs are overwritten by the next one.

        Args:
            key: shapes of the inputs and whatever else the caller decides; what the function decides is in the log.
            inputs: device tensors; copied into the recording's own.
        """
        if not self._possible:
            return self._function(*inputs)
        for recording in self._recordings.get(key, ()):
            if recording.noted.still_holds():
                return self._replay(recording, inputs)
        with _alone:
            warm = any(earlier == key and noted.still_holds() for earlier, noted in self._eager)
            made = self._record(inputs) if warm and not self._not_yet else None
            if made is None:
                self._not_yet = max(0, self._not_yet - 1)
                with self._host.noting(recording=False) as noted:
                    outputs = self._function(*inputs)
                self._eager.append((key, noted))
                return outputs
            self._recordings.setdefault(key, []).append(made)
        return self._replay(made, inputs)

    def _replay(self, recording: _Recording, inputs: tuple[Tensor, ...]) -> Outputs:
        """The recorded work, and the host's part of it."""
        for own, given in zip(recording.inputs, inputs, strict=True):
            own.copy_(given, non_blocking=True)
        recording.graph.replay()
        for effect in recording.noted.effects:
            effect()
        return recording.outputs

    @property
    def recorded(self) -> int:
        """How many graphs there are."""
        return sum(map(len, self._recordings.values()))

    def drop(self) -> None:
        """Forget all recordings: tensors they read or write have moved."""
        self._recordings.clear()
        self._eager.clear()

    def _record(self, inputs: tuple[Tensor, ...]) -> _Recording | None:
        own = tuple(x.clone() for x in inputs)
        graph = torch.cuda.CUDAGraph()
        graph.register_generator_state(self._generator)
        before = self._generator.get_state()
        here = torch.cuda.current_stream()
        try:
            with _no_collection(), self._host.noting(recording=True) as noted:
                pool = self._pool = self._pool or _Pool(here)
                pool.stream.wait_stream(here)
                with torch.cuda.stream(pool.stream):
                    graph.capture_begin(pool=pool.handle, capture_error_mode="thread_local")
                    try:
                        outputs = self._function(*own)
                    finally:
                        graph.capture_end()
        except Exception as error:  # whatever the driver or a kernel objects to: the step still runs, only slower
            self._pool = None  # it may be as broken as the recording
            self._restore(before)
            if torch.OutOfMemoryError in map(type, (error, error.__context__)):  # others may free some later
                self._not_yet = _AGAIN
                reason = f"the device's memory is full; the next attempt is made after {_AGAIN} steps"
            else:
                self._possible = False
                reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            warnings.warn(f"CUDA graph capture failed; running eagerly (slower): {reason}", RuntimeWarning, 3)
            return None
        here.wait_stream(pool.stream)
        return _Recording(graph, own, outputs, noted)

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
