"""Streams of image folders: PATH/TASK/CLASS/*.png, or PATH/TASK/{train,test}/CLASS/*.png."""

from __future__ import annotations

import os
import re
from pathlib import Path

from scale_cl.errors import DataError, StreamError
from scale_cl.streams.builders.from_images import ListedTask, Listing, Size, check_choices, stream_of
from scale_cl.streams.builders.from_images import held_out as with_held_out
from scale_cl.streams.images import image_files
from scale_cl.streams.progress import Progress
from scale_cl.streams.stream import Scenario, Stream


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
    if folder.is_file() and folder.suffix.lower() == ".csv":
        raise DataError(f"{folder} is a file; a CSV file that lists images is named csv:{folder}")
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder; give one that holds a folder for each task")
    check_choices(held_out, channels)
    _check_depth(folder)
    tasks = [_listed(task, k, seed, held_out) for k, task in enumerate(_subfolders(folder))]
    if not tasks:
        if image_files(folder):
            raise StreamError(f"{folder} holds images and no folders; images belong into TASK/CLASS/ in it")
        raise StreamError(f"{folder} holds no folders; give one for each task")
    return stream_of(
        tasks,
        scenario=scenario,
        size=size,
        channels=channels,
        shuffle=shuffle,
        seed=seed,
        name=name or folder.resolve().name,
        progress=progress,
    )


def _listed(task: Path, number: int, seed: int, share: float) -> ListedTask:
    """The files of a task, by its own split or one drawn by `seed`."""
    if (task / "train").is_dir() and (task / "test").is_dir():
        return ListedTask(task.name, _classes(task / "train"), _classes(task / "test"))
    return with_held_out(task.name, number, _classes(task), share=share, seed=seed)


def _check_depth(folder: Path) -> None:
    """Refuse a folder whose folders hold images themselves: those are classes, and the folder is a task."""
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
        raise StreamError(
            f"task folder {folder} holds no class folders, it holds images: put them into a folder for each class"
        )
    if not listing:
        raise StreamError(f"task folder {folder} holds no class folders; every task needs at least one with images")
    return listing


def _subfolders(folder: Path) -> list[Path]:
    children = [child for child in folder.iterdir() if child.is_dir() and not child.name.startswith(".")]
    return sorted(children, key=lambda child: (_as_counted(child.name), child.name))


def _as_counted(name: str) -> list[tuple[int, str]]:
    """Sort key by which task2 comes before task10."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)]
