"""Atomic writes, checksums and locks."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import multiprocessing
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from scale_cl import files
from scale_cl.errors import OutputInUseError


def test_a_written_file_holds_what_was_given_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    files.write_bytes(tmp_path / "new" / "a.bin", b"one")
    files.write_text(tmp_path / "new" / "b.txt", "ACC ± 1")
    files.write_json(tmp_path / "new" / "c.json", {"matrix": [[1.5, None]]})
    assert (tmp_path / "new" / "a.bin").read_bytes() == b"one"
    assert (tmp_path / "new" / "b.txt").read_text(encoding="utf-8") == "ACC ± 1"
    assert json.loads((tmp_path / "new" / "c.json").read_text()) == {"matrix": [[1.5, None]]}
    assert sorted(p.name for p in (tmp_path / "new").iterdir()) == ["a.bin", "b.txt", "c.json"]


def test_a_write_that_fails_leaves_the_old_file_and_no_temporary_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files.write_bytes(tmp_path / "a", b"old")

    def fail(descriptor: int) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="no space left"):
        files.write_bytes(tmp_path / "a", b"new")
    assert (tmp_path / "a").read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


def test_json_without_a_spelling_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="JSON"):
        files.write_json(tmp_path / "a", float("nan"))
    assert not list(tmp_path.iterdir())


def test_permissions_of_a_written_file_follow_the_umask(tmp_path: Path) -> None:
    files.write_bytes(tmp_path / "written", b"")
    (tmp_path / "plain").write_bytes(b"")
    assert (tmp_path / "written").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_checksums_are_those_of_hashlib(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"scale" * 1000)
    assert files.sha256(tmp_path / "a") == hashlib.sha256(b"scale" * 1000).hexdigest()
    assert files.digest(tmp_path / "a", "md5") == hashlib.md5(b"scale" * 1000).hexdigest()


def test_a_held_lock_is_refused_at_once_and_free_again_afterwards(tmp_path: Path) -> None:
    with files.lock(tmp_path / "lock"):
        with pytest.raises(OutputInUseError, match=f"in use by process {os.getpid()}"), files.lock(tmp_path / "lock"):
            pass
        assert _another_process_gets(tmp_path / "lock") == "refused"
    assert not list(tmp_path.iterdir())
    assert _another_process_gets(tmp_path / "lock") == "held"
    with files.lock(tmp_path / "lock"):
        pass


def test_a_lock_is_released_when_its_body_fails(tmp_path: Path) -> None:
    with pytest.raises(KeyError), files.lock(tmp_path / "lock"):
        raise KeyError
    with files.lock(tmp_path / "lock"):
        pass


def test_a_lock_dies_with_its_process(tmp_path: Path) -> None:
    code = f"import os; from scale_cl.files import lock\nwith lock({str(tmp_path / 'lock')!r}): os._exit(0)"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert (tmp_path / "lock").exists()  # left behind, but nobody's
    with files.lock(tmp_path / "lock"):
        pass


def test_a_forked_child_that_lives_on_does_not_keep_the_lock(tmp_path: Path) -> None:
    fork = multiprocessing.get_context("fork")
    gate = fork.Event()
    with files.lock(tmp_path / "lock"):
        child = fork.Process(target=gate.wait, args=(30,))
        child.start()
    try:
        assert child.is_alive()
        with files.lock(tmp_path / "lock"):
            pass
    finally:
        gate.set()
        child.join()


def _another_process_gets(path: Path) -> str:
    code = (
        "from scale_cl.files import lock\nfrom scale_cl.errors import OutputInUseError\n"
        f"try:\n    with lock({str(path)!r}): print('held')\nexcept OutputInUseError: print('refused')"
    )
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.strip()


def test_only_plain_files_are_read_and_only_small_ones(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"12345")
    os.mkfifo(tmp_path / "pipe")
    assert files.read_plain(tmp_path / "file", 5) == b"12345"
    with pytest.raises(files.TooLargeError, match="larger than 4 bytes"):
        files.read_plain(tmp_path / "file", 4)
    for path in (tmp_path / "pipe", "/dev/zero"):
        with pytest.raises(OSError, match="it is not a plain file"):
            files.read_plain(path, 5)
    with pytest.raises(IsADirectoryError):
        files.check_plain(tmp_path)
    with pytest.raises(FileNotFoundError):
        files.check_plain(tmp_path / "none")
    assert files.is_folder(tmp_path)
    assert not files.is_folder(tmp_path / ("n" * 300))


def test_a_lock_whose_holder_has_not_written_its_number_yet_is_refused_with_the_number(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    for before in ("", f"{2**22 + 1}\n"):  # an empty file, or the number of a process that is gone
        path.write_text(before)
        with path.open("r+") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            number = threading.Timer(0.05, path.write_text, (f"{os.getpid()}\n",))
            number.start()
            with pytest.raises(OutputInUseError, match=f"in use by process {os.getpid()}"), files.lock(path):
                pass
            number.join()


def test_a_lock_is_no_link_and_no_pipe(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text("of somebody else")
    ways = (lambda p: p.symlink_to(other), lambda p: p.hardlink_to(other), os.mkfifo, Path.mkdir)
    for make in ways:
        path = tmp_path / "here" / "lock"
        path.parent.mkdir(exist_ok=True)
        make(path)
        with pytest.raises(OutputInUseError, match="lock is a link or no file; remove it"), files.lock(path):
            pass
        path.rmdir() if path.is_dir() else path.unlink()
    assert other.read_text() == "of somebody else"


def test_a_lock_that_cannot_be_signed_is_not_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", full)
        with pytest.raises(OSError, match="No space left"), files.lock(tmp_path / "lock"):
            pass
    assert list(tmp_path.iterdir()) == []
