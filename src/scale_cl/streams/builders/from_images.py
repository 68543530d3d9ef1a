"""Listed image files to a stream: what is held out for testing, and the reading of the files."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path

from scale_cl.errors import StreamError
from scale_cl.streams.builders.from_arrays import from_arrays
from scale_cl.streams.images import UndecodableError, read_images, size_of
from scale_cl.streams.progress import Progress
from scale_cl.streams.randomness import generator
from scale_cl.streams.stream import Scenario, Stream

Listing = list[tuple[Path, str]]  # image file, class
Size = int | tuple[int, int] | None


@dataclass(frozen=True)
class ListedTask:
    """A task as files and their classes."""

    name: str
    train: Listing
    test: Listing


def held_out(name: str, number: int, listing: Listing, *, share: float, seed: int) -> ListedTask:
    """A task whose test files are a share of each class, drawn by `seed`; `number` is its place in the stream."""
    draw = generator(seed, number, "held out")
    train: Listing = []
    test: Listing = []
    for label in sorted({label for _, label in listing}):
        files = [entry for entry in listing if entry[1] == label]
        if len(files) < 2:
            raise StreamError(f"class {label!r} of task {name!r} has one image; two are needed, one to test with")
        kept = min(max(1, round(share * len(files))), len(files) - 1)
        chosen = set(draw.permutation(len(files))[:kept].tolist())
        test += [entry for i, entry in enumerate(files) if i in chosen]
        train += [entry for i, entry in enumerate(files) if i not in chosen]
    return ListedTask(name, train, test)


def check_choices(share: float, channels: int) -> None:
    """Refuse a share or a number of channels that cannot be."""
    if not 0 < share < 1:
        raise StreamError(f"held_out is {share}; it must be between 0 and 1")
    if channels not in (1, 3):
        raise StreamError(f"channels is {channels}; it must be 1 or 3")


def stream_of(
    tasks: list[ListedTask],
    *,
    scenario: Scenario,
    size: Size,
    channels: int,
    shuffle: bool,
    seed: int,
    name: str,
    progress: Progress | None,
) -> Stream:
    """Read all files and make the stream."""
    files = [file for task in tasks for file, _ in (*task.train, *task.test)]
    target = _size(size, files)
    pixels = read_images(files, target, channels=channels, resize=size is not None, progress=progress)
    groups, start = [], 0
    for task in tasks:
        middle, end = start + len(task.train), start + len(task.train) + len(task.test)
        y_train, y_test = ([label for _, label in part] for part in (task.train, task.test))
        groups.append((pixels[start:middle], y_train, pixels[middle:end], y_test))
        start = end
    names = [task.name for task in tasks]
    return from_arrays(groups, scenario=scenario, names=names, layout="NCHW", shuffle=shuffle, seed=seed, name=name)


def _size(size: Size, files: list[Path]) -> tuple[int, int]:
    if size is None:
        for file in files:
            with contextlib.suppress(UndecodableError):  # all that are broken are named when they are read
                return size_of(file)
        return 1, 1
    height, width = (size, size) if isinstance(size, int) else size
    if not (1 <= height <= 4096 and 1 <= width <= 4096):
        raise StreamError(f"size is {size}; height and width must be from 1 to 4096")
    return height, width
