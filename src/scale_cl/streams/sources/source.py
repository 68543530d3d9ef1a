"""What every data set offers: reading it into arrays, checking its files, and where to download them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

from scale_cl.streams.progress import Progress
from scale_cl.streams.stream import Arrays


class Finding(NamedTuple):
    """What `check` found out about one file or folder."""

    path: str
    good: bool
    text: str


@dataclass(frozen=True)
class Download:
    """A file at an official address, with what is known of it."""

    url: str
    path: str  # where it goes below the data root
    size: int
    md5: str
    unpacks_to: str = ""  # an archive: the folder below the data root that it holds

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
        """Sets of files of which any one will do; the first is the one to download. None: nothing to download."""

    @property
    def placing(self) -> str:
        """What to put where, for people who bring the files themselves."""

    @property
    def embedded(self) -> bool:
        """Whether it needs no files at all."""

    def present(self, root: Path) -> bool:
        """Whether its files are there, as far as a quick look can tell."""

    def read(self, root: Path, progress: Progress | None = None) -> Arrays:
        """The whole data set; DataError if files are missing, truncated or altered."""

    def check(self, root: Path, progress: Progress | None = None) -> list[Finding]:
        """A line on every file: is it there, is it whole, is it the published one."""
