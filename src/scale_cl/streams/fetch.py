"""Downloads: resumed after a cut, checked against size and checksum, unpacked, and in place whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import gzip
import http.client
import os
import secrets
import shutil
import socket
import tarfile
import threading
import time
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from scale_cl.errors import DataError, FetchError
from scale_cl.files import digest, lock, put_in_place
from scale_cl.streams.sources.source import Download, Source

_CHUNK = 1 << 18
_MOST_BYTES = 2 << 30  # that an archive may unpack to
_MOST_FILES = 10_000
_BUSY = frozenset({408, 425, 429, 500, 502, 503, 504})  # status codes after which to retry
_NO_WAY = frozenset({errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENETDOWN, errno.EHOSTDOWN})

Report = Callable[[str, int, int], None]  # file name, bytes so far, bytes in total


@dataclass(frozen=True)
class Patience:
    """How often and how long to retry."""

    attempts: int = 5  # in a row without progress
    pause: float = 1.0  # seconds before the second attempt; doubled after each
    timeout: float = 30.0  # seconds without data after which a connection is closed
    answer: float = 6.0  # seconds in which a server must answer, including name lookup and connecting
    unreached: int = 2  # attempts in a row if no server is reached: there is probably no network


def fetch(source: Source, root: Path, *, report: Report | None = None, patience: Patience | None = None) -> list[str]:
    """Download a data set into `root` unless it is there already; returns one line per file."""
    if not source.downloads:
        raise FetchError(f"{source.title} cannot be downloaded: {source.placing}")
    try:
        with lock(root / f".{source.name}.lock"):
            return _fetch(source, root, report, patience or Patience())
    except FetchError as error:
        raise FetchError(f"{error}; you can also put it in {root} yourself: {source.placing}") from error
    except OSError as error:
        raise FetchError(f"{source.title} cannot be put in {root}: {error}") from error


def _fetch(source: Source, root: Path, report: Report | None, patience: Patience) -> list[str]:
    if all(found.good for found in source.check(root)):
        return [f"{source.title} is in {root} already, whole and right"]
    on_disk = (files for files in source.downloads if all((root / file.path).is_file() for file in files))
    done = []
    for file in next(on_disk, source.downloads[0]):
        was_there = download(file, root / file.path, report=report, patience=patience)
        if file.unpacks_to:
            unpack(root / file.path, root, file.unpacks_to)
            if not was_there:
                (root / file.path).unlink()
        done.append(f"{file.unpacks_to or file.path}: {'there already' if was_there else 'downloaded'}, checksum right")
    for found in source.check(root):
        if not found.good:
            raise FetchError(f"{found.path} is still not right after the download ({found.text}): remove it first")
    return done


def download(file: Download, target: Path, *, report: Report | None = None, patience: Patience) -> bool:
    """Download one file to `target`; True if it was there already with the right checksum."""
    if _is_right(file, target):
        return True
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(target.name + ".part")
    furthest, failures, wrong = _size(part), 0, 0
    if report is not None:
        report(file.file_name, furthest, file.size)  # before anything arrives
    while True:
        resumed = _size(part) > 0
        reason, reached = _attempt(file, part, report, patience)
        if _size(part) == file.size:
            if _is_right(file, part):
                put_in_place(part, target)
                return False
            part.unlink()
            wrong += 1
            if not resumed or wrong > 1:  # a resumed part may belong to another file: start afresh once
                raise FetchError(f"{file.url} served wrong bytes: the checksum is not {file.md5}; nothing was kept")
            furthest = 0
            continue
        failures = 0 if _size(part) > furthest else failures + 1
        furthest = max(furthest, _size(part))
        if failures >= (patience.attempts if reached else patience.unreached):
            kept = f"; {_size(part)} of {file.size} bytes are kept; run it again to resume" if _size(part) else ""
            raise FetchError(f"{file.url} could not be fetched ({reason}){kept}")
        if failures:
            time.sleep(patience.pause * 2 ** (failures - 1))


def _attempt(file: Download, part: Path, report: Report | None, patience: Patience) -> tuple[str, bool]:
    """Continue `part` over one connection; returns why the connection ended early, and whether there was one."""
    start = _size(part)
    if start > file.size:
        part.unlink()
        start = 0
    if start == file.size:
        return "", True
    if not file.url.startswith(("https://", "http://")):
        raise FetchError(f"{file.url} is not an http address")
    headers = {"User-Agent": "scale-cl", "Accept-Encoding": "identity"}
    if start:
        headers["Range"] = f"bytes={start}-"
    reached = False
    try:
        request = urllib.request.Request(file.url, headers=headers)
        with _answer(request, patience) as response:
            reached = True
            return _receive(file, part, start, response, report), True
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 416:  # no such range: the part does not belong to this file
            part.unlink(missing_ok=True)
        elif error.code not in _BUSY:
            raise FetchError(f"{file.url} could not be fetched (HTTP {error.code} {error.reason})") from None
        return f"HTTP {error.code} {error.reason}", True
    except (OSError, http.client.HTTPException) as error:
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        return str(reason) or type(reason).__name__, reached or not _is_unreached(reason)


def _answer(request: urllib.request.Request, patience: Patience) -> http.client.HTTPResponse:
    """The response to a request; a name lookup has no time limit of its own, so that it waits in a thread."""
    answer: Future[http.client.HTTPResponse] = Future()

    def ask() -> None:
        try:
            answer.set_result(urllib.request.urlopen(request, timeout=patience.timeout))
        except BaseException as error:
            answer.set_exception(error)

    threading.Thread(target=ask, daemon=True).start()
    try:
        return answer.result(patience.answer)
    except TimeoutError as error:
        raise TimeoutError(str(error) or f"no answer within {patience.answer:g} s") from None


def _is_unreached(reason: object) -> bool:
    """Whether no connection came about."""
    if isinstance(reason, socket.gaierror | ConnectionRefusedError | TimeoutError):
        return True
    return isinstance(reason, OSError) and reason.errno in _NO_WAY


def _receive(file: Download, part: Path, start: int, response: http.client.HTTPResponse, report: Report | None) -> str:
    """Write the response to `part`; returns why the connection ended early."""
    goes_on = response.status == 206
    if goes_on and not (response.headers["Content-Range"] or "").startswith(f"bytes {start}-"):
        part.unlink(missing_ok=True)
        return "the server sent another range than it was asked for"
    position = start if goes_on else 0
    announced = response.headers["Content-Length"]
    whole = position + int(announced) if announced is not None and announced.isdecimal() else file.size
    if whole != file.size:
        raise FetchError(f"{file.url} is a file of {whole} bytes; the published one has {file.size}")
    with part.open("ab" if goes_on else "wb") as out:
        while chunk := response.read(_CHUNK):
            position += len(chunk)
            if position > file.size:
                break
            out.write(chunk)
            if report is not None:
                report(file.file_name, position, file.size)
        out.flush()
        os.fsync(out.fileno())
    if position > file.size:
        part.unlink()
        raise FetchError(f"{file.url} serves more than the {file.size} bytes of the published file; nothing was kept")
    return "the connection was cut"


def _is_right(file: Download, path: Path) -> bool:
    return _size(path) == file.size and digest(path, "md5") == file.md5


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


def unpack(archive: Path, root: Path, folder: str) -> Path:
    """Unpack a .tar.gz archive to `root/folder`, replacing it; all members must lie in `folder`."""
    target = root / folder
    temporary = root / f".{folder}.{secrets.token_hex(6)}.tmp"
    temporary.mkdir()
    try:
        with gzip.open(archive) as packed:
            with tarfile.open(fileobj=packed, mode="r|") as tar:
                _extract(tar, archive, temporary, folder)
            while packed.read(1 << 20):  # to the end, so that gzip verifies its checksum
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
