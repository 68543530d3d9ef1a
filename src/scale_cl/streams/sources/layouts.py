"""Looking for the files of a data set in the folders in which people keep them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

from scale_cl.errors import DataError
from scale_cl.streams.sources.source import Finding


def folder_with(root: Path, folders: Iterable[str], files: Iterable[str]) -> Path | None:
    """The first of `folders` below `root` that holds all of `files`."""
    wanted = list(files)
    return next((f for f in (root / name for name in folders) if all((f / w).is_file() for w in wanted)), None)


def missing(title: str, name: str, root: Path, placing: str) -> DataError:
    """The error for a data set that is not there."""
    return DataError(f"{title} is not in {root}: run `scale-cl data get {name}`, or place it yourself ({placing})")


def finding(root: Path, path: Path, problem: str | None, text: str) -> Finding:
    """What was found out about `path`, named as seen from the data root."""
    shown = str(path.relative_to(root)) if path.is_relative_to(root) else str(path)
    return Finding(shown, problem is None, problem or text)


def md5(data: bytes | memoryview | bytearray) -> str:
    """Hexadecimal MD5, as data sets publish it."""
    return hashlib.md5(data, usedforsecurity=False).hexdigest()
