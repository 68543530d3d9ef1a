"""`DIR/tracking.json`: what a run is tracked with, so that a resumed run goes on in the same places."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scale_cl import files
from scale_cl.errors import TrackerError
from scale_cl.json_format import Format
from scale_cl.trackers.tensorboard_logs import FOLDER

SCHEMA = 1
NOTE_NAME = "tracking.json"
_LARGEST = 16 << 20  # bytes


@dataclass(frozen=True)
class Tracked:
    """How a run was tracked."""

    every: int
    trackers: dict[str, dict[str, Any]]  # by name, what each needs to go on


class Note:
    """Keeps the file while a run goes on; several trackers write to it."""

    def __init__(self, directory: Path, every: int, before: Mapping[str, dict[str, Any]] | None = None) -> None:
        self._path, self._every, self._lock = directory / NOTE_NAME, every, threading.Lock()
        self._trackers: dict[str, dict[str, Any]] = dict(before or {})

    def put(self, name: str, memory: dict[str, Any]) -> None:
        """Remember this of a tracker."""
        with self._lock:
            self._trackers[name] = memory
            content = {"schema": SCHEMA, "kind": "tracking", "every": self._every, "trackers": self._trackers}
            files.write_json(self._path, content)


def read(directory: Path) -> Tracked | None:
    """What the run in `directory` was tracked with; None if it was not, TrackerError if the note is damaged."""
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
    """Remove the note and the logs of a run that is begun anew; what servers hold stays there."""
    if (directory / NOTE_NAME).exists():
        shutil.rmtree(directory / FOLDER, ignore_errors=True)
        (directory / NOTE_NAME).unlink(missing_ok=True)
