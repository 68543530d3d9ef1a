"""Streams named by where their images are: `folder:PATH`, one folder a task, or `csv:FILE`, a manifest.

What is held out for testing is the same for every seed, and the images are read once a process: seeds differ in the
order of arrival.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from scale_cl.errors import ConfigError
from scale_cl.streams.builders.assembly import assemble
from scale_cl.streams.builders.from_folder import from_folder
from scale_cl.streams.builders.from_manifest import from_manifest
from scale_cl.streams.data_root import expanded
from scale_cl.streams.images import recipe
from scale_cl.streams.randomness import shuffled
from scale_cl.streams.stream import Scenario, Stream

_BUILDERS: dict[str, Callable[..., Stream]] = {"folder": from_folder, "csv": from_manifest}


@dataclass(frozen=True)
class UserStream:
    """Where images are, and how they are read."""

    name: str  # folder:PATH or csv:FILE
    scenario: Scenario = "task"
    size: int | None = None
    channels: int = 3
    held_out: float = 0.2
    base: Path | None = None  # where a relative path begins; None: in the present directory

    @property
    def path(self) -> Path:
        """The folder or file."""
        return (self.base or Path()) / expanded(self.name.partition(":")[2])

    def preprocess(self, shape: Sequence[int]) -> str:
        """How an image file becomes an input of `shape` [C, H, W], in words."""
        return recipe((shape[1], shape[2]), self.channels, resize=self.size is not None)


_read: dict[tuple[UserStream, Path], Stream] = {}  # the last one only
_reading = threading.Lock()


def is_own(name: str) -> bool:
    """Whether a stream's name says where its images are; ConfigError if it says it without a path."""
    kind, colon, path = name.partition(":")
    if kind not in _BUILDERS or not colon:
        return False
    if not path:
        raise ConfigError(f"stream {name!r} has no path; give folder:PATH or csv:FILE")
    return True


def own_name(path: str) -> str | None:
    """How a stream is named whose images are in this folder or listed in this CSV file; None if it is neither."""
    if not path:
        return None
    try:
        place = expanded(path)
        if place.is_dir():
            return f"folder:{path}"
        return f"csv:{path}" if place.suffix.lower() == ".csv" and place.is_file() else None
    except OSError:  # no path at all, as it is too long
        return None


def load_own(data: UserStream, *, seed: int = 0, tasks: int | None = None) -> Stream:
    """The stream, its samples in the order of arrival that `seed` decides, cut after the first `tasks` tasks."""
    key = data, data.path.absolute()
    with _reading:
        if key not in _read:
            made = _BUILDERS[data.name.partition(":")[0]](
                data.path, scenario=data.scenario, size=data.size, channels=data.channels, held_out=data.held_out
            )
            _read.clear()
            _read[key] = made
        first = _read[key]
    if tasks is not None and not 1 <= tasks <= len(first):
        raise ConfigError(f"tasks is {tasks}; {data.name} has {len(first)}, so take 1 to {len(first)}")
    ordered = [replace(t, train=shuffled(t.train.sort().values.numpy(), seed, k)) for k, t in enumerate(first.tasks)]
    return assemble(first.name, first.scenario, seed, first.arrays, ordered[:tasks])
