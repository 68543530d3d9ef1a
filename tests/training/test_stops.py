"""Two or three signals at random moments of a run over several processes: one clean stop, and nothing is lost."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import tempfile
import time
from collections import Counter
from pathlib import Path

import pytest

from scale_cl import files
from tests.fuzzing.fuzzing import RECORDS
from tests.training.child import Child
from tests.training.test_kill import COMMON, assert_same, end, finish

RUN = ["run", "--learner", "er", "--tasks", "2", "--seeds", "3", "--set", "run.processes=3", *COMMON]
SIGNALS = (signal.SIGINT, signal.SIGTERM)
LEAST = 500  # stops in `make soak`


def session(number: int) -> list[str]:
    """The commands of the processes that belong to a session."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            state, _, _, own = (path / "stat").read_text().rpartition(")")[2].split()[:4]
            if int(own) == number and state != "Z":
                found.append((path / "cmdline").read_text().replace("\\0", " "))
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


def stopped(folder: Path, words: list[str | Path], draw: random.Random, longest: float) -> str:
    """Start a command, send it two or three signals, wait for its end; how it ended, in a word."""
    out = folder / "o"
    child = Child(folder, *words)
    group, count = draw.random() < 0.5, draw.choice((2, 2, 3))
    child.wait_for(out / "run.json")
    time.sleep(draw.uniform(0, longest))
    sent = 0
    for _ in range(count):
        sent += child.alive
        child.signal(draw.choice(SIGNALS), group=group)
        time.sleep(draw.choice((0, draw.uniform(0, 0.02), draw.uniform(0, 1))))
    code, stdout, stderr = child.finished()
    if child.alive:
        print("HANG", session(child.pid)); os.killpg(child.pid, 9)
        return "hang"
    if "Traceback" in stderr or "Exception" in stderr: print(stderr[-1500:]); return f"traceback {code}"
    if code not in (0, 75): print(code, stderr); return f"code {code}"
    left = session(child.pid)
    if left: return f"left {left}"
    if code == 75 and not (out/"run.json").exists() and (out/"checkpoints").exists(): return "unresumable"
    return f"{code} {stderr.strip()[:60]} {sent}"
