"""`scale-cl memory`: stored samples are people's data, and whoever asks for theirs to be deleted is served."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from scale_cl import results
from scale_cl.training import checkpoint, memory_editing
from scale_cl.training.checkpoint import found
from tests.cli.test_resume import crash_after
from tests.training.test_checkpointing import Crash

FOLDER = Path("o/checkpoints/seed-0")


def stopped(command: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, learner: str, *more: str) -> None:
    """A run of three tasks of ten steps each, stopped inside its second task."""
    crash_after(15, monkeypatch)
    run = ("run", "--learner", learner, "--memory", "10", "--tasks", "3", "-q", "--out", "o")
    with pytest.raises(Crash):
        command(*run, "--set", "run.checkpoint_every=2", "--set", "run.batch_size=100", *more)


def tasks_of(saved: checkpoint.Checkpoint) -> list[str]:
    return [name for name, _ in saved.state["meta"]["tasks"]]


def test_the_samples_are_listed_and_exported(command: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    stopped(command, monkeypatch, "ctn")
    first, second = tasks_of(memory_editing.newest(FOLDER))
    brief = command("memory", "list", "o")
    assert brief.out.splitlines()[0] == "seed 0: 20 samples"
    assert brief.out.splitlines()[1:] == [f"  {first}: 10", f"  {second}: 10"]
    full = command("memory", "list", "o", "--samples").out
    assert "    memory:0  label " in full
    assert "    semantic:0  label " in full
    assert command("memory", "export", "o", "e", "--task", first).code == 0
    x, y = (np.load(f"e/seed-0/{name}.npy") for name in "xy")
    described = json.loads(Path("e/seed-0/samples.json").read_text())
    assert (x.shape, x.dtype, len(y), len(described)) == ((10, 1, 8, 8), np.uint8, 10, 10)
    assert {d["task"] for d in described} == {first}
    stored = checkpoint.read(found(FOLDER)[0]).state["tensors"]
    assert (x[0] == stored["memory.x"][0].numpy()).all()
    assert command("memory", "export", "o", "e").code == 2, "nothing is overwritten"
    shutil.copytree(FOLDER, "o/checkpoints/seed-1")
    assert command("memory", "delete", "o", "--seed", "1", "--task", first).code == 0
    before = set(Path().iterdir())
    assert command("memory", "export", "o", "half", "--sample", described[0]["id"]).code == 2, "seed 1 has it no more"
    assert set(Path().iterdir()) == before, "a part is left of what could not be written whole"


@pytest.mark.parametrize("learner", ["scale", "ctn", "gem", "derpp"])
@pytest.mark.parametrize("what", ["a finished task", "some of the open task", "all"])
def test_deleted_samples_are_gone_and_training_goes_on(
    command: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, learner: str, what: str
) -> None:
    more = ("--set", "replay_current=true") if learner == "derpp" else ()
    stopped(command, monkeypatch, learner, *more)
    before = memory_editing.newest(FOLDER)
    first, second = tasks_of(before)
    there = memory_editing.listed(before)
    if what == "a finished task":
        gone, arguments = [s for s in there if s.task == first], ["--task", first]
    elif what == "all":
        gone, arguments = there, ["--all"]
    else:
        gone = [s for s in there if s.task == second][1::2]
        arguments = [word for s in gone for word in ("--sample", s.id)]
    deleted = command("memory", "delete", "o", *arguments)
    assert deleted.out == f"seed 0: {len(gone)} samples deleted\n"
    after = memory_editing.newest(FOLDER)
    assert len(found(FOLDER)) == 1, "no older checkpoint holds them"
    left = {bytes(t.numpy().tobytes()) for t in memory_editing.inputs(after, memory_editing.listed(after))}
    asked = {bytes(t.numpy().tobytes()) for t in memory_editing.inputs(before, gone)}
    kept = [s for s in there if s not in gone]
    stay = {bytes(t.numpy().tobytes()) for t in memory_editing.inputs(before, kept)}
    assert left == stay
    assert not left & (asked - stay)
    assert command("resume", "o", "-q").code == 0
    accuracy = results.read(Path("o")).seeds[0].acc
    assert accuracy is not None
    assert accuracy > 0


def test_the_logits_of_deleted_samples_are_gone_too(
    command: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped(command, monkeypatch, "scale")
    assert command("memory", "delete", "o", "--all").code == 0
    tensors = checkpoint.read(found(FOLDER)[0]).state["tensors"]
    assert not tensors["memory.x"].any()
    assert not tensors["memory.class.flat"].any()
    assert not tensors["memory.class.width"].any()
    assert torch.equal(tensors["memory.stored"], torch.zeros_like(tensors["memory.stored"]))


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["delete", "o"], "say what is to be deleted"),
        (["delete", "o", "--all", "--task", "x"], "say what is to be deleted"),
        (["delete", "o", "--task", "nobody"], "holds no task 'nobody'"),
        (["delete", "o", "--sample", "memory:999"], "holds no sample 'memory:999'"),
        (["list", "o", "--seed", "7"], "o holds no checkpoint of seed 7"),
        (["list", "."], "holds no checkpoint: a finished run keeps none"),
        (["list", "elsewhere"], "elsewhere is not a directory; name a run's"),
    ],
)
def test_what_is_not_there_is_said(
    command: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, arguments: list[str], part: str
) -> None:
    stopped(command, monkeypatch, "er", "--set", "updates=1")
    before = {p: p.read_bytes() for p in FOLDER.iterdir()}
    refused = command("memory", *arguments)
    assert refused.code == 2
    assert part in refused.err
    assert refused.err.count("\n") == 1
    assert {p: p.read_bytes() for p in FOLDER.iterdir()} == before


def test_a_learner_without_a_memory_holds_nothing(command: Callable[..., Any]) -> None:
    run = ("run", "--learner", "finetune", "--tasks", "1", "-q", "--out", "o", "--set", "run.keep_state=true")
    assert command(*run).code == 0
    assert command("memory", "list", "o").out.splitlines()[0] == "seed 0: 0 samples"
