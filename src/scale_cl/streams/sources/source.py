"""A data set on disk: what every source offers (reading, checking, downloads), where it lies, how files are found."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol, runtime_checkable

from scale_cl.errors import DataError
from scale_cl.streams.stream import Arrays


class Progress(Protocol):
    """A callback that reports the progress of long work."""

    def __call__(self, done: int, total: int) -> None:
        """`done` of `total` pieces are done."""


class CheckedFile(NamedTuple):
    """What `check` found about one file or folder."""

    path: str
    good: bool
    text: str


@dataclass(frozen=True)
class Download:
    """A file at an official address, with its published size and checksum."""

    url: str
    path: str  # where it goes, relative to the data root
    size: int
    md5: str
    unpacks_to: str = ""  # for an archive: the folder that it holds, relative to the data root

    @property
    def file_name(self) -> str:
        """Last part of the path."""
        return Path(self.path).name


class Source(Protocol):
    """A data set on disk."""

    @property
    def name(self) -> str:
        """Short name, as in `scale-cl data get NAME`."""

    @property
    def title(self) -> str:
        """Name as people write it."""

    @property
    def downloads(self) -> tuple[tuple[Download, ...], ...]:
        """Alternative sets of files, any one of which is enough; the first is downloaded. Empty: no download."""

    @property
    def placing(self) -> str:
        """What to put where, for people who bring the files themselves."""

    @property
    def embedded(self) -> bool:
        """Whether it needs no files at all."""

    def present(self, root: Path) -> bool:
        """Whether its files seem to be there; a quick look, not a check."""

    def read(self, root: Path, progress: Progress | None = None) -> Arrays:
        """The whole data set; DataError if files are missing, truncated or altered."""

    def check(self, root: Path, progress: Progress | None = None) -> list[CheckedFile]:
        """One finding per file: whether it is there, complete and the published one."""


@runtime_checkable
class Resizable(Protocol):
    """A data set of image files, which can be read at any size."""

    def at(self, size: int) -> Source:
        """The same data set, with images resized to `size`."""


def data_root(root: str | os.PathLike[str] | None = None) -> Path:
    """The folder that holds the data sets: the one given, else SCALE_CL_DATA, else the user's cache folder."""
    if root is not None:
        return expanded(root)
    if named := os.environ.get("SCALE_CL_DATA"):
        return expanded(named)
    import platformdirs

    return Path(platformdirs.user_cache_dir("scale-cl"))


def expanded(path: str | os.PathLike[str]) -> Path:
    """The path with `~` replaced by the home folder; `~user` of an unknown user stays as it is."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return Path(path)


def folder_with(root: Path, folders: Iterable[str], files: Iterable[str]) -> Path | None:
    """The first of `folders` below `root` that holds all of `files`."""
    wanted = list(files)
    return next((f for f in (root / name for name in folders) if all((f / w).is_file() for w in wanted)), None)


def missing(source: Source, root: Path) -> DataError:
    """The error for a data set that is not there."""
    advice = f"run `scale-cl data get {source.name}`, or place it yourself" if source.downloads else "place it yourself"
    return DataError(f"{source.title} is not in {root}: {advice} ({source.placing})")


def finding(root: Path, path: Path, problem: str | None, text: str) -> CheckedFile:
    """The finding about `path`, named relative to the data root; `text` describes a file without a problem."""
    shown = str(path.relative_to(root)) if path.is_relative_to(root) else str(path)
    return CheckedFile(shown, problem is None, problem or text)
