"""Methods of an installed package on any device: run, killed and resumed to the bit; on a GPU their steps are recorded.

Like `tests/training/test_cuda_*.py`, this needs no fixture of other files, and neither pip nor the command line.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import tomllib
from pathlib import Path

import pytest
import torch

import scale_cl
from scale_cl.learners import Learner
from scale_cl.streams import Stream
from scale_cl.training import Event, checkpoint
from scale_cl.training.events import Stepped
from tests.learners.sameness import content
from tests.outside.installed import PACKAGE, entry_points
from tests.training.devices import DEVICES, as_found

POINTS = tomllib.loads((PACKAGE / "pyproject.toml").read_text())["project"]["entry-points"]["scale_cl.learners"]
__all__ = ["as_found"]


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The package is installed for this process and its children: its files, and what pip would note of them."""
    folder = entry_points(tmp_path / "site", POINTS)
    shutil.copytree(PACKAGE / "src", folder, dirs_exist_ok=True)
    monkeypatch.syspath_prepend(folder)


def config(name: str, device: str) -> scale_cl.Config:
    run = {"device": device, "deterministic": True, "batch_size": 5, "checkpoint_every": 2, "keep_state": True}
    options = {f"run.{key}": value for key, value in run.items()}
    return scale_cl.resolve(stream="tests.training.devices:digits", learner=name, options=options)


def killed(name: str, device: str, out: Path) -> None:
    """Run until a checkpoint is there, and end as in a power cut."""

    def kill(event: Event) -> None:
        if isinstance(event, Stepped) and list(out.glob("checkpoints/seed-0/*.json")):
            os.kill(os.getpid(), signal.SIGKILL)

    scale_cl.run(config(name, device), out, on_event=kill)


@pytest.mark.usefixtures("as_found", "site")
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", POINTS)
def test_an_installed_learner_is_recorded_and_killed_and_resumed_to_the_bit(
    name: str, device: str, tmp_path: Path
) -> None:
    if device == "cpu" and name == "outside-ewc":
        pytest.skip("shown elsewhere for the CPU")
    recorded = []

    def note(learner: Learner, stream: Stream) -> None:
        recorded.append(learner.engine.step.recorded > 0)

    wanted = scale_cl.run(config(name, device), tmp_path / "straight", on_trained=note)
    child = multiprocessing.get_context("spawn").Process(target=killed, args=(name, device, tmp_path / "killed"))
    child.start()
    child.join(300)
    assert child.exitcode == -signal.SIGKILL
    assert not (tmp_path / "killed" / "result.json").exists()
    found = scale_cl.run(config(name, device), tmp_path / "killed", resume=True, on_trained=note)
    assert recorded == [device == "cuda"] * 2
    assert [seed.matrix for seed in found.seeds] == [seed.matrix for seed in wanted.seeds]
    folders = (tmp_path / run / "checkpoints" / "seed-0" for run in ("straight", "killed"))
    one, other = (checkpoint.read(checkpoint.found(folder)[0]).state for folder in folders)
    assert one["meta"] == other["meta"]
    a, b = content(one), content(other)
    assert a.keys() == b.keys()
    assert [name for name in a if not torch.equal(a[name], b[name])] == []
