"""Streams from image files: `from_folder` (TASK/CLASS/*.png) and `from_manifest` (a CSV file that lists them)."""

from __future__ import annotations

import contextlib
import csv
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scale_cl.errors import DataError, StreamError
from scale_cl.streams.assembly import generator
from scale_cl.streams.from_arrays import from_arrays
from scale_cl.streams.images import UndecodableError, image_files, read_images, size_of
from scale_cl.streams.sources.source import Progress
from scale_cl.streams.stream import Scenario, Stream

Listing = list[tuple[Path, str]]  # image file, class
Size = int | tuple[int, int] | None
_NEEDED = ("path", "label", "task")
_PARTS = ("train", "test")
_OTHER_SEPARATORS = {";": "semicolons", "\t": "tabs"}
_NAMED = 10  # at most so many missing files are named in an error


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
    for label in sorted({label for _, label in listing}):
        files = [entry for entry in listing if entry[1] == label]
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
    tasks: list[_ListedTask], size: Size, channels: int, progress: Progress | None, **options: Any
) -> Stream:
    """The stream of these tasks, with all their files read."""
    files = [file for task in tasks for file, _ in (*task.train, *task.test)]
    target = _size(size, files)
    pixels = read_images(files, target, channels=channels, resize=size is not None, progress=progress)
    groups, start = [], 0
    for task in tasks:
        middle, end = start + len(task.train), start + len(task.train) + len(task.test)
        y_train, y_test = ([label for _, label in part] for part in (task.train, task.test))
        groups.append((pixels[start:middle], y_train, pixels[middle:end], y_test))
        start = end
    return from_arrays(groups, names=[task.name for task in tasks], layout="NCHW", **options)


def _size(size: Size, files: list[Path]) -> tuple[int, int]:
    if size is None:
        for file in files:
            with contextlib.suppress(UndecodableError):  # `read_images` names all broken files together
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
) -> Stream:
    """A stream with one task per folder in `path`, in the order of their names (task2 before task10).

    Args:
        path: a folder with one folder per task, which has one folder per class, or train and test folders of these.
        scenario: "task": each task has a head for its own classes; "domain": all tasks share one head; "class": one
            head for all classes, numbered in the order in which tasks bring them.
        size: height and width to resize images to; by default all images must have the size of the first.
        channels: 3 for colour, 1 for grey.
        held_out: fraction of each class that is held out for testing if a task has no test folder.
        shuffle: False: samples arrive in the order of class names and file names.
        seed: decides the order of arrival and which samples are held out.
        name: name of the stream; by default that of the folder.
        progress: called while images are read.
    """
    folder = Path(path)
    if folder.is_file() and folder.suffix.lower() == ".csv":
        raise DataError(f"{folder} is a file; a CSV file that lists images is named csv:{folder}")
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder; give one that holds a folder for each task")
    _check_choices(held_out, channels)
    _check_depth(folder)
    tasks = [_listed(task, k, seed, held_out) for k, task in enumerate(_subfolders(folder))]
    if not tasks:
        if image_files(folder):
            raise StreamError(f"{folder} holds images and no folders; images belong into TASK/CLASS/ in it")
        raise StreamError(f"{folder} holds no folders; give one for each task")
    options = {"scenario": scenario, "shuffle": shuffle, "seed": seed, "name": name or folder.resolve().name}
    return _stream_of(tasks, size, channels, progress, **options)


def _listed(task: Path, number: int, seed: int, share: float) -> _ListedTask:
    """The files of a task, with its own split or one drawn by `seed`."""
    if (task / "train").is_dir() and (task / "test").is_dir():
        return _ListedTask(task.name, _classes(task / "train"), _classes(task / "test"))
    return _with_held_out(task.name, number, _classes(task), share=share, seed=seed)


def _check_depth(folder: Path) -> None:
    """Refuse a folder whose folders hold images: it is a task, and the stream is the folder above it."""
    within = _subfolders(folder)
    if within and all(image_files(child) and not _subfolders(child) for child in within):
        parent = folder.resolve().parent if folder.name in ("", "..") else folder.parent
        raise StreamError(
            f"task folder {within[0]} holds no class folders, it holds images: did you mean folder:{parent}? "
            "Images belong into TASK/CLASS/ in it"
        )


