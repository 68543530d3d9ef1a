"""Streams from image files: `from_folder` (TASK/CLASS/*.png) and `from_manifest` (a CSV file that lists them)."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import math
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from scale_cl.errors import DataError, StreamError
from scale_cl.streams.from_arrays import from_labels
from scale_cl.streams.image_listing import PARTS, ImageFile, ListedTask, Listing, in_folder, in_manifest
from scale_cl.streams.images import ImageFiles, WrongSizeError, read_images, size_of
from scale_cl.streams.keeping import Keep, Reading
from scale_cl.streams.reading import SKIPPING, LazyRows, OnError
from scale_cl.streams.sources.source import Progress
from scale_cl.streams.stream import Scenario, Stream

Size = int | tuple[int, int] | None
_log = logging.getLogger("scale_cl")


@contextlib.contextmanager
def _reporting(path: Path) -> Iterator[None]:
    """Raise errors of the file system, such as a name that is too long, as a DataError."""
    try:
        yield
    except OSError as error:
        raise DataError(f"{error.filename or path} cannot be read: {error.strerror or error}") from None


def _check_choices(share: float, channels: int) -> None:
    if not 0 <= share < 1:
        raise StreamError(f"held_out is {share}; it must be at least 0 and below 1")
    if channels not in (1, 3):
        raise StreamError(f"channels is {channels}; it must be 1 or 3")


def _stream_of(
    tasks: list[ListedTask],
    root: Path,
    size: Size,
    channels: int,
    progress: Progress | None,
    reading: Reading,
    **options: Any,
) -> Stream:
    """The stream of these tasks; their files are read now, or as they come."""
    files = [file for part in PARTS for task in tasks for file in getattr(task, part)]
    paths, resize, identity = [file.path for file in files], size is not None, _identity(root, files)
    target = _size(size, paths)
    inputs: tuple[Tensor, Tensor]
    listed = [len(task.train) for task in tasks]
    if reading.in_memory(len(files) * channels * math.prod(target)):
        unread: dict[int, DataError] | None = {} if reading.on_error == "skip" else None
        try:
            pixels = read_images(paths, target, channels=channels, resize=resize, progress=progress, unread=unread)
        except WrongSizeError:  # it says what to do
            raise
        except DataError as error:
            raise DataError(f"{error}; {SKIPPING}") from None
        if unread:
            pixels, tasks = np.delete(pixels, list(unread), axis=0), _without(tasks, [files[i] for i in unread])
            first = next(iter(unread.values()))
            _log.warning("scale-cl: warning: unreadable files are left out: %d, the first: %s", len(unread), first)
        middle = sum(len(task.train) for task in tasks)
        inputs = torch.from_numpy(pixels[:middle]), torch.from_numpy(pixels[middle:])
    else:
        readers = reading.readers(ImageFiles(paths, target, channels=channels, resize=resize))
        middle = sum(len(task.train) for task in tasks)
        inputs = LazyRows(readers, 0, middle), LazyRows(readers, middle, len(files) - middle)
    labels = [(_labels(task.train), _labels(task.test)) for task in tasks]
    names = [task.name for task in tasks]
    unread_of = [count - len(task.train) for count, task in zip(listed, tasks, strict=True)]
    return from_labels(inputs, labels, names, window=reading.window, files=identity, unread=unread_of, **options)


def _labels(listing: Listing) -> NDArray[np.str_]:
    return np.array([file.label for file in listing], dtype=np.str_)


def _without(tasks: list[ListedTask], unread: list[ImageFile]) -> list[ListedTask]:
    """The tasks without files that cannot be read."""
    gone = set(unread)
    parts = ([[file for file in part if file not in gone] for part in (task.train, task.test)] for task in tasks)
    return [ListedTask(task.name, *part) for task, part in zip(tasks, parts, strict=True)]


def _identity(root: Path, files: Iterable[ImageFile]) -> str:
    """A checksum of the names and sizes of the files. Times are left out: a copy of the data is the same data."""
    sums, start = hashlib.sha256(), 0 if str(root) == "." else len(str(root)) + 1
    for file in files:
        sums.update(f"{file.path[start:]}\0{file.bytes}\n".encode(errors="surrogateescape"))
    return sums.hexdigest()


def _size(size: Size, files: list[str]) -> tuple[int, int]:
    if size is None:
        for file in files:
            with contextlib.suppress(DataError):  # reading names the files that are broken or gone
                return size_of(file)
        return 1, 1
    height, width = (size, size) if isinstance(size, int) else size
    if not (1 <= height <= 4096 and 1 <= width <= 4096):
        raise StreamError(f"size is {size}; height and width must be from 1 to 4096")
    return height, width


def from_folder(
    path: str | os.PathLike[str],
    *,
    scenario: Scenario = "task",
    size: Size = None,
    channels: int = 3,
    held_out: float = 0.2,
    shuffle: bool = True,
    seed: int = 0,
    name: str | None = None,
    progress: Progress | None = None,
    keep: Keep | int = "auto",
    workers: int | None = None,
    on_error: OnError = "stop",
    window: int | None = None,
) -> Stream:
    """A stream with one task per folder in `path`, in the order of their names (task2 before task10).

    Args:
        path: a folder with one folder per task, which has one folder per class, or train and test folders of these.
        scenario: "task": each task has a head for its own classes; "domain": all tasks share one head; "class": one
            head for all classes, numbered in the order in which tasks bring them.
        size: height and width to resize images to; by default all images must have the size of the first.
        channels: 3 for colour, 1 for grey.
        held_out: fraction of each class that is held out for testing if a task has no test folder; 0: there is no test.
        shuffle: False: samples arrive in the order of class names and file names.
        seed: decides the order of arrival and which samples are held out.
        name: name of the stream; by default that of the folder.
        progress: called while images are read into memory.
        keep: "memory": read all images now; "disk": read each when it is needed; "auto": memory if the decoded images
            take less than half of the free memory; a number: memory if they take at most so many bytes.
        workers: processes that read images when they are needed; 0: a thread of this process; by default one per core,
            at most eight.
        on_error: for an image that cannot be read when it is needed: "stop" with an error that names it, or "skip" it,
            with a warning; its batch is then smaller.
        window: shuffle only within each so many consecutive samples of a task, for disks that read in order faster.
    """
    folder = Path(path)
    _check_choices(held_out, channels)
    reading = Reading(keep, workers, on_error, window)
    with _reporting(folder):
        if folder.is_file() and folder.suffix.lower() == ".csv":
            raise DataError(f"{folder} is a file; a CSV file that lists images is named csv:{folder}")
        if not folder.is_dir():
            raise DataError(f"{folder} is not a folder; give one that holds a folder for each task")
        tasks = in_folder(folder, share=held_out, seed=seed)
    options = {"scenario": scenario, "shuffle": shuffle, "seed": seed, "name": name or folder.resolve().name}
    return _stream_of(tasks, folder, size, channels, progress, reading, **options)


def from_manifest(
    path: str | os.PathLike[str],
    *,
    scenario: Scenario = "task",
    size: Size = None,
    channels: int = 3,
    held_out: float = 0.2,
    shuffle: bool = True,
    seed: int = 0,
    name: str | None = None,
    progress: Progress | None = None,
    keep: Keep | int = "auto",
    workers: int | None = None,
    on_error: OnError = "stop",
    window: int | None = None,
) -> Stream:
    """A stream of the image files that a CSV file lists, with tasks in the order of their first appearance.

    The file is in UTF-8, with a header line and the columns path, label and task; paths are relative to its folder. An
    optional column `split` says train or test for each file; without it, `held_out` of each class is held out. With
    `shuffle=False` samples arrive in the order of the file. The other arguments are those of `from_folder`.
    """
    file = Path(path)
    _check_choices(held_out, channels)
    reading = Reading(keep, workers, on_error, window)
    with _reporting(file):
        tasks = in_manifest(file, share=held_out, seed=seed, on_error=on_error)
    options = {"scenario": scenario, "shuffle": shuffle, "seed": seed, "name": name or file.stem}
    return _stream_of(tasks, file.parent, size, channels, progress, reading, **options)
