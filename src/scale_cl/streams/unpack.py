"""Unpacking a data set's archive: plain files only, nowhere but into its own folder, whole or not at all."""

from __future__ import annotations

import contextlib
import gzip
import os
import secrets
import shutil
import tarfile
import zlib
from pathlib import Path, PurePosixPath

from scale_cl.errors import DataError

_MOST_BYTES = 2 << 30
_MOST_FILES = 10_000


def unpack(archive: Path, root: Path, folder: str) -> Path:
    """Unpack the .tar.gz `archive`, all of which must lie in `folder`, to `root/folder`; what was there is replaced."""
    target = root / folder
    temporary = root / f".{folder}.{secrets.token_hex(6)}.tmp"
    temporary.mkdir()
    try:
        with gzip.open(archive) as packed:
            with tarfile.open(fileobj=packed, mode="r|") as tar:
                _extract(tar, archive, temporary, folder)
            while packed.read(1 << 20):  # to its end, where gzip's own checksum is
                pass
        if not (temporary / folder).is_dir():
            raise DataError(f"{archive} does not hold the folder {folder}")
        if target.exists():
            target.rename(temporary / "replaced")
        (temporary / folder).rename(target)
    except (tarfile.TarError, OSError, EOFError, zlib.error, ValueError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{archive} cannot be unpacked: {error or type(error).__name__}") from error
    finally:
        if (kept := temporary / "replaced").exists() and not target.exists():
            with contextlib.suppress(OSError):
                kept.rename(target)
        shutil.rmtree(temporary, ignore_errors=True)
    return target


def _extract(tar: tarfile.TarFile, archive: Path, to: Path, folder: str) -> None:
    total = 0
    for count, member in enumerate(tar):
        path = PurePosixPath(member.name)
        if path.is_absolute() or ".." in path.parts or "\\" in member.name or path.parts[:1] != (folder,):
            raise DataError(f"{archive} would write to {member.name!r}, which is not in its folder {folder}")
        if member.isdir():
            (to / path).mkdir(parents=True, exist_ok=True)
            continue
        if not member.isreg():
            raise DataError(f"{archive} holds {member.name!r}, which is neither a file nor a folder")
        total += member.size
        if count >= _MOST_FILES or total > _MOST_BYTES:
            raise DataError(f"{archive} holds more than {_MOST_FILES} files or {_MOST_BYTES} bytes")
        source = tar.extractfile(member)
        assert source is not None  # a regular file always has content
        (to / path).parent.mkdir(parents=True, exist_ok=True)
        with source, (to / path).open("xb") as out:
            shutil.copyfileobj(source, out, 1 << 20)
            out.flush()
            os.fsync(out.fileno())
