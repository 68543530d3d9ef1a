"""Files: atomic writes (whole or not at all), bounded reads, checksums, and a lock that dies with its process."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import secrets
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from scale_cl.errors import OutputInUseError

_HELD: set[int] = set()  # descriptors of the locks this process holds
_SIGNED_WITHIN = 5.0  # seconds that the holder of a lock has to write its number into it


def write_bytes(path: str | os.PathLike[str], data: bytes) -> None:
    """Write `data` to `path`, making its folder: a reader sees the old file or the new one, never a part."""
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(6)}.tmp")
    try:
        with temporary.open("xb") as out:
            out.write(data)
            out.flush()
            os.fsync(out.fileno())
        put_in_place(temporary, target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write `text` as UTF-8, whole or not at all."""
    write_bytes(path, text.encode("utf-8"))


def write_json(path: str | os.PathLike[str], obj: Any) -> None:
    """Write `obj` as indented JSON, whole or not at all; NaN and infinity are refused, as JSON has none."""
    write_text(path, json.dumps(obj, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def put_in_place(temporary: Path, target: Path) -> None:
    """Rename a finished, synced file onto its name and make the rename itself durable."""
    temporary.replace(target)
    with contextlib.suppress(OSError):  # some file systems cannot sync a folder; the rename stands all the same
        folder = os.open(target.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def first_free(path: Path, is_taken: Callable[[Path], bool] = Path.exists) -> Path:
    """`path`, or its first numbered sibling (`name-2`, `name-3`) that is not taken."""
    number, candidate = 1, path
    while is_taken(candidate):
        number += 1
        candidate = path.with_name(f"{path.name}-{number}")
    return candidate


def is_folder(path: str | os.PathLike[str]) -> bool:
    """Whether there is a folder of this name; False for a name that none can have, as it is too long."""
    return os.path.isdir(path)  # noqa: PTH112 - Path.is_dir raises OSError for such a name


class TooLargeError(OSError):
    """A file is larger than what it is taken for ever is."""


def check_plain(path: str | os.PathLike[str]) -> int:
    """Bytes of the plain file at `path`; OSError for a folder, and for a pipe or device, which might never end."""
    found = os.stat(path)  # noqa: PTH116 - a path as text is not made a Path for this, as there may be a million
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "it is not a plain file", os.fspath(path))
    return found.st_size


def read_plain(path: str | os.PathLike[str], largest: int) -> bytes:
    """The content of a plain file; TooLargeError, before more is read, if it has more than `largest` bytes."""
    size = check_plain(path)
    if size > largest:
        raise TooLargeError(errno.EFBIG, f"it is larger than {largest} bytes", os.fspath(path))
    with Path(path).open("rb") as file:
        return file.read(size)


def sha256(path: str | os.PathLike[str]) -> str:
    """Hexadecimal SHA-256 of a file's content."""
    return digest(path, "sha256")


def digest(path: str | os.PathLike[str], algorithm: str) -> str:
    """Hexadecimal checksum of a file's content by any algorithm of hashlib."""
    check_plain(path)
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.new(algorithm, usedforsecurity=False)).hexdigest()


@contextlib.contextmanager
def lock(path: str | os.PathLike[str]) -> Iterator[None]:
    """Hold the lock file `path` for this process; OutputInUseError at once if anyone else holds it."""
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    descriptor = _acquire(target)
    _HELD.add(descriptor)
    try:
        yield
    finally:
        if descriptor in _HELD:  # a forked child has closed its copy already, and the file is not its to remove
            _HELD.remove(descriptor)
            target.unlink(missing_ok=True)  # while still held, so that nobody can have locked this very file
            os.close(descriptor)


def _acquire(target: Path) -> int:
    """A descriptor that holds the lock on the file now at `target`."""
    import fcntl

    deadline = time.monotonic() + _SIGNED_WITHIN
    while True:
        descriptor = _opened(target)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            held, named = os.fstat(descriptor), target.stat(follow_symlinks=False)
            if (held.st_dev, held.st_ino) == (named.st_dev, named.st_ino):
                _sign(descriptor, target)
                return descriptor
        except FileNotFoundError:  # the former holder removed it between our open and our lock
            pass
        except BlockingIOError:
            holder = os.read(descriptor, 20).decode("ascii", "replace").strip()
            if _lives(holder) or time.monotonic() > deadline:
                os.close(descriptor)
                raise OutputInUseError(
                    f"{target.parent} is in use by process {holder or 'unknown'}: wait, or use another"
                ) from None
            time.sleep(0.005)  # the holder has the lock and writes its number next
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _opened(target: Path) -> int:
    """A descriptor of the lock file; OutputInUseError if it is a link or no file: what it leads to is not ours."""
    how = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    with contextlib.suppress(FileNotFoundError):
        found = target.stat(follow_symlinks=False)
        if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
            raise OutputInUseError(f"{target} is a link or no file; remove it: it is only to mark a directory in use")
    return os.open(target, how, 0o666)


def _sign(descriptor: int, target: Path) -> None:
    """Write the number of this process into a lock file that it holds, or remove the file."""
    try:
        os.truncate(descriptor, 0)
        os.write(descriptor, f"{os.getpid()}\n".encode())
    except BaseException:  # a full disk
        target.unlink(missing_ok=True)
        raise


def _lives(holder: str) -> bool:
    """Whether this is the number of a process; a file without one, or with one of before, is about to be written."""
    try:
        os.kill(int(holder), 0)
    except PermissionError:  # another user's
        return True
    except (ValueError, OverflowError, ProcessLookupError):
        return False
    return True


def _let_go_in_child() -> None:
    """Close inherited descriptors: a child that outlives its parent must not keep the parent's lock."""
    while _HELD:
        os.close(_HELD.pop())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go_in_child)
