"""Signals and kills at `scale-cl reproduce`: one clean stop, and its runs resume in the middle."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import tempfile
import time
from functools import partial
from pathlib import Path

import pytest

from scale_cl import files
from scale_cl.training import checkpoint
from tests.cli.test_reproduce_command import DIGITS, expected, matrices
from tests.experiments.processes import children, waited_for
from tests.fuzzing.fuzzing import RECORDS
from tests.training.child import Child

pytestmark = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="looks processes up in /proc")
LEAST = 50  # kills in `make soak`


def gone(processes: set[int]) -> bool:
    return not any(Path(f"/proc/{number}").exists() for number in processes)


def test_whatever_number_of_signals_it_stops_once_and_ends_its_processes(tmp_path: Path) -> None:
    asked = ("reproduce", "main", *DIGITS, "--learners", "er", "--seeds", "1", "--slots", "1", "--out", tmp_path / "o")
    child = Child(tmp_path, *asked)
    waited_for(lambda: children(child.pid))
    workers = children(child.pid)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGINT):
        child.signal(number, group=True)
    code, stdout, stderr = child.finished()
    assert (code, stdout) == (130, "")
    assert stderr.endswith("\nstopped; finished runs are kept, and the same command continues\n")
    assert "Traceback" not in stderr
    assert gone(workers)


def positions(out: Path) -> dict[Path, str]:
    """How far the unfinished runs are, by the names of their newest checkpoints."""
    folders = [note.parent / "checkpoints" / "seed-0" for note in out.rglob("run.json")]
    return {folder: newest[0].stem for folder in folders if (newest := checkpoint.found(folder))}


def killed_at_random(folder: Path, draw: random.Random) -> tuple[int, int]:
    """`reproduce`, killed again and again, itself or one of its workers, until all is done.

    Returns the number of kills, and how many runs had a checkpoint then, from which they went on.
    """
    out, kills, amid = folder / "o", 0, 0
    asked = ("reproduce", "main", *DIGITS, "--learners", "mer,scale", "--seeds", "2", "--slots", "2", "--out", out)
    for _ in range(200):
        before = positions(out)
        child = Child(folder, *asked, "--set", "run.checkpoint_every=3")
        while child.alive and positions(out) == before:  # starting takes longer than a run
            time.sleep(0.01)
        time.sleep(draw.uniform(0, 0.5))
        workers: set[int] = set()
        with contextlib.suppress(FileNotFoundError, ProcessLookupError, IndexError):  # it has just ended
            workers = children(child.pid)
            if draw.random() < 0.5:
                child.kill()
            else:
                os.kill(draw.choice(sorted(workers)), signal.SIGKILL)  # its run has failed, the others go on
            kills += 1
        code, _, _ = child.finished()
        waited_for(partial(gone, workers))
        after = positions(out)
        assert all(after[run] >= place for run, place in before.items() if run in after), "none begins again"
        if code == 0:
            return kills, amid
        amid += len(after)
    raise AssertionError("it never ends")


@pytest.mark.soak
def test_runs_that_were_killed_resume_in_the_middle(tmp_path: Path) -> None:
    """The number of kills is recorded in `.soak/`: a soak that was stopped goes on where it was."""
    record = RECORDS / "kills-reproduce.json"
    counts = json.loads(record.read_text()) if record.exists() else {"kills": 0, "runs that went on": 0}
    cells = {f"main/digits-2-tasks/{name}/seed-{seed}": (name, seed) for name in ("mer", "scale") for seed in (0, 1)}
    wanted = {folder: expected(*cell) for folder, cell in cells.items()}
    while counts["kills"] < LEAST:
        here = Path(tempfile.mkdtemp(dir=tmp_path))
        kills, amid = killed_at_random(here, random.Random(seed := int(time.time())))
        assert matrices(here / "o") == wanted
        counts["kills"] += kills
        counts["runs that went on"] += amid
        files.write_json(record, counts)
        print(f"{counts}, the last seed is {seed}")