def _classes(folder: Path) -> Listing:
    """All images of the class folders in `folder`."""
    listing: Listing = []
    for child in _subfolders(folder):
        images = image_files(child)
        if not images:
            raise StreamError(f"class folder {child} holds no images; put some in it or remove it")
        listing += [(image, child.name) for image in images]
    if not listing and image_files(folder):
        advice = "put them into a folder for each class"
        raise StreamError(f"task folder {folder} holds no class folders, it holds images: {advice}")
    if not listing:
        raise StreamError(f"task folder {folder} holds no class folders; every task needs at least one with images")
    return listing


def _subfolders(folder: Path) -> list[Path]:
    children = [child for child in folder.iterdir() if child.is_dir() and not child.name.startswith(".")]

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
) -> Stream:
    """A stream of the image files that a CSV file lists, with tasks in the order of their first appearance.

    The file is in UTF-8, with a header line and the columns path, label and task; paths are relative to its folder. An
    optional column `split` says train or test for each file; without it, `held_out` of each class is held out. With
    `shuffle=False` samples arrive in the order of the file. The other arguments are those of `from_folder`.
    """
    file = Path(path)
    _check_choices(held_out, channels)
    rows = _rows(file)
    tasks = []
    for number, task in enumerate(dict.fromkeys(row["task"] for row in rows)):
        own = [row for row in rows if row["task"] == task]
        if "split" in own[0]:
            train, test = (_listing(file, [row for row in own if row["split"] == part]) for part in _PARTS)
            tasks.append(_ListedTask(task, train, test))
        else:
            tasks.append(_with_held_out(task, number, _listing(file, own), share=held_out, seed=seed))
    options = {"scenario": scenario, "shuffle": shuffle, "seed": seed, "name": name or file.stem}
    return _stream_of(tasks, size, channels, progress, **options)


def _listing(file: Path, rows: list[dict[str, str]]) -> Listing:
    return [(file.parent / row["path"], row["label"]) for row in rows]


def _rows(file: Path) -> list[dict[str, str]]:
    """The rows of the file; every needed column is filled and every image exists."""
    if file.is_dir():
        raise DataError(f"{file} is a folder; for images in folders use folder:{file}, or name a CSV file in it")
    lines: list[int] = []
    rows: list[dict[str, str]] = []
    try:
        with file.open(newline="", encoding="utf-8-sig") as opened:
            reader = csv.DictReader(opened, strict=True)
            columns = reader.fieldnames or []
            if missing := [column for column in _NEEDED if column not in columns]:
                raise StreamError(_header_problem(file, missing[0], columns))
            for row in reader:
                rows.append({str(k): str(v or "").strip() for k, v in row.items()})
                lines.append(reader.line_num)  # counts empty lines too
    except FileNotFoundError:
        raise DataError(f"{file} does not exist; give a CSV file with columns path, label, task") from None
    except OSError as error:
        raise DataError(f"{file} cannot be read: {error.strerror}") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{file} is not a CSV file in UTF-8: {error}") from None
    for number, row in zip(lines, rows, strict=True):
        if empty := [column for column in _NEEDED if not row[column]]:
            raise StreamError(f"{file}, line {number}: {empty[0]} is empty")
        if "split" in row and row["split"] not in _PARTS:
            raise StreamError(f"{file}, line {number}: split is {row['split']!r}; it must be train or test")
    if not rows:
        raise StreamError(f"{file} lists no files")
    _check_there(file, lines, rows)
    return rows


def _header_problem(file: Path, missing: str, columns: Sequence[str]) -> str:
    for separator, name in _OTHER_SEPARATORS.items():
        if any(separator in column for column in columns):
            return f"{file} looks separated by {name}; save it with commas, its first line must be path,label,task"
    return f"{file} has no column {missing!r}; its first line must name path, label and task"


def _check_there(file: Path, lines: list[int], rows: list[dict[str, str]]) -> None:
    """Raise DataError, with line numbers, if images are missing."""
    gone = [(n, row["path"]) for n, row in zip(lines, rows, strict=True) if not _is_there(file.parent / row["path"])]
    if len(gone) == 1:
        number, path = gone[0]
        raise DataError(f"{file}, line {number}: {file.parent / path} is missing; paths count from the file's folder")
    if gone:
        named = ", ".join(f"{path} (line {number})" for number, path in gone[:_NAMED])
        more = f" and {len(gone) - _NAMED} more" if len(gone) > _NAMED else ""
        raise DataError(
            f"{file} lists {len(gone)} images that are missing in {file.parent}: {named}{more}; "
            "paths count from the file's folder"
        )


def _is_there(image: Path) -> bool:
    try:
        return image.exists()
    except OSError:  # a name that is too long, a folder without permission
        return False
