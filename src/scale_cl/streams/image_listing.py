"""Which image files a stream has, by task and class: listed from folders (TASK/CLASS/*.png) or from a CSV file.

Paths are text: a million `Path` objects take many seconds and hundreds of megabytes.
"""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from sys import intern
from typing import NamedTuple

from scale_cl import files
from scale_cl.errors import DataError, StreamError
from scale_cl.streams.assembly import generator
from scale_cl.streams.images import EXTENSIONS, image_names
from scale_cl.streams.reading import OnError

_NEEDED = ("path", "label", "task")
PARTS = ("train", "test")
_OTHER_SEPARATORS = {";": "semicolons", "\t": "tabs"}
_NAMED = 10  # at most so many missing files are named in an error


class ImageFile(NamedTuple):
    """An image file, its class and its size."""

    path: str
    label: str
    bytes: int


Listing = list[ImageFile]


@dataclass(frozen=True)
class ListedTask:
    """The image files of a task and their classes."""

    name: str
    train: Listing
    test: Listing


def in_folder(folder: Path, *, share: float, seed: int) -> list[ListedTask]:
    """One task per folder in `folder`; without a test folder, a share of each class is drawn by `seed`."""
    _check_depth(folder)
    tasks = [_listed(task, k, seed, share) for k, task in enumerate(_subfolders(folder))]
    if not tasks:
        if image_names(folder):
            raise StreamError(f"{folder} holds images and no folders; images belong in TASK/CLASS/ in it")
        raise StreamError(f"{folder} holds no folders; give one for each task")
    _check_no_images_beside(folder, "task")
    return tasks


def in_manifest(file: Path, *, share: float, seed: int, on_error: OnError) -> list[ListedTask]:
    """The tasks of a CSV file; without a column `split`, a share of each class is drawn by `seed`.

    Where errors are skipped, a file that is missing is listed too, as long as others are there: reading skips it.
    """
    tasks = []
    for number, (task, parts) in enumerate(_listed_tasks(file, on_error).items()):
        if None in parts:
            tasks.append(_with_held_out(task, number, parts[None], share=share, seed=seed))
        else:
            tasks.append(ListedTask(task, *(parts.get(part, []) for part in PARTS)))
    return tasks


def images_in(source: Path) -> list[tuple[str, str | None]]:
    """Image files, and their tasks if those are known: a file itself, all in a folder, or those that a CSV file lists.

    The CSV file has a column `path`, and perhaps one `task`; paths are relative to its folder.
    """
    if source.is_dir():
        found = [str(path) for path in sorted(source.rglob("*")) if _is_image(path.relative_to(source))]
        if not found:
            raise DataError(f"{source} holds no images")
        return [(path, None) for path in found]
    if source.suffix.lower() == ".csv":
        rows = list(_rows(source, needed=("path",)))
        _check_there(source, [row for row in rows if not (source.parent / row.path).is_file()])
        return [(_within(str(source.parent), row.path), row.task or None) for row in rows]
    if not source.is_file():
        raise DataError(f"{source} does not exist; name images, a folder of them, or a CSV file with a column path")
    return [(str(source), None)]


def _is_image(path: Path) -> bool:
    return path.suffix.lower() in EXTENSIONS and not any(part.startswith(".") for part in path.parts)


def labelled_in(source: Path) -> list[ListedTask]:
    """The tasks of a folder or CSV file, all of it to test with, unless it says itself what is to be trained on."""
    if source.is_dir():
        _check_depth(source)
        found = []
        for task in _subfolders(source):
            own = task / "test" if (task / "train").is_dir() and (task / "test").is_dir() else task
            found.append(ListedTask(task.name, [], _classes(own)))
        _check_no_images_beside(source, "task")
    elif source.suffix.lower() == ".csv":
        parts = _listed_tasks(source).items()
        found = [ListedTask(task, [], [*own.get("test", []), *own.get(None, [])]) for task, own in parts]
    else:
        raise DataError(f"{source} is neither a folder TASK/CLASS/ of images nor a CSV file with path, label, task")
    found = [task for task in found if task.test]
    if not found:
        raise DataError(f"{source} holds nothing to test with; images belong in TASK/CLASS/ in it")
    return found


def _with_held_out(name: str, number: int, listing: Listing, *, share: float, seed: int) -> ListedTask:
    """Task number `number`, tested on a share of each class drawn by `seed`; on nothing if the share is 0."""
    draw = generator(seed, number, "held out")
    train: Listing = []
    test: Listing = []
    by_label: dict[str, Listing] = {}
    for file in listing:
        by_label.setdefault(file.label, []).append(file)
    for label, own in sorted(by_label.items()):
        if share and len(own) < 2:
            raise StreamError(f"class {label!r} of task {name!r} has one image; two are needed, one to test with")
        kept = min(max(1, round(share * len(own))), len(own) - 1) if share else 0
        chosen = set(draw.permutation(len(own))[:kept].tolist())
        test += [entry for i, entry in enumerate(own) if i in chosen]
        train += [entry for i, entry in enumerate(own) if i not in chosen]
    return ListedTask(name, train, test)


