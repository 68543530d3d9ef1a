"""Every write of a run goes wrong once: a full disk, an I/O error, a rename that fails. The last good state stays."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from scale_cl import results
from scale_cl.training.checkpoint import found

SIZES = ("--tasks", "2", "--set", "run.batch_size=250", "--set", "run.checkpoint_every=3")  # 4 steps per task
RUN = ("run", "--learner", "finetune", "-q", "--out", "o", *SIZES)
FAULTS = (errno.ENOSPC, errno.EIO)  # in turn: which one it is, is only said


class Faults:
    """Counts the calls of what files are written with, and fails one of them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, kind: str, code: int) -> None:
        self.calls, self.fail_at, self.code = 0, -1, code
        if kind == "write":
            monkeypatch.setattr(Path, "open", self._opening(Path.open))
        elif kind == "fsync":
            monkeypatch.setattr(os, "fsync", self._counted(os.fsync))
        else:
            monkeypatch.setattr(Path, "replace", self._counted(Path.replace))

    def hit(self) -> None:
        self.calls += 1
        if self.calls == self.fail_at:
            raise OSError(self.code, os.strerror(self.code))

    def _counted(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            self.hit()
            return real(*arguments)

        return call

    def _opening(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def opened(path: Path, mode: str = "r", *more: Any, **named: Any) -> Any:
            if "x" in mode:
                self.hit()
            file = real(path, mode, *more, **named)
            if "x" in mode and self.calls == self.fail_at - 1:
                self.calls += 1
                file.write(b"half")  # of the content, then the disk is full
                file.close()
                raise OSError(self.code, os.strerror(self.code))
            return file

        return opened


@pytest.mark.parametrize("kind", ["write", "fsync", "rename"])
def test_whichever_write_fails_the_run_ends_clearly_and_can_go_on(
    command: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    assert command(*RUN).code == 0
    wanted = results.read(Path("o")).seeds[0].matrix
    with monkeypatch.context() as patched:
        counter = Faults(patched, kind, FAULTS[0])
        assert command(*RUN, "--force").code == 0
    total = counter.calls
    assert total >= 8
    failed = 0
    for at in range(1, total + 1):
        fault = FAULTS[at % len(FAULTS)]
        for path in sorted(Path("o").rglob("*"), reverse=True):
            path.unlink() if path.is_file() else path.rmdir()
        with monkeypatch.context() as patched:
            faults = Faults(patched, kind, fault)
            faults.fail_at = at
            ended = command(*RUN)
        if faults.calls < at:  # without a result to replace there are fewer renames
            break
        assert [p for p in Path("o").rglob("*") if p.name.endswith(".tmp")] == [], "nothing half-written stays"
        if ended.code == 0:  # the folder's own sync, which some file systems do not have
            assert kind == "fsync"
        else:
            failed += 1
            assert ended.code == 2
            assert ended.err.count("\n") == 1
            assert os.strerror(fault) in ended.err
            assert "cannot be written" in ended.err
            if not Path("o/run.json").exists():
                assert not list(Path("o").glob("*")), "before the first checkpoint nothing is left"
                noted = "the note of the run cannot be written" not in ended.err
                assert noted == ("no checkpoint was written, so there is nothing to go on with" in ended.err)
                continue
            assert found(Path("o/checkpoints/seed-0"))
            assert ended.err.endswith("; go on with: scale-cl resume o\n")
            assert command("resume", "o", "-q").code == 0
        assert results.read(Path("o")).seeds[0].matrix == wanted
        assert not Path("o/checkpoints").exists()
    assert failed >= 4


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_directory_that_becomes_read_only_ends_the_run_clearly(command: Callable[..., Any]) -> None:
    Path("o").mkdir()
    Path("o").chmod(stat.S_IRUSR | stat.S_IXUSR)
    try:
        ended = command(*RUN)
    finally:
        Path("o").chmod(stat.S_IRWXU)
    assert ended.code == 2
    assert "o cannot be written to: Permission denied" in ended.err


def test_a_directory_that_cannot_be_written_to_is_said_before_anything_is_trained(
    command: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_only(*_: Any, **__: Any) -> int:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    with monkeypatch.context() as patched:
        patched.setattr(os, "open", read_only)
        ended = command(*RUN)
    assert ended.code == 2
    assert "o cannot be written to: Read-only file system" in ended.err
    assert not Path("o").exists()
