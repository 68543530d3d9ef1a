"""A tracker beside the training, in a thread of its own: nothing waits for a server, a failure ends nothing else."""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial

from scale_cl.trackers.backend import Backend, Ending
from scale_cl.trackers.curves import Curves

_log = logging.getLogger("scale_cl")
_FLUSH = 1.0  # seconds that a point may be held back
_MOST_WAITING = 200_000  # reports; more mean that the tracker hangs
_PATIENCE: dict[Ending, float] = {"finished": 60.0, "stopped": 10.0, "failed": 10.0}  # seconds at the end of a run


class Background:
    """A recorder (see `scale_cl.training.observer`) whose calls return at once.

    The first error ends the tracking, with one warning; training never notices.
    """

    def __init__(self, backend: Backend, loss_every: int, remember: Callable[[str, dict[str, object]], None]) -> None:
        """Fill `backend`, which has started; `remember` keeps what it needs to be gone on with."""
        self.loss_every = loss_every
        self._backend, self._remember = backend, remember
        self._curves = Curves(backend, loss_every)
        self._jobs: queue.Queue[Callable[[], None] | None] = queue.Queue()
        self._failed = False
        self._thread = threading.Thread(target=self._work, name=f"tracking with {backend.name}", daemon=True)
        self._thread.start()

    def started(self, stream: str, learner: str, seeds: list[int], tasks: int, steps: int) -> None:
        """Pass it on, and keep what is needed to go on."""
        self._do(partial(self._curves.started, stream, learner, list(seeds), tasks, steps))
        self._do(lambda: self._remember(self._backend.name, self._backend.memory()))

    def task_started(self, task: int, name: str, steps: int) -> None:
        """Pass it on."""
        self._do(partial(self._curves.task_started, task, name, steps))

    def stepped(self, steps: int) -> None:
        """Nothing."""

    def evaluated(self, seed: int, task: int, accuracies: list[float]) -> None:
        """Pass it on."""
        self._do(partial(self._curves.evaluated, seed, task, list(accuracies)))

    def losses(self, seed: int, step: int, terms: Mapping[str, float]) -> None:
        """Pass it on."""
        self._do(partial(self._curves.losses, seed, step, terms))

    def restored(self, seed: int, steps: int, matrix: list[list[float | None]]) -> None:
        """Pass it on."""
        self._do(partial(self._curves.restored, seed, steps, matrix))

    def finished(self) -> None:
        """Pass it on."""
        self._do(self._curves.finished)

    def close(self, how: Ending) -> None:
        """End the tracking and wait for it, but not for ever."""
        self._do(partial(self._curves.end, how))
        self._jobs.put(None)
        patience = _PATIENCE[how]
        self._thread.join(patience)
        if self._thread.is_alive():
            self._fail(TimeoutError(f"it has not ended within {patience:.0f} s"))

    def _do(self, job: Callable[[], None]) -> None:
        if self._failed:
            return
        if self._jobs.qsize() >= _MOST_WAITING:
            self._fail(TimeoutError(f"{_MOST_WAITING} reports wait for it"))
            return
        self._jobs.put(job)

    def _work(self) -> None:
        flushed = time.monotonic()
        while True:
            try:
                job = self._jobs.get(timeout=_FLUSH)
            except queue.Empty:
                job = self._backend.flush
            if job is None:
                return
            self._try(job)
            if time.monotonic() - flushed >= _FLUSH:
                self._try(self._backend.flush)
                flushed = time.monotonic()

    def _try(self, job: Callable[[], None]) -> None:
        if self._failed:
            return
        try:
            job()
        except Exception as error:  # whatever someone else's library raises
            self._fail(error)
            with contextlib.suppress(Exception):
                self._backend.drop()

    def _fail(self, error: Exception) -> None:
        if not self._failed:
            self._failed = True
            reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
            _log.warning(
                "scale-cl: warning: tracking with %s broke off, the run goes on without it: %s",
                self._backend.name,
                reason,
            )