def _listed(task: Path, number: int, seed: int, share: float) -> ListedTask:
    """The files of a task, with its own split or one drawn by `seed`."""
    if (task / "train").is_dir() and (task / "test").is_dir():
        return ListedTask(task.name, _classes(task / "train"), _classes(task / "test"))
    return _with_held_out(task.name, number, _classes(task), share=share, seed=seed)


def _check_depth(folder: Path) -> None:
    """Refuse a folder whose folders hold images: it is a task, and the stream is the folder above it."""
    within = _subfolders(folder)
    if within and all(not _subfolders(child) and image_names(child) for child in within):
        parent = folder.resolve().parent if folder.name in ("", "..") else folder.parent
        raise StreamError(
            f"task folder {within[0]} holds no class folders, it holds images, which belong in TASK/CLASS/: if "
            f"{folder} is one task, name the folder above it, {parent}; else put the class folders into a folder for "
            "each task"
        )


def _classes(folder: Path) -> Listing:
    """All images of the class folders in `folder`."""
    listing: Listing = []
    for child in _subfolders(folder):
        images = image_names(child)
        if not images:
            raise StreamError(f"class folder {child} holds no images; put some in it or remove it")
        listing += [ImageFile(_within(str(child), image), child.name, size) for image, size in images]
    if not listing and image_names(folder):
        advice = "put them into a folder for each class"
        raise StreamError(f"task folder {folder} holds no class folders, it holds images: {advice}")
    if not listing:
        raise StreamError(f"task folder {folder} holds no class folders; every task needs at least one with images")
    _check_no_images_beside(folder, "class")
    return listing


def _check_no_images_beside(folder: Path, kind: str) -> None:
    """Refuse images beside the folders of tasks or classes: nobody would learn that they are not used."""
    beside = image_names(folder)
    if beside:
        number, them = ("an image", "it") if len(beside) == 1 else (f"{len(beside)} images", "them")
        raise StreamError(
            f"{folder} holds {number} beside its {kind} folders ({beside[0][0]}{', ...' * (len(beside) > 1)}); put "
            f"{them} into a folder TASK/CLASS/, or remove {them}"
        )


def _subfolders(folder: Path) -> list[Path]:
    with os.scandir(folder) as entries:
        children = [Path(entry) for entry in entries if not entry.name.startswith(".") and entry.is_dir()]

    def counted(child: Path) -> tuple[list[tuple[int, str]], str]:  # puts task2 before task10
        parts = re.split(r"(\d+)", child.name)
        return [(int(part), "") if part.isdecimal() else (-1, part) for part in parts], child.name

    return sorted(children, key=counted)


class _Row(NamedTuple):
    """A line of the CSV file."""

    line: int
    path: str
    label: str
    task: str
    split: str | None  # None: there is no such column


def _listed_tasks(file: Path, on_error: OnError = "stop") -> dict[str, dict[str | None, Listing]]:
    """The files that the CSV file lists, by task and split; every needed column is filled.

    Every file exists, or some if errors are skipped.
    """
    if file.is_dir():
        raise DataError(f"{file} is a folder; for images in folders use folder:{file}, or name a CSV file in it")
    tasks: dict[str, dict[str | None, Listing]] = {}
    folder, gone, there = str(file.parent), [], False
    for row in _rows(file):
        if not (row.path and row.label and row.task):
            empty = next(column for column in _NEEDED if not getattr(row, column))
            raise StreamError(f"{file}, line {row.line}: {empty} is empty")
        if row.split is not None and row.split not in PARTS:
            raise StreamError(f"{file}, line {row.line}: split is {row.split!r}; it must be train or test")
        path = _within(folder, row.path)
        try:
            size, there = os.stat(path).st_size, True  # noqa: PTH116
        except (OSError, ValueError):  # also a name that is too long or has a null byte, a folder without permission
            gone.append(row)
            size = 0
        tasks.setdefault(row.task, {}).setdefault(row.split, []).append(ImageFile(path, intern(row.label), size))
    if on_error == "stop" or not there:
        _check_there(file, gone)
    if not tasks:
        raise StreamError(f"{file} lists no files")
    return tasks


def _rows(file: Path, needed: Sequence[str] = _NEEDED) -> Iterator[_Row]:
    try:
        files.check_plain(file)
        with file.open(newline="", encoding="utf-8-sig") as opened:
            reader = csv.reader(opened, strict=True)
            columns = next(reader, [])
            if missing := [column for column in needed if column not in columns]:
                raise StreamError(_header_problem(file, missing[0], columns))
            width = len(columns)
            path, label, task = (columns.index(name) if name in columns else width for name in _NEEDED)
            split = columns.index("split") if "split" in columns else None
            for fields in reader:
                if fields:  # not an empty line
                    values = [field.strip() for field in fields] + [""] * (width + 1 - len(fields))
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
