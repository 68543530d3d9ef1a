"""SIGINT, SIGTERM and SIGKILL at a real run, and two runs that want one directory."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from scale_cl import files, results
from scale_cl.training.checkpoint import found
from tests.training.child import Child

# steps slow enough to be caught in the middle
SLOW = ("run", "--learner", "ctn", "--set", "outer_steps=10", "--set", "inner_steps=10", "-q")
PAIR = ("--seeds", "2", "--set", "run.processes=2", "--set", "run.checkpoint_every=1")


def test_sigterm_ends_the_step_saves_and_says_how_to_go_on(command: Callable[..., Any], tmp_path: Path) -> None:
    run = ("run", "--learner", "scale", "--tasks", "2", "-q")
    out = tmp_path / "o"
    child = Child(tmp_path, *run, "--out", out, "--set", "run.checkpoint_every=1")
    child.wait_for(out / "checkpoints" / "seed-0" / "at-00000-*.json")
    code, stdout, stderr = child.interrupt(signal.SIGTERM)
    assert (code, stdout) == (75, "")
    assert stderr == f"scale-cl: stopped as asked; go on with: scale-cl resume {out}\n"
    assert not (out / "result.json").exists()
    assert not (out / ".lock").exists()
    assert command("resume", out, "-q").code == 0
    assert command(*run, "--out", "straight").code == 0
    assert results.read(out).seeds[0].matrix == results.read(Path("straight")).seeds[0].matrix


def test_a_signal_before_the_first_checkpoint_saves_one(tmp_path: Path) -> None:
    out = tmp_path / "o"
    child = Child(tmp_path, *SLOW[:-1], "--out", out)
    child.wait_for_words("ctn on digits")
    assert child.interrupt(signal.SIGINT)[0] == 75
    (path,) = found(out / "checkpoints" / "seed-0")
    assert path.stem.startswith("at-00000-")


def test_ctrl_c_reaches_all_processes_of_a_run_and_none_complains(tmp_path: Path) -> None:
    out = tmp_path / "o"
    child = Child(tmp_path, *SLOW, "--out", out, *PAIR)
    for seed in range(2):
        child.wait_for(out / "checkpoints" / f"seed-{seed}" / "at-*.json")
    code, stdout, stderr = child.interrupt(signal.SIGINT, group=True)
    assert (code, stdout) == (75, "")
    assert stderr == f"scale-cl: stopped as asked; go on with: scale-cl resume {out}\n"
    assert all(found(out / "checkpoints" / f"seed-{seed}") for seed in range(2))


def test_a_second_run_is_refused_at_once_and_a_killed_one_leaves_neither_lock_nor_children(
    command: Callable[..., Any], tmp_path: Path
) -> None:
    out = tmp_path / "o"
    child = Child(tmp_path, *SLOW, "--out", out, *PAIR)
    child.wait_for(out / "run.json")
    for arguments in (["run", "--out", out, "--force"], ["resume", out]):
        refused = command(*arguments)
        assert refused.code == 2
        assert f"{out} is in use by process {child.pid}" in refused.err
    child.wait_for(out / "checkpoints" / "seed-*")
    children = [int(p) for p in Path(f"/proc/{child.pid}/task/{child.pid}/children").read_text().split()]
    assert len(children) >= 2
    child.kill()
    with files.lock(out / ".lock"):
        pass  # free, though its children may still be ending
    ends = time.monotonic() + 20
    while any(_lives(pid) for pid in children) and time.monotonic() < ends:
        time.sleep(0.05)
    assert not any(_lives(pid) for pid in children), "children end when the parent is gone"


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (ProcessLookupError, FileNotFoundError):
        return False
