"""Two or three signals at random moments of a run over several processes: one clean stop, and nothing is lost."""

from __future__ import annotations

import json
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
from tests.training.test_kill import COMMON, SHORT, assert_same, end, finish

RUN = ["run", "--learner", "er", *SHORT, "--seeds", "3", "--set", "run.processes=3", *COMMON]
SIGNALS = (signal.SIGINT, signal.SIGTERM)
OUTSIDE = "before or after the run"
PLAINLY = (-signal.SIGTERM, -signal.SIGINT, 130)  # exit codes outside of it, where a signal has its usual effect
ENDINGS = {  # what a command may say at its end, by a name for the records
    "": OUTSIDE,
    "scale-cl: stopped as asked; go on with: scale-cl resume {out}\n": "stopped",
    "scale-cl: stopped as asked; {nothing}\n": "stopped before the first checkpoint",
    "scale-cl: stopped at once, without a new checkpoint; go on with: scale-cl resume {out}\n": "stopped at once",
    "scale-cl: stopped at once, without a new checkpoint; {nothing}\n": "stopped at once before the first checkpoint",
    "scale-cl: stopped at once, without a new checkpoint; the result is in {out}/result.json\n": "finished",
}
NOTHING = "no checkpoint was written, so there is nothing to go on with; start it again"
LEAST = 500  # stops in `make soak`


def left_of(session: int) -> list[str]:
    """The processes of a session that still run."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            state, _parent, _group, own = (path / "stat").read_text().rpartition(")")[2].split()[:4]
            if int(own) == session and state not in "ZX":
                found.append((path / "cmdline").read_text())
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


def stopped(folder: Path, words: list[str | Path], draw: random.Random, longest: float, *, quick: bool) -> str:
    """Start a command, send it two or three signals at random moments; how it ended."""
    out = folder / "o"
    child = Child(folder, *words, quick=quick)
    child.wait_for(out / ".lock")
    child.wait_for(out / "run.json")
    time.sleep(draw.uniform(0, longest))
    group = draw.random() < 0.5
    for _ in range(draw.choice((2, 3))):
        child.signal(draw.choice(SIGNALS), group=group)
        time.sleep(draw.choice((0.0, draw.uniform(0, 0.05), draw.uniform(0.2, 0.5))))
    code, _, said = child.finished()
    assert code is not None, f"it hangs, with {left_of(child.pid)}"
    assert left_of(child.pid) == [], "every process has ended"
    noted, finished = (out / "run.json").exists(), (out / "result.json").exists()
    if code in PLAINLY:
        assert said == ""
        assert noted or finished
        return OUTSIDE
    ending = next((e for text, e in ENDINGS.items() if said == text.format(out=out, nothing=NOTHING)), None)
    assert ending is not None, (code, said)
    assert code == (75 if said else 0), (code, said)
    assert noted == (ending in ("stopped", "stopped at once")), ending
    assert noted or finished or not out.exists(), "without a note nothing is left"
    return ending


def soak(folder: Path, stops: int, seed: int, *, slow: float = 0.0) -> Counter[str]:
    """Runs, each stopped up to four times and then left to finish, until so many stops came in time; how they ended.

    `slow` is the share of the commands whose processes are spawned, as they are outside the tests.
    """
    draw, endings, number = random.Random(seed), Counter[str](), 0
    straight = Child(folder, *RUN, "--out", folder / "straight", quick=True)
    straight.wait_for(folder / "straight" / "run.json")
    begun = time.monotonic()
    assert straight.finished()[0] == 0
    longest, wanted = time.monotonic() - begun, end(folder / "straight")
    while (left := stops - in_time(endings)) > 0:
        number += 1
        here = folder / str(number)
        here.mkdir()
        for _ in range(min(4, left)):
            endings[stopped(here, command(here / "o"), draw, longest, quick=draw.random() >= slow)] += 1
            if (here / "o" / "result.json").exists():
                break
        if not (here / "o" / "result.json").exists():
            finish(here, *command(here / "o"), quick=True)
        assert_same(end(here / "o"), wanted)
        shutil.rmtree(here)
        assert number < 10 * stops, "it ends before it is stopped"
    return endings


def command(out: Path) -> list[str | Path]:
    """What begins the run or goes on with it."""
    return ["resume", "-q", out] if (out / "run.json").exists() else [*RUN, "--out", out]


def in_time(endings: Counter[str]) -> int:
    """The number of stops that came while a run was under way."""
    return endings.total() - endings[OUTSIDE]


def test_a_run_over_processes_stops_cleanly_whatever_number_of_signals(tmp_path: Path) -> None:
    assert in_time(soak(tmp_path, 3, seed=int(time.time()))) == 3


@pytest.mark.soak
def test_runs_over_processes_survive_hundreds_of_stops(tmp_path: Path) -> None:
    """How they ended is recorded in `.soak/`: a soak that was stopped goes on where it was."""
    record = RECORDS / "stops.json"
    endings = Counter[str](json.loads(record.read_text()) if record.exists() else {})
    while in_time(endings) < LEAST:
        endings += soak(Path(tempfile.mkdtemp(dir=tmp_path)), 10, seed := int(time.time()), slow=0.1)
        files.write_json(record, dict(endings))
        print(f"{in_time(endings)} stops, the last seed is {seed}")
