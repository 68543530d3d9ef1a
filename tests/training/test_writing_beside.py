"""Checkpoints that are written while training goes on, as on a GPU: what they hold, and what goes wrong is told."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from scale_cl.errors import CheckpointError, Interrupted
from scale_cl.learners import Learner
from scale_cl.training import Event, checkpoint, train
from scale_cl.training.checkpointing import Checkpointer
from scale_cl.training.events import Stepped, to_all
from scale_cl.training.run_directory import RunDirectory
from tests.learners.sameness import differences
from tests.training.small_streams import few_digits
from tests.training.test_checkpointing import Crash, CrashAt, make


class Slow:
    """Holds the writer of checkpoints back until it is let go."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.go, self.wrote = threading.Event(), 0
        write = checkpoint.write

        def slowly(*args: Any) -> Path:
            assert self.go.wait(60)
            self.wrote += 1
            return write(*args)

        monkeypatch.setattr(checkpoint, "write", slowly)


class After:
    """Lets the writer go some steps after it was given something to write."""

    def __init__(self, slow: Slow, step: int) -> None:
        self.slow, self.step = slow, step

    def __call__(self, event: Event) -> None:
        if event == Stepped(self.step):
            assert self.slow.wrote == 0
            self.slow.go.set()


@pytest.mark.parametrize("name", ["scale", "ctn", "acl", "gem", "scale-ema"])
def test_a_checkpoint_is_of_its_moment_though_training_went_on(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = few_digits()
    straight = make(name, stream)
    wanted = train(straight, stream)
    slow = Slow(monkeypatch)
    watcher = to_all(After(slow, 10), CrashAt(11))  # the checkpoint of step 6 is written only after step 10
    with pytest.raises(Crash):
        train(make(name, stream), stream, on_event=watcher, checkpointer=Checkpointer(tmp_path, beside=True))
    assert slow.wrote == 1
    resumed: Learner = make(name, stream)
    result = train(resumed, stream, checkpointer=Checkpointer(tmp_path, resume=True, beside=True))
    assert result.matrix == wanted.matrix
    assert differences(straight, resumed) == []


def test_all_are_written_when_training_ends_or_is_stopped(tmp_path: Path) -> None:
    stream = few_digits()
    train(make("er", stream), stream, checkpointer=Checkpointer(tmp_path / "whole", every=4, kept=9, beside=True))
    steps = [checkpoint.read(path).state["meta"]["steps"] for path in found(tmp_path / "whole")]
    assert steps == [18, 16, 12, 12, 8, 6, 4]  # within tasks, and at the end of each
    with pytest.raises(Interrupted):
        train(make("er", stream), stream, checkpointer=Checkpointer(tmp_path / "cut", stop=lambda: True, beside=True))
    assert [path.stem for path in found(tmp_path / "cut")] == ["at-00000-00000001"]


@pytest.mark.parametrize("fails", [1, 3], ids=["the next one tells", "the end tells"])
def test_what_could_not_be_written_is_told(fails: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write, calls = checkpoint.write, []

    def full(*args: Any) -> Path:
        calls.append(args)
        if len(calls) == fails:
            raise OSError(28, "No space left on device")
        return write(*args)

    monkeypatch.setattr(checkpoint, "write", full)
    stream = few_digits()  # three tasks
    with pytest.raises(CheckpointError, match=r"cannot be written to .*: No space left on device"):
        train(make("er", stream), stream, checkpointer=Checkpointer(tmp_path, beside=True))
    assert len(calls) == fails
    assert len(found(tmp_path)) == min(2, fails - 1)  # the last good ones stay


def found(directory: Path) -> list[Path]:
    return checkpoint.found(RunDirectory(directory).checkpoints_of(0))
