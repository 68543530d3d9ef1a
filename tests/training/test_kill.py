"""kill -9 at random moments of a real run, resume, and compare all bits with a run that was left alone."""

from __future__ import annotations

import json
import random
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from scale_cl import files, results
from scale_cl.learners import registry
from scale_cl.training import checkpoint
from scale_cl.training.checkpoint import found
from tests.fuzzing.fuzzing import RECORDS
from tests.learners.sameness import content
from tests.training.child import Child

RUNS = {  # beside one of each learner
    "resnet": ["--learner", "scale", "--tasks", "2", "--set", "backbone=resnet18", "--set", "run.batch_size=50"],
    "processes": ["--learner", "scale", "--tasks", "2", "--seeds", "2", "--set", "run.processes=2"],
}
SHORT = ["--tasks", "2", "--set", "stream.train_share=0.3"]
COMMON = ["-q", "--set", "run.checkpoint_every=7", "--set", "run.keep_state=true"]
LEAST = 50  # kills per learner in `make soak`


def command(name: str, out: Path) -> list[str | Path]:
    """The command of a run."""
    return ["run", *RUNS.get(name, ["--learner", name, *SHORT]), *COMMON, "--out", out]


def finish(folder: Path, *arguments: str | Path, quick: bool = False) -> None:
    code, out, err = Child(folder, *arguments, quick=quick).finished()
    assert code == 0, (out, err)


def end(out: Path) -> tuple[list[Any], dict[str, Any]]:
    """All that a run leaves that is a function of its config: matrices, and learners to the last bit."""
    result = results.read(out)
    tensors: dict[str, Any] = {}
    for seed in result.seeds:
        last = checkpoint.read(found(out / "checkpoints" / f"seed-{seed.seed}")[0])
        tensors |= {f"{seed.seed}.{name}": t for name, t in content(last.state).items()}
        tensors[f"{seed.seed}.meta"] = last.state["meta"]
    return [seed.matrix for seed in result.seeds], tensors


def assert_same(one: tuple[list[Any], dict[str, Any]], other: tuple[list[Any], dict[str, Any]]) -> None:
    assert one[0] == other[0]
    assert one[1].keys() == other[1].keys()
    for name, value in one[1].items():
        same = torch.equal(value, other[1][name]) if isinstance(value, torch.Tensor) else value == other[1][name]
        assert same, name


def killed_and_resumed(name: str, folder: Path, draw: random.Random, kills: int, longest: float) -> tuple[Path, int]:
    """Kill a run so many times, at random moments after its directory exists, then let it finish."""
    out, survived = folder / "o", 0
    words = command(name, out)
    for _ in range(kills):
        child = Child(folder, *words)
        child.wait_for(out / "run.json")
        time.sleep(draw.uniform(0, longest))
        if child.alive:
            survived += 1
        child.kill()
        if (out / "result.json").exists() and not (out / "run.json").exists():
            break
        words = ["resume", "-q", out]
    if (out / "run.json").exists():
        finish(folder, "resume", "-q", out)
    return out, survived


def soak(name: str, folder: Path, kills: int, seed: int) -> int:
    """Runs, each killed up to four times, until so many kills came in time; how many did."""
    draw, survived, number = random.Random(seed), 0, 0
    finish(folder, *command(name, folder / "straight"))
    longest, wanted = results.read(folder / "straight").seconds_wall, end(folder / "straight")
    while survived < kills:
        number += 1
        here = folder / str(number)
        here.mkdir()
        out, more = killed_and_resumed(name, here, draw, min(4, kills - survived), longest)
        assert_same(end(out), wanted)
        survived += more
        assert number < 10 * kills, "it ends before it is killed"
        shutil.rmtree(here)
    return survived


@pytest.mark.parametrize(("name", "kills"), [("scale", 2), ("resnet", 1)])
def test_a_killed_run_is_resumed_to_the_bit(name: str, kills: int, tmp_path: Path) -> None:
    assert soak(name, tmp_path, kills, seed=int(time.time())) == kills


@pytest.mark.soak
@pytest.mark.parametrize("name", [*registry.names(), *RUNS])
def test_runs_survive_dozens_of_kills(name: str, tmp_path: Path) -> None:
    """The number of kills is recorded in `.soak/`: a soak that was stopped goes on with the learners that are left."""
    record = RECORDS / f"kills-{name}.json"
    survived = json.loads(record.read_text())["survived"] if record.exists() else 0
    while survived < LEAST:
        survived += soak(name, Path(tempfile.mkdtemp(dir=tmp_path)), 25, seed := int(time.time()))
        files.write_json(record, {"survived": survived})
        print(f"{name}: {survived} kills survived, the last seed is {seed}")
