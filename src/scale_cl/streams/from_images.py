"""Streams from image files: `from_folder` (TASK/CLASS/*.png) and `from_manifest` (a CSV file that lists them)."""

from __future__ import annotations

import contextlib
import csv
import hashlib
import logging
import math
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from sys import intern
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from scale_cl.errors import DataError, StreamError
from scale_cl.streams.assembly import generator
from scale_cl.streams.from_arrays import from_labels
from scale_cl.streams.images import ImageFiles, UndecodableError, image_names, read_images, size_of
from scale_cl.streams.keeping import Keep, Reading
from scale_cl.streams.reading import LazyRows, OnError
from scale_cl.streams.sources.source import Progress
from scale_cl.streams.stream import Scenario, Stream


class _File(NamedTuple):
    path: str
    label: str
    bytes: int


Listing = list[_File]
Size = int | tuple[int, int] | None
_NEEDED = ("path", "label", "task")
_PARTS = ("train", "test")
_OTHER_SEPARATORS = {";": "semicolons", "\t": "tabs"}
_NAMED = 10  # at most so many missing files are named in an error
_log = logging.getLogger("scale_cl")


@dataclass(frozen=True)
class _ListedTask:
    """The image files of a task and their classes."""

    name: str
    train: Listing
    test: Listing


def _with_held_out(name: str, number: int, listing: Listing, *, share: float, seed: int) -> _ListedTask:
    """Task number `number`, tested on a share of each class drawn by `seed`."""
    draw = generator(seed, number, "held out")
    train: Listing = []
    test: Listing = []
    by_label: dict[str, Listing] = {}
    for file in listing:
        by_label.setdefault(file.label, []).append(file)
    for label, files in sorted(by_label.items()):
        if len(files) < 2:
            raise StreamError(f"class {label!r} of task {name!r} has one image; two are needed, one to test with")
        kept = min(max(1, round(share * len(files))), len(files) - 1)
        chosen = set(draw.permutation(len(files))[:kept].tolist())
        test += [entry for i, entry in enumerate(files) if i in chosen]
        train += [entry for i, entry in enumerate(files) if i not in chosen]
    return _ListedTask(name, train, test)


def _check_choices(share: float, channels: int) -> None:
    if not 0 < share < 1:
        raise StreamError(f"held_out is {share}; it must be between 0 and 1")
    if channels not in (1, 3):
        raise StreamError(f"channels is {channels}; it must be 1 or 3")


def _stream_of(
    tasks: list[_ListedTask],
    root: Path,
    size: Size,
    channels: int,
    progress: Progress | None,
    reading: Reading,
    **options: Any,
) -> Stream:
    """The stream of these tasks; their files are read now, or as they come."""
    files = [file for part in _PARTS for task in tasks for file in getattr(task, part)]
    paths, resize, origin = [file.path for file in files], size is not None, _origin(root, files)
    target = _size(size, paths)
    inputs: tuple[Tensor, Tensor]
    if reading.in_memory(len(files) * channels * math.prod(target)):
        unread: dict[int, DataError] | None = {} if reading.on_error == "skip" else None
        pixels = read_images(paths, target, channels=channels, resize=resize, progress=progress, unread=unread)
        if unread:
            pixels, tasks = np.delete(pixels, list(unread), axis=0), _without(tasks, [files[i] for i in unread])
            first = next(iter(unread.values()))
            _log.warning("scale-cl: warning: %d files cannot be read and are left out: %s", len(unread), first)
        middle = sum(len(task.train) for task in tasks)
        inputs = torch.from_numpy(pixels[:middle]), torch.from_numpy(pixels[middle:])
    else:
        readers = reading.readers(ImageFiles(paths, target, channels=channels, resize=resize))
        middle = sum(len(task.train) for task in tasks)
        inputs = LazyRows(readers, 0, middle), LazyRows(readers, middle, len(files) - middle)
    labels = [(_labels(task.train), _labels(task.test)) for task in tasks]
    names = [task.name for task in tasks]
    return from_labels(inputs, labels, names, window=reading.window, origin=origin, **options)


