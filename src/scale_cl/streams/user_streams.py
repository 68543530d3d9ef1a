"""Streams of the user's own: images named by their path, and functions from outside this package.

Images are named `folder:PATH` or `csv:FILE`. All seeds hold out the same samples for testing and share the images,
which are listed, and read if they are kept in memory, once per process; seeds differ in the order of arrival.

A function `(seed: int) -> Stream` is named `module:function`, `file.py:function`, or by an entry point of the group
`scale_cl.streams`; see `scale_cl.plugins` for which names are imported.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from scale_cl.errors import FAILURES, ConfigError, ScaleClError, StreamError, one_line
from scale_cl.plugins import Plugins, is_reference
from scale_cl.streams.assembly import assemble, shuffled
from scale_cl.streams.from_images import from_folder, from_manifest
from scale_cl.streams.images import recipe
from scale_cl.streams.keeping import Keep
from scale_cl.streams.reading import OnError
from scale_cl.streams.sources.source import Progress, expanded
from scale_cl.streams.stream import Scenario, Stream

OUTSIDE = Plugins("stream", "scale_cl.streams")
"""Streams from outside this package."""

_BUILDERS: dict[str, Callable[..., Stream]] = {"folder": from_folder, "csv": from_manifest}


@dataclass(frozen=True)
class UserStream:
    """Where the images are and how to read them."""

    name: str  # folder:PATH or csv:FILE
    scenario: Scenario = "task"
    size: int | None = None
    channels: int = 3
    held_out: float = 0.2
    keep: Keep = "auto"
    workers: int | None = None
    on_error: OnError = "stop"
    window: int | None = None
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


def load_own(
    data: UserStream,
    *,
    seed: int = 0,
    tasks: int | None = None,
    room: int | None = None,
    progress: Progress | None = None,
) -> Stream:
    """The first `tasks` tasks of the stream; `seed` decides the order of arrival.

    If the choice is automatic, images are kept in memory if they take at most `room` bytes there. `progress` is called
    while they are read.
    """
    key = data, data.path.absolute()
    with _reading:
        if key not in _read:
            made = _BUILDERS[data.name.partition(":")[0]](
                data.path,
                scenario=data.scenario,
                size=data.size,
                channels=data.channels,
                held_out=data.held_out,
                keep=data.keep if room is None or data.keep != "auto" else room,
                workers=data.workers,
                on_error=data.on_error,
                window=data.window,
                progress=progress,
            )
            _read.clear()
            _read[key] = made
        first = _read[key]
    if tasks is not None and not 1 <= tasks <= len(first):
        raise ConfigError(f"tasks is {tasks}; {data.name} has {len(first)}, so take 1 to {len(first)}")
    listed = [task.train.sort().values.numpy() for task in first.tasks]
    arriving = [shuffled(rows, seed, k, data.window) for k, rows in enumerate(listed)]
    ordered = [replace(task, train=rows) for task, rows in zip(first.tasks, arriving, strict=True)]
    return assemble(first.name, first.scenario, seed, first.arrays, ordered[:tasks])


def is_outside(name: str) -> bool:
    """Whether a name stands for a stream from outside: an entry point or a reference, but not `folder:` or `csv:`."""
    return not is_own(name) and (is_reference(name) or name in OUTSIDE.names())


def find_outside(name: str) -> Callable[[int], Stream]:
    """The function behind the name of a stream from outside; ConfigError if there is none, or if it takes no seed."""
    function = OUTSIDE.find(name)
    if not callable(function):
        kind = type(function).__name__
        raise ConfigError(f"stream {name!r} is a {kind}; it must be a function (seed: int) -> Stream")
    try:
        inspect.signature(function).bind(0)
    except TypeError as error:
        raise ConfigError(f"stream {name!r} cannot be called with a seed alone ({error}); give defaults") from None
    except ValueError:  # it has no signature
        pass
    made: Callable[[int], Stream] = function
    return made


def describe_outside(name: str) -> str:
    """The first line of the function's docstring."""
    text = inspect.getdoc(find_outside(name)) or ""
    return text.partition("\n")[0] or "(no docstring)"


def load_outside(name: str, *, seed: int = 0, tasks: int | None = None) -> Stream:
    """The first `tasks` tasks of a stream from outside, under the name by which it was asked for."""
    function = find_outside(name)
    try:
        made = function(seed)
    except ScaleClError:
        raise
    except FAILURES as error:  # the code of others may raise anything
        raise StreamError(f"stream {name!r} failed with seed {seed}: {one_line(error)}") from error
    if not isinstance(made, Stream):
        raise StreamError(f"stream {name!r} returned a {type(made).__name__}; it must return a scale_cl.Stream")
    if tasks is not None and not 1 <= tasks <= len(made):
        raise ConfigError(f"tasks is {tasks}; {name} has {len(made)}, so take 1 to {len(made)}")
    return replace(made if tasks is None else made.first(tasks), name=name, seed=seed)


@functools.lru_cache(maxsize=32)
def size_outside(name: str) -> tuple[int, int, int]:
    """Number of tasks of a stream from outside, and training and test samples of its largest task."""
    tasks = load_outside(name).tasks
    return len(tasks), max(len(task.train) for task in tasks), max(len(task.test) for task in tasks)
