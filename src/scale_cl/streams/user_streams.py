"""Streams of the user's own images, named by their path: `folder:PATH` or `csv:FILE`.

All seeds hold out the same samples for testing and share the images, which are read once per process; seeds differ
in the order of arrival.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from scale_cl.errors import ConfigError
from scale_cl.streams.assembly import assemble, shuffled
from scale_cl.streams.from_images import from_folder, from_manifest
from scale_cl.streams.images import recipe
from scale_cl.streams.sources.source import expanded
from scale_cl.streams.stream import Scenario, Stream

_BUILDERS: dict[str, Callable[..., Stream]] = {"folder": from_folder, "csv": from_manifest}


@dataclass(frozen=True)
class UserStream:
    """Where the images are and how to read them."""

    name: str  # folder:PATH or csv:FILE
    scenario: Scenario = "task"
    size: int | None = None
    channels: int = 3
    held_out: float = 0.2
    base: Path | None = None  # what a relative path is relative to; None: the current directory

    @property
    def path(self) -> Path:
        """The folder or file."""
        return (self.base or Path()) / expanded(self.name.partition(":")[2])

    def preprocess(self, shape: Sequence[int]) -> str:
        """A description of how an image file becomes an input of `shape` [C, H, W]."""
        return recipe((shape[1], shape[2]), self.channels, resize=self.size is not None)


_read: dict[tuple[UserStream, Path], Stream] = {}  # only the last one
_reading = threading.Lock()


def is_own(name: str) -> bool:
    """Whether a name is of the form `folder:PATH` or `csv:FILE`; ConfigError if the path is missing."""
    kind, colon, path = name.partition(":")
    if kind not in _BUILDERS or not colon:
        return False
    if not path:
        raise ConfigError(f"stream {name!r} has no path; give folder:PATH or csv:FILE")
    return True


def own_name(path: str) -> str | None:
    """The name of the stream of this folder or CSV file; None if `path` is neither."""
    if not path:
        return None
    try:
        place = expanded(path)
        if place.is_dir():
            return f"folder:{path}"
        return f"csv:{path}" if place.suffix.lower() == ".csv" and place.is_file() else None
    except OSError:  # too long to be a path
        return None


def load_own(data: UserStream, *, seed: int = 0, tasks: int | None = None) -> Stream:
    """The first `tasks` tasks of the stream; `seed` decides the order of arrival."""
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