def _labels(listing: Listing) -> NDArray[np.str_]:
    return np.array([file.label for file in listing], dtype=np.str_)


def _without(tasks: list[_ListedTask], unread: list[_File]) -> list[_ListedTask]:
    """The tasks without files that cannot be read."""
    gone = set(unread)
    parts = ([[file for file in part if file not in gone] for part in (task.train, task.test)] for task in tasks)
    return [_ListedTask(task.name, *part) for task, part in zip(tasks, parts, strict=True)]


def _origin(root: Path, files: Iterable[_File]) -> str:
    """A checksum of the names and sizes of the files. Times are left out: a copy of the data is the same data."""
    sums, start = hashlib.sha256(), 0 if str(root) == "." else len(str(root)) + 1
    for file in files:
        sums.update(f"{file.path[start:]}\0{file.bytes}\n".encode(errors="surrogateescape"))
    return sums.hexdigest()


def _size(size: Size, files: list[str]) -> tuple[int, int]:
    if size is None:
        for file in files:
            with contextlib.suppress(UndecodableError):  # reading names all broken files together
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
        scenario: "task": each task has a head for its own classes; "domain": all tasks share one head.
        size: height and width to resize images to; by default all images must have the size of the first.
        channels: 3 for colour, 1 for grey.
        held_out: fraction of each class that is held out for testing if a task has no test folder.
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
    if folder.is_file() and folder.suffix.lower() == ".csv":
        raise DataError(f"{folder} is a file; a CSV file that lists images is named csv:{folder}")
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder; give one that holds a folder for each task")
    _check_choices(held_out, channels)
    reading = Reading(keep, workers, on_error, window)
    _check_depth(folder)
    tasks = [_listed(task, k, seed, held_out) for k, task in enumerate(_subfolders(folder))]
    if not tasks:
        if image_names(folder):
            raise StreamError(f"{folder} holds images and no folders; images belong into TASK/CLASS/ in it")
        raise StreamError(f"{folder} holds no folders; give one for each task")
    options = {"scenario": scenario, "shuffle": shuffle, "seed": seed, "name": name or folder.resolve().name}
    return _stream_of(tasks, folder, size, channels, progress, reading, **options)


def _listed(task: Path, number: int, seed: int, share: float) -> _ListedTask:
    """The files of a task, with its own split or one drawn by `seed`."""
    if (task / "train").is_dir() and (task / "test").is_dir():
        return _ListedTask(task.name, _classes(task / "train"), _classes(task / "test"))
    return _with_held_out(task.name, number, _classes(task), share=share, seed=seed)


def _check_depth(folder: Path) -> None:
    """Refuse a folder whose folders hold images: it is a task, and the stream is the folder above it."""
    within = _subfolders(folder)
    if within and all(not _subfolders(child) and image_names(child) for child in within):
        parent = folder.resolve().parent if folder.name in ("", "..") else folder.parent
        raise StreamError(
            f"task folder {within[0]} holds no class folders, it holds images: did you mean folder:{parent}? "
            "Images belong into TASK/CLASS/ in it"
        )


def _classes(folder: Path) -> Listing:
    """All images of the class folders in `folder`."""
    listing: Listing = []
    for child in _subfolders(folder):
        images = image_names(child)
        if not images:
            raise StreamError(f"class folder {child} holds no images; put some in it or remove it")
        listing += [_File(_within(str(child), image), child.name, size) for image, size in images]
    if not listing and image_names(folder):
        advice = "put them into a folder for each class"
        raise StreamError(f"task folder {folder} holds no class folders, it holds images: {advice}")
    if not listing:
        raise StreamError(f"task folder {folder} holds no class folders; every task needs at least one with images")
    return listing


