"""Tracking a training run: a listener that fills one or several trackers while training goes on.

Each tracker has a thread of its own, so that training never waits for a server, and a failure ends only the tracking.
`DIR/tracking.json` notes what a resumed run needs to continue in the same places.
"""

from __future__ import annotations

import contextlib
import json
import logging
import queue
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from scale_cl import files
from scale_cl.errors import ConfigError, Interrupted, TrackerError, one_line
from scale_cl.json_format import Format
from scale_cl.trackers.backend import About, Backend, Ending, make, parse, without_passwords
from scale_cl.trackers.curves import Curves
from scale_cl.trackers.tensorboard_logs import FOLDER
from scale_cl.training.events import Event, Started, Stepped

EVERY = 50  # steps from one point of the loss curves to the next
SCHEMA = 1
NOTE_NAME = "tracking.json"
_LARGEST = 16 << 20  # bytes
_FLUSH = 1.0  # seconds that a point may be buffered
_MOST_WAITING = 200_000  # events; more mean that the tracker hangs
_PATIENCE: dict[Ending, float] = {"finished": 60.0, "stopped": 10.0, "failed": 10.0}  # seconds to wait at the end
_log = logging.getLogger("scale_cl")


class Tracking:
    """A listener that passes events on to the trackers: `train(..., on_event=tracking, loss_every=...)`."""

    def __init__(self, backgrounds: Sequence[_Background], places: dict[str, str], loss_every: int) -> None:
        self._backgrounds = list(backgrounds)
        self.places = places  # where to look, by tracker
        self.loss_every = loss_every  # to be passed to `train`, `train_many` or `run`

    def __call__(self, event: Event) -> None:
        """Pass the event on; returns at once."""
        for background in self._backgrounds:
            background(event)


@contextmanager
def tracking(
    trackers: str | Sequence[str | Backend],
    directory: str | Path,
    *,
    every: int = EVERY,
    project: str | None = None,
    address: str | None = None,
    config: Mapping[str, Any] | None = None,
    environment: Mapping[str, Any] | None = None,
    seeds: Sequence[int] = (),
    resume: bool = False,
) -> Iterator[Tracking]:
    """A listener for `train`, `train_many` or `run`, for as long as the context lasts.

        with tracking("tensorboard", "runs/mine") as tracker:
            result = train(learner, stream, on_event=tracker, loss_every=tracker.loss_every)

    A tracker that cannot start raises a TrackerError here; one that fails later is dropped with a warning. Seeds that
    are trained side by side are told apart by their numbers.

    Args:
        trackers: tensorboard, mlflow, wandb, several with commas or in a list; or a `Backend` of your own.
        directory: of the run; TensorBoard's logs and W&B's files are written there. Its name is the run's title.
        every: steps from one point of the loss curves to the next; a point is the mean over them. 0: no such curves.
        project: name of MLflow's experiment and W&B's project; by default their environment variables, or scale-cl.
        address: of MLflow's server; by default MLFLOW_TRACKING_URI.
        config: recorded as the settings of the run.
        environment: recorded as the machine and the versions.
        seeds: those that will be trained, if known already.
        resume: continue in the places that the directory's note names.
    """
    directory = Path(directory)
    if every < 0:
        raise ConfigError(f"the interval of loss curves is {every}; it must be at least 0")
    before = read(directory) if resume else None
    backends = _made(trackers, project, address)
    about = About(directory, directory.absolute().name, _plain(config), _plain(environment), list(seeds))
    note = _Note(directory, every, {} if before is None else before.trackers)
    how: Ending = "failed"

    def close(background: _Background) -> None:
        background.close(how)

    with ExitStack() as stack:
        places, backgrounds = {}, []
        for backend in backends:
            places[backend.name] = backend.start(about, None if before is None else before.trackers.get(backend.name))
            background = _Background(backend, note.put)
            stack.callback(close, background)
            backgrounds.append(background)
        if not resume:
            forget(directory)
        try:
            yield Tracking(backgrounds, places, every)
            how = "finished"
        except (Interrupted, KeyboardInterrupt):
            how = "stopped"
            raise


