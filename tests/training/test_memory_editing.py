"""Deleting samples never costs the state, whatever goes wrong meanwhile, and leaves no copy of them behind."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from scale_cl import files
from scale_cl.errors import CheckpointError
from scale_cl.training import Checkpointer, checkpoint, memory_editing, train
from scale_cl.training.run_directory import RunDirectory
from tests.training.small_streams import few_digits
from tests.training.test_checkpointing import make


class Dead(BaseException):
    """The process is gone: nothing is tidied up after it."""


def kept(folder: Path, count: int = 1) -> Path:
    """The folder of a finished run's checkpoints, so many of them."""
    stream = few_digits()
    train(make("er", stream), stream, checkpointer=Checkpointer(folder, every=4, kept=3))
    checkpoint.keep_newest(RunDirectory(folder).checkpoints_of(0), count)
    return RunDirectory(folder).checkpoints_of(0)


def stored(folder: Path) -> int:
    return len(memory_editing.listed(memory_editing.newest(folder)))


@pytest.mark.parametrize("how", ["killed", "full disk"])
@pytest.mark.parametrize("what", ["write", "rename"])
def test_the_only_checkpoint_is_there_the_old_or_the_new_whenever_a_deletion_breaks_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str, what: str
) -> None:
    broken = 0
    for at in range(1, 5):
        folder = kept(tmp_path / f"{at}")
        before = stored(folder)
        calls, real = iter(range(1, 100)), {"write": files.write_bytes, "rename": files.put_in_place}[what]

        def fails(*arguments: Any, calls: Any = calls, real: Any = real, at: int = at) -> None:
            if next(calls) == at:
                raise Dead if how == "killed" else OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            real(*arguments)

        with monkeypatch.context() as patched:
            patched.setattr(files, "write_bytes" if what == "write" else "put_in_place", fails)
            try:
                memory_editing.delete(folder)
            except (Dead, CheckpointError):
                broken += 1
        assert stored(folder) in (0, before)
        assert memory_editing.delete(folder) in (0, before), "once more, and they are gone"
        assert stored(folder) == 0
        assert sorted(p.suffix for p in folder.iterdir()) == [".json", ".safetensors"]
        resumed = make("er", few_digits())
        train(resumed, few_digits(), checkpointer=Checkpointer(folder.parent.parent, every=4, resume=True))
    assert broken >= (2 if what == "write" else 3)


def test_samples_are_deleted_though_the_newest_checkpoint_is_damaged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = kept(tmp_path, 3)
    newest, good, _ = checkpoint.found(folder)
    with newest.with_suffix(".safetensors").open("r+b") as file:
        file.truncate(1000)
    assert memory_editing.delete(folder) > 0
    assert "checkpoint refused, trying the one before" in caplog.text
    assert checkpoint.found(folder) == [good], "the damaged one may hold them as well"
    assert not checkpoint.read(good).state["tensors"]["memory.x"].any()


def test_if_none_is_good_that_is_said_and_nothing_is_touched(tmp_path: Path) -> None:
    folder = kept(tmp_path, 2)
    for path in checkpoint.found(folder):
        path.with_suffix(".safetensors").write_bytes(b"no")
    before = {p: p.read_bytes() for p in folder.iterdir()}
    with pytest.raises(CheckpointError, match="is damaged: it has 2 bytes"):
        memory_editing.delete(folder)
    assert {p: p.read_bytes() for p in folder.iterdir()} == before


def test_a_checkpoint_written_again_at_its_place_replaces_the_first(tmp_path: Path) -> None:
    folder = kept(tmp_path)
    saved = memory_editing.newest(folder)
    saved.state["tensors"]["memory.x"] += 1
    path = checkpoint.write(folder, saved)
    assert torch.equal(checkpoint.read(path).state["tensors"]["memory.x"], saved.state["tensors"]["memory.x"])
    assert len(list(folder.iterdir())) == 2