def _subfolders(folder: Path) -> list[Path]:
    with os.scandir(folder) as entries:
        children = [Path(entry) for entry in entries if not entry.name.startswith(".") and entry.is_dir()]

    def counted(child: Path) -> tuple[list[tuple[int, str]], str]:  # puts task2 before task10
        parts = re.split(r"(\d+)", child.name)
        return [(int(part), "") if part.isdecimal() else (-1, part) for part in parts], child.name

    return sorted(children, key=counted)


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
    tasks = []
    for number, (task, parts) in enumerate(_listed_tasks(file).items()):
        if None in parts:
            tasks.append(_with_held_out(task, number, parts[None], share=held_out, seed=seed))
        else:
            tasks.append(_ListedTask(task, *(parts.get(part, []) for part in _PARTS)))
    options = {"scenario": scenario, "shuffle": shuffle, "seed": seed, "name": name or file.stem}
    return _stream_of(tasks, file.parent, size, channels, progress, reading, **options)


class _Row(NamedTuple):
    """A line of the CSV file."""

    line: int
    path: str
    label: str
    task: str
    split: str | None  # None: there is no such column


def _listed_tasks(file: Path) -> dict[str, dict[str | None, Listing]]:
    """The files that the CSV file lists, by task and split; every needed column is filled and every file exists."""
    if file.is_dir():
        raise DataError(f"{file} is a folder; for images in folders use folder:{file}, or name a CSV file in it")
    tasks: dict[str, dict[str | None, Listing]] = {}
    folder, gone = str(file.parent), []
    for row in _rows(file):
        if not (row.path and row.label and row.task):
            empty = next(column for column in _NEEDED if not getattr(row, column))
            raise StreamError(f"{file}, line {row.line}: {empty} is empty")
        if row.split is not None and row.split not in _PARTS:
            raise StreamError(f"{file}, line {row.line}: split is {row.split!r}; it must be train or test")
        path = _within(folder, row.path)
        try:
            size = os.stat(path).st_size  # noqa: PTH116
        except (OSError, ValueError):  # also a name that is too long or has a null byte, a folder without permission
            gone.append(row)
            continue
        tasks.setdefault(row.task, {}).setdefault(row.split, []).append(_File(path, intern(row.label), size))
    _check_there(file, gone)
    if not tasks:
        raise StreamError(f"{file} lists no files")
    return tasks


def _rows(file: Path) -> Iterator[_Row]:
    try:
        with file.open(newline="", encoding="utf-8-sig") as opened:
            reader = csv.reader(opened, strict=True)
            columns = next(reader, [])
            if missing := [column for column in _NEEDED if column not in columns]:
                raise StreamError(_header_problem(file, missing[0], columns))
            path, label, task = (columns.index(column) for column in _NEEDED)
            split = columns.index("split") if "split" in columns else None
            width = len(columns)
            for fields in reader:
                if fields:  # not an empty line
                    values = [field.strip() for field in fields] + [""] * (width - len(fields))
                    part = None if split is None else values[split]
                    yield _Row(reader.line_num, values[path], values[label], values[task], part)
    except FileNotFoundError:
        raise DataError(f"{file} does not exist; give a CSV file with columns path, label, task") from None
    except OSError as error:
        raise DataError(f"{file} cannot be read: {error.strerror}") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{file} is not a CSV file in UTF-8: {error}") from None


def _header_problem(file: Path, missing: str, columns: Sequence[str]) -> str:
    for separator, name in _OTHER_SEPARATORS.items():
        if any(separator in column for column in columns):
            return f"{file} looks separated by {name}; save it with commas, its first line must be path,label,task"
    return f"{file} has no column {missing!r}; its first line must name path, label and task"


def _check_there(file: Path, gone: list[_Row]) -> None:
    """Raise DataError, with line numbers, if images are missing."""
    if len(gone) == 1:
        there = f"{file}, line {gone[0].line}: {file.parent / gone[0].path}"
        raise DataError(f"{there} is missing; paths count from the file's folder")
    if gone:
        named = ", ".join(f"{row.path} (line {row.line})" for row in gone[:_NAMED])
        more = f" and {len(gone) - _NAMED} more" if len(gone) > _NAMED else ""
        raise DataError(
            f"{file} lists {len(gone)} images that are missing in {file.parent}: {named}{more}; "
            "paths count from the file's folder"
        )


def _within(folder: str, path: str) -> str:
    """`Path(folder) / path` as text; a `Path` for each of a million files takes many seconds."""
    return path if folder == "." or path.startswith("/") else f"{folder}/{path}"
