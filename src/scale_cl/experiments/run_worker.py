"""Carrying out one run, wherever an engine has put it: train, and leave a result in its folder."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from scale_cl import files, training
from scale_cl.errors import OutputInUseError, ResultError
from scale_cl.experiments.features import train_and_keep_features
from scale_cl.experiments.planning import PlannedRun, config_of, key_of
from scale_cl.experiments.rerun_command import arguments
from scale_cl.experiments.result_index import ALONE, Finished
from scale_cl.results import RunResult
from scale_cl.training import Event, Listener, checkpointing, run_note
from scale_cl.training.environment import describe
from scale_cl.training.events import Started, Stepped
from scale_cl.training.machine import choose_device

_PATIENCE = 10.0  # seconds that the folder of a process which was killed may stay locked


def as_message(run: PlannedRun, root: Path | None) -> dict[str, Any]:
    """A run as plain JSON values, to be sent to another process."""
    return {
        "experiment": run.experiment,
        "config": run.config.as_dict(),
        "out": str(run.out.absolute()),
        "folder": str(run.folder.absolute()),
        "alone": run.alone,
        "features": run.features,
        "root": None if root is None else str(root.absolute()),
        "words": arguments(run, root),  # with paths as they were given, for the record
    }


def carry_out(message: dict[str, Any], on_event: Listener | None = None, *, patience: float | None = None) -> None:
    """Do the run of a message; when this returns, its folder holds a valid result.

    For `patience` seconds, a few unless told otherwise, the folder may be locked by a process that is being ended.
    """
    run = PlannedRun(
        message["experiment"],
        config_of(message["config"]),
        Path(message["out"]),
        Path(message["folder"]),
        bool(message["alone"]),
        bool(message["features"]),
    )
    root = None if message["root"] is None else Path(message["root"])
    with _locked(run.folder, _PATIENCE if patience is None else patience):
        if not is_done(run):
            _remove_half_written(run.folder)
            _train(run, root, message["words"], on_event)


def _train(run: PlannedRun, root: Path | None, words: list[str], on_event: Listener | None) -> None:
    began = time.perf_counter()
    if run.features:
        seeds = train_and_keep_features(run.config, run.folder, root, on_event)
    else:
        seeds = training.run(run.config, root=root, on_event=on_event)
    seconds = time.perf_counter() - began
    environment = describe(choose_device(run.config.run.device), run.config.run.threads, words)
    environment |= {ALONE: run.alone, "experiment": run.experiment}
    try:
        RunResult(tuple(seeds), environment, seconds).write(run.folder)
    except OSError as error:
        raise ResultError(f"the result cannot be written to {run.folder}: {error.strerror or error}") from error
    run_note.remove(run.folder)  # an interrupted `scale-cl run` of the same folder may have left them
    checkpointing.remove_all(run.folder)


def is_done(run: PlannedRun) -> bool:
    """Whether the folder of this very run holds its whole result, whoever has made it."""
    there = Finished()
    there.take(run.folder)
    return set(run.config.seeds) <= set(there.of(key_of(run.config)))


def _remove_half_written(folder: Path) -> None:
    """What a process that was killed while it wrote has left under temporary names."""
    for path in folder.glob(".*.tmp"):
        path.unlink(missing_ok=True)


@contextlib.contextmanager
def _locked(folder: Path, patience: float) -> Iterator[None]:
    """Hold the folder; leave no empty one behind when nothing was written."""
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    with contextlib.ExitStack() as stack:
        stack.callback(_remove_empty, made)
        stack.enter_context(_lock(folder, patience))
        yield


def _lock(folder: Path, patience: float) -> contextlib.ExitStack:
    deadline = time.monotonic() + patience
    while True:
        stack = contextlib.ExitStack()
        try:
            stack.enter_context(files.lock(folder / ".lock"))
        except OutputInUseError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
        except OSError as error:
            raise OutputInUseError(f"{folder} cannot be written to: {error.strerror or error}") from None
        else:
            return stack


def _remove_empty(folders: list[Path]) -> None:
    for folder in folders:  # innermost first
        with contextlib.suppress(OSError):
            folder.rmdir()


class Pace:
    """A listener that reports the fraction of a run's steps that are done, about once per second."""

    def __init__(self, tell: Callable[[float], None]) -> None:
        self._tell, self._steps, self._told = tell, 1, time.monotonic()

    def __call__(self, event: Event) -> None:
        """Report the fraction, unless it was reported just now."""
        if isinstance(event, Started):
            self._steps = max(1, event.steps)
        elif isinstance(event, Stepped) and time.monotonic() - self._told >= 1:
            self._told = time.monotonic()
            self._tell(event.steps / self._steps)