def _plain(values: Mapping[str, Any] | None) -> dict[str, Any]:
    """As JSON values: a version that is a kind of string becomes a string."""
    plain: dict[str, Any] = json.loads(json.dumps(dict(values or {}), default=str))
    return plain


def _made(trackers: str | Sequence[str | Backend], project: str | None, address: str | None) -> list[Backend]:
    given = [trackers] if isinstance(trackers, str) else list(trackers)
    backends: list[Backend] = []
    for one in given:
        if isinstance(one, str):
            backends += [make(name, project=project, address=address) for name in parse([one])]
        else:
            backends.append(one)
    names = [backend.name for backend in backends]
    if not names or len(set(names)) < len(names):
        raise ConfigError(f"trackers are {', '.join(names) or 'none'}; give at least one, and each once")
    return backends


# ---- one tracker in a thread -----------------------------------------------------------------------------------------
class _Background:
    """A listener that returns at once; a thread passes the events on to one tracker.

    The first error ends the tracking with one warning; training never notices.
    """

    def __init__(self, backend: Backend, remember: Callable[[str, dict[str, Any]], None]) -> None:
        """`backend` has started; `remember` stores what it needs to be continued."""
        self._backend, self._remember = backend, remember
        self._curves = Curves(backend)
        self._jobs: queue.Queue[Callable[[], None] | None] = queue.Queue()
        self._failed = False
        self._thread = threading.Thread(target=self._work, name=f"tracking with {backend.name}", daemon=True)
        self._thread.start()

    def __call__(self, event: Event) -> None:
        if isinstance(event, Stepped):
            return
        self._do(partial(self._curves, event))
        if isinstance(event, Started):
            self._do(lambda: self._remember(self._backend.name, self._backend.memory()))

    def close(self, how: Ending) -> None:
        """End the tracking and wait for it, but only for a while."""
        self._do(partial(self._backend.end, how))
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
        except Exception as error:  # whatever another library raises
            self._fail(error)
            with contextlib.suppress(Exception):
                self._backend.drop()

    def _fail(self, error: Exception) -> None:
        if not self._failed:
            self._failed = True
            broke = f"tracking with {self._backend.name} broke off, the run goes on without it"
            _log.warning("scale-cl: warning: %s: %s", broke, without_passwords(one_line(error)))


# ---- the note of a tracked run ---------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Tracked:
    """How a run was tracked."""

    every: int
    trackers: dict[str, dict[str, Any]]  # what each needs to continue, by name


class _Note:
    """Keeps `tracking.json` while a run goes on; several threads write to it."""

    def __init__(self, directory: Path, every: int, before: Mapping[str, dict[str, Any]]) -> None:
        self._path, self._every, self._lock = directory / NOTE_NAME, every, threading.Lock()
        self._trackers = dict(before)

    def put(self, name: str, memory: dict[str, Any]) -> None:
        """Note what a tracker needs to continue."""
        with self._lock:
            self._trackers[name] = memory
            content = {"schema": SCHEMA, "kind": "tracking", "every": self._every, "trackers": self._trackers}
            files.write_json(self._path, content)


def read(directory: Path) -> Tracked | None:
    """How the run in `directory` was tracked; None if it was not, TrackerError if the note is damaged."""
    path = directory / NOTE_NAME
    if not path.exists():
        return None
    content = Format("the note of a tracked run", "tracking", SCHEMA, TrackerError, _LARGEST).read(path)
    every, trackers = content.get("every"), content.get("trackers")
    plain = isinstance(trackers, dict) and all(isinstance(memory, dict) for memory in trackers.values())
    if not isinstance(trackers, dict) or not plain or type(every) is not int or every < 0:
        raise TrackerError(f"{path} is damaged: 'every' or 'trackers' is of another type")
    return Tracked(every, trackers)


def forget(directory: Path) -> None:
    """Remove the note and the TensorBoard logs of a run that starts again; servers keep what they have."""
    if (directory / NOTE_NAME).exists():
        shutil.rmtree(directory / FOLDER, ignore_errors=True)
        (directory / NOTE_NAME).unlink(missing_ok=True)
