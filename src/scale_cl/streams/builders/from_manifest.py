"""Streams of image files that a CSV file lists: columns path, label, task and perhaps split (train or test)."""

from __future__ import annotations

import csv
import os
from collections.abc import Sequence
from pathlib import Path

from scale_cl.errors import DataError, StreamError
from scale_cl.streams.builders.from_images import ListedTask, Listing, Size, check_choices, stream_of
from scale_cl.streams.builders.from_images import held_out as with_held_out
from scale_cl.streams.progress import Progress
from scale_cl.streams.stream import Scenario, Stream

_NEEDED = ("path", "label", "task")
_PARTS = ("train", "test")
_OTHER_SEPARATORS = {";": "semicolons", "\t": "tabs"}
_NAMED = 10  # missing files that one message names


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
    """A stream of the image files in a CSV file with a header line, tasks in the order in which they first occur.

    Args:
        path: the CSV file, UTF-8; paths in it count from its own folder. Where there is a column `split`, it says train
            or test for each file; otherwise a share of each class is held out.
        scenario: "task": each task has a head for its own classes; "domain": all tasks share one head.
        size: height and width to which images are resized; by default all must have the size of the first.
        channels: 3 for colour, 1 for grey.
        held_out: fraction of each class that is kept for testing where there is no column `split`, drawn by `seed`.
        shuffle: False keeps the order of the file as the order of arrival.
        seed: decides the order of arrival and what is held out.
        name: of the stream; that of the file by default.
        progress: called as images are read.
    """
    file = Path(path)
    check_choices(held_out, channels)
    rows = _rows(file)
    tasks = []
    for number, task in enumerate(dict.fromkeys(row["task"] for row in rows)):
        own = [row for row in rows if row["task"] == task]
        if "split" in own[0]:
            train, test = (_listing(file, [row for row in own if row["split"] == part]) for part in _PARTS)
            tasks.append(ListedTask(task, train, test))
        else:
            tasks.append(with_held_out(task, number, _listing(file, own), share=held_out, seed=seed))
    return stream_of(
        tasks,
        scenario=scenario,
        size=size,
        channels=channels,
        shuffle=shuffle,
        seed=seed,
        name=name or file.stem,
        progress=progress,
    )


def _listing(file: Path, rows: list[dict[str, str]]) -> Listing:
    return [(file.parent / row["path"], row["label"]) for row in rows]


def _rows(file: Path) -> list[dict[str, str]]:
    """The lines of the file, every needed column filled and every image there."""
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
                lines.append(reader.line_num)  # empty lines count, too
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
    """Refuse images that are not there, by their lines."""
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
    except OSError:  # a name that is too long, a folder that may not be entered
        return False
