"""Streams of image folders: PATH/TASK/CLASS/*.png, or PATH/TASK/{train,test}/CLASS/*.png."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from scale_cl.errors import DataError, StreamError
from scale_cl.streams.builders.own_arrays import from_arrays
from scale_cl.streams.draws import generator
from scale_cl.streams.images import image_files, read_images, size_of
from scale_cl.streams.progress import Progress
from scale_cl.streams.stream import Scenario, Stream

Listing = list[tuple[Path, str]]  # image file, class


@dataclass(frozen=True)
class _Listed:
    name: str
    train: Listing
    test: Listing


def from_folder(
    path: str | os.PathLike[str],
    *,
    scenario: Scenario = "task",
    size: int | tuple[int, int] | None = None,
    channels: int = 3,
    held_out: float = 0.2,
    shuffle: bool = True,
    seed: int = 0,
    name: str | None = None,
    progress: Progress | None = None,
) -> Stream:
    """A stream with a task for each folder in `path`, in order of their names (task2 before task10).

    Args:
        path: holds a folder for each task, which holds a folder for each class, or train and test folders that do.
        scenario: "task": each task has a head for its own classes; "domain": all tasks share one head.
        size: height and width to which images are resized; by default all must have the size of the first.
        channels: 3 for colour, 1 for grey.
        held_out: fraction of each class that is kept for testing where a task has no test folder, drawn by `seed`.
        shuffle: False keeps classes and files in the order of their names as the order of arrival.
        seed: decides the order of arrival and what is held out.
        name: of the stream; that of the folder by default.
        progress: called as images are read.
    """
    folder = Path(path)
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder; give one that holds a folder for each task")
    if not 0 < held_out < 1:
        raise StreamError(f"held_out is {held_out}; it must be between 0 and 1")
    if channels not in (1, 3):
        raise StreamError(f"channels is {channels}; it must be 1 or 3")
    tasks = [_listed(task, k, seed, held_out) for k, task in enumerate(_subfolders(folder))]
    if not tasks:
        raise StreamError(f"{folder} holds no folders; give one for each task")
    files = [file for task in tasks for file, _ in (*task.train, *task.test)]
    pixels = read_images(files, _size(size, files[0]), channels=channels, resize=size is not None, progress=progress)
    groups, start = [], 0
    for task in tasks:
        middle, end = start + len(task.train), start + len(task.train) + len(task.test)
        y_train, y_test = ([label for _, label in part] for part in (task.train, task.test))
        groups.append((pixels[start:middle], y_train, pixels[middle:end], y_test))
        start = end
    names = [task.name for task in tasks]
    called = name or folder.resolve().name
    return from_arrays(groups, scenario=scenario, names=names, layout="NCHW", shuffle=shuffle, seed=seed, name=called)


def _listed(task: Path, number: int, seed: int, held_out: float) -> _Listed:
    """The files of a task, by its own split or one drawn by `seed`."""
    if (task / "train").is_dir() and (task / "test").is_dir():
        return _Listed(task.name, _classes(task / "train"), _classes(task / "test"))
    draw = generator(seed, number, "held out")
    train: Listing = []
    test: Listing = []
    listing = _classes(task)
    for label in sorted({label for _, label in listing}):
        files = [entry for entry in listing if entry[1] == label]
        if len(files) < 2:
            raise StreamError(f"class {label!r} of task {task.name!r} has one image; two are needed, one to test with")
        kept = min(max(1, round(held_out * len(files))), len(files) - 1)
        chosen = set(draw.permutation(len(files))[:kept].tolist())
        test += [entry for i, entry in enumerate(files) if i in chosen]
        train += [entry for i, entry in enumerate(files) if i not in chosen]
    return _Listed(task.name, train, test)


def _classes(folder: Path) -> Listing:
    """All images of the class folders in `folder`."""
    listing: Listing = []
    for child in _subfolders(folder):
        images = image_files(child)
        if not images:
            raise StreamError(f"class folder {child} holds no images; put some in it or remove it")
        listing += [(image, child.name) for image in images]
    if not listing:
        raise StreamError(f"task folder {folder} holds no class folders; every task needs at least one with images")
    return listing


def _subfolders(folder: Path) -> list[Path]:
    children = [child for child in folder.iterdir() if child.is_dir() and not child.name.startswith(".")]
    return sorted(children, key=lambda child: (_as_counted(child.name), child.name))


def _as_counted(name: str) -> list[tuple[int, str]]:
    """Sort key by which task2 comes before task10."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)]


def _size(size: int | tuple[int, int] | None, first: Path) -> tuple[int, int]:
    if size is None:
        return size_of(first)
    height, width = (size, size) if isinstance(size, int) else size
    if not (1 <= height <= 4096 and 1 <= width <= 4096):
        raise StreamError(f"size is {size}; height and width must be from 1 to 4096")
    return height, width
