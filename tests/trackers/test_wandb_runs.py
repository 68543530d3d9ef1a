"""Weights & Biases offline: what it wrote, read record by record."""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from scale_cl.errors import TrackerError
from scale_cl.results import SeedResult
from scale_cl.trackers import read, tracking
from tests.trackers.small_runs import acc_so_far, accuracies, losses, trained

_BLOCK = 1 << 15  # bytes; the file is a log of records in blocks, a longer record in several pieces


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_CONFIG_DIR", str(tmp_path / "settings"))
    monkeypatch.setenv("WANDB_CACHE_DIR", str(tmp_path / "cache"))
    yield
    assert not [m for m in caplog.messages if "broke off" in m]


def records(data: bytes) -> Iterator[Any]:
    """The protocol buffers in a `.wandb` file."""
    from wandb.proto.wandb_internal_pb2 import Record

    at, pieces = 7, b""
    assert data[:4] == b":W&B"
    while at < len(data):
        if _BLOCK - at % _BLOCK < 7:
            at += _BLOCK - at % _BLOCK
            continue
        _, length, kind = struct.unpack("<IHB", data[at : at + 7].ljust(7, b"\0"))
        if at + 7 + length > len(data):
            return  # still being written
        pieces += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last piece
            yield Record.FromString(pieces)
            pieces = b""


class Written:
    """One offline run."""

    def __init__(self, folder: Path) -> None:
        (self.path,) = folder.glob("*.wandb")
        self.rows: list[dict[str, Any]] = []
        self.summary: dict[str, Any] = {}
        self.run: Any = None
        self.code: int | None = None
        for record in records(self.path.read_bytes()):
            if record.HasField("run"):
                self.run = record.run
            elif record.HasField("history"):
                items = record.history.item
                self.rows.append({"/".join(i.nested_key) or i.key: json.loads(i.value_json) for i in items})
            elif record.HasField("summary"):
                self.summary |= {
                    "/".join(i.nested_key) or i.key: json.loads(i.value_json) for i in record.summary.update
                }
            elif record.HasField("exit"):
                self.code = record.exit.exit_code

    @property
    def config(self) -> dict[str, Any]:
        return {item.key: json.loads(item.value_json) for item in self.run.config.update}

    def curve(self, axis: str, name: str) -> dict[int, float]:
        return {row[axis]: row[name] for row in self.rows if name in row}


def written(directory: Path) -> dict[str, Written]:
    """All runs under a directory, by name, once W&B's own process has written them to the end."""
    ends = time.monotonic() + 30
    while True:
        runs = [Written(folder) for folder in (directory / "wandb").glob("offline-run-*")]
        if runs and all(run.code is not None for run in runs):
            return {run.run.display_name: run for run in runs}
        assert time.monotonic() < ends, "W&B did not write to the end"
        time.sleep(0.02)


def test_offline_runs_hold_curves_matrix_config_and_result(tmp_path: Path) -> None:
    config = {"learner": {"name": "er", "lr": 0.03}, "run": {"seed": 3, "seeds": 2}}
    with tracking("wandb", tmp_path / "mine", every=1, config=config, seeds=[3, 8]) as tracker:
        assert "offline: `wandb sync` sends it" in tracker.places["wandb"]
        results, noted = trained(tracker, seeds=(3, 8))
    runs = written(tmp_path / "mine")
    assert set(runs) == {"mine", "mine, seed 3", "mine, seed 8"}
    for result in results:
        own = runs[f"mine, seed {result.seed}"]
        assert own.curve("step", "loss/loss") == losses(noted[result.seed])
        for task in range(3):
            assert own.curve("tasks_learned", f"accuracy/task-{task + 1}") == accuracies(result, task)
        assert own.curve("tasks_learned", "so_far/acc") == pytest.approx(acc_so_far(result))
        for measure in ("acc", "fm", "la", "bwt"):
            assert own.summary[f"result/{measure}"] == pytest.approx(getattr(result, measure))
        assert own.config["learner"] == {"name": "er", "lr": 0.03}
        assert own.config["run"]["seed"] == result.seed
        assert (own.run.project, own.run.run_group, own.run.job_type) == ("scale-cl", "mine", "seed")
        (picture,) = own.path.parent.glob("files/media/images/*.png")
        with Image.open(picture) as image:
            assert image.size == (640, 520)
        assert own.code == 0
    whole = runs["mine"]
    assert whole.run.job_type == "summary"
    assert whole.summary["result/acc"] == pytest.approx(sum(r.acc or 0 for r in results) / 2)
    assert whole.summary["result/matrix"] == [r.matrix for r in results]
    assert {row["tasks_learned"] for row in whole.rows} == {3}, "the mean matrix"


def test_one_seed_is_one_run_and_a_resumed_one_keeps_its_identity(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_PROJECT", "ours")
    results: list[SeedResult] = []
    noted: dict[int, list[float]] = {}

    def breaks_off() -> None:
        with tracking("wandb", tmp_path, every=1, seeds=[0]) as tracker:
            more, losses_of = trained(tracker, tasks=1)
            results.extend(more)
            noted.update(losses_of)
            raise ValueError("broke")

    with pytest.raises(ValueError, match="broke"):
        breaks_off()
    (own,) = written(tmp_path).values()
    assert (own.run.project, own.run.run_group) == ("ours", "")
    assert own.curve("step", "loss/loss") == losses(noted[0])
    assert own.summary["result/acc"] == results[0].acc
    assert own.code == 1
    note = read(tmp_path)
    assert note is not None
    assert note.trackers == {"wandb": {"id": own.run.run_id, "project": "ours"}}
    monkeypatch.delenv("WANDB_PROJECT")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path / "again"))
    (tmp_path / "again").mkdir()
    with tracking("wandb", tmp_path, every=1, seeds=[0], resume=True) as tracker:
        trained(tracker, tasks=1)
    (again,) = written(tmp_path / "again").values()
    assert (again.run.run_id, again.run.project) == (own.run.run_id, "ours")


def test_without_an_account_it_cannot_start_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.setenv("NETRC", str(tmp_path / "none"))
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    expected = pytest.raises(TrackerError, match=r"^tracking with wandb cannot start: .*API key")
    with expected as refused, tracking("wandb", tmp_path):
        raise AssertionError("the run began")
    assert "\n" not in str(refused.value)
