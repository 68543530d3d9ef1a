"""The note of a run: what was asked is found again, from whatever directory the run is resumed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from scale_cl import results, training
from scale_cl.errors import OutputInUseError
from scale_cl.streams import user_streams
from scale_cl.training.checkpoint import found
from scale_cl.training.config import resolve
from scale_cl.training.run_directory import NOTE_NAME, RunDirectory, RunRequest
from tests.cli.test_resume import crash_after
from tests.training.test_checkpointing import Crash

SIZES = ("--set", "run.batch_size=200", "--set", "run.checkpoint_every=1")
TINY = ("run", "--learner", "finetune", "--tasks", "1", "-q", "--out", "o", *SIZES)


def make_images(folder: Path) -> None:
    """Two tasks of two classes of ten images, and a manifest of them."""
    random, lines = np.random.default_rng(0), ["path,label,task"]
    for task in ("spring", "summer"):
        for label in ("high", "low"):
            for i in range(10):
                target = folder / task / label / f"{i}.png"
                target.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(random.integers(0, 255, (8, 8, 3)).astype(np.uint8)).save(target)
                lines.append(f"{target.relative_to(folder)},{label},{task}")
    (folder / "all.csv").write_text("\n".join(lines))


def stopped(command: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, stream: str, *more: str) -> None:
    """A run of a relative stream in `o`, stopped in its second task."""
    crash_after(6, monkeypatch)
    run = ("run", "--stream", stream, "--learner", "er", "-q", "--out", "o", "--set", "backbone=mlp")
    with pytest.raises(Crash):
        command(*run, "--set", "run.batch_size=4", *more)
    assert found(Path("o/checkpoints/seed-0"))


@pytest.mark.parametrize("stream", ["folder:images", "csv:images/all.csv", "folder:./../here/images"])
def test_images_of_a_relative_path_are_found_from_another_directory(
    command: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, stream: str
) -> None:
    make_images(Path("images"))
    stopped(command, monkeypatch, stream, "--set", "run.checkpoint_every=1")
    run = Path("o").absolute()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    resumed = command("resume", run, "-q")
    assert resumed.code == 0, resumed.err
    assert results.read(run).seeds[0].config["stream"]["name"] == stream, "as it was given"
    for path in run.rglob("*.json"):
        assert str(tmp_path) not in path.read_text(), f"{path} tells where it was made"


@pytest.mark.parametrize("out", ["images", "images/runs/mine"])
def test_a_run_does_not_write_among_its_images(command: Callable[..., Any], out: str) -> None:
    make_images(Path("images"))
    refused = command("run", "--stream", "folder:images", "--out", out, "-q")
    assert refused.code == 2
    assert refused.err == (
        f"scale-cl: error: {out} lies in images, whose folders are tasks; choose an --out outside of it\n"
    )
    assert {path.name for path in Path("images").iterdir()} == {"spring", "summer", "all.csv"}


def test_images_that_moved_with_the_run_are_found_in_the_present_directory(
    command: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    make_images(Path("images"))
    stopped(command, monkeypatch, "folder:images")
    Path.cwd().rename(tmp_path / "moved")
    monkeypatch.chdir(tmp_path / "moved")
    assert command("resume", "o", "-q").code == 0


def test_images_that_are_gone_are_said_and_the_state_stays(
    command: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    make_images(Path("images"))
    stopped(command, monkeypatch, "folder:images")
    Path("images").rename(tmp_path / "gone")
    monkeypatch.setattr(user_streams, "_read", {})  # as in a new process
    before = {p: p.read_bytes() for p in Path("o").rglob("*") if p.is_file()}
    refused = command("resume", "o", "-q")
    assert (refused.code, refused.err.count("\n")) == (2, 1)
    assert "images is not a folder" in refused.err
    assert {p: p.read_bytes() for p in Path("o").rglob("*") if p.is_file()} == before


def test_a_relative_data_root_is_noted_as_a_whole_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SCALE_CL_DATA", raising=False)
    directory = RunDirectory(tmp_path / "o")
    for given, wanted in ((Path("data"), tmp_path / "data"), (None, None)):
        directory.begin(RunRequest(resolve(), given), resume=False)
        assert directory.request().data == wanted
    monkeypatch.setenv("SCALE_CL_DATA", "by-name")
    directory.begin(RunRequest(resolve()), resume=False)
    assert directory.request().data == tmp_path / "by-name"


def test_a_note_of_an_earlier_version_does_not_say_where_it_was_written(tmp_path: Path) -> None:
    asked, directory = RunRequest(resolve(stream="folder:images"), None, ["run"]), RunDirectory(tmp_path)
    directory.begin(asked, resume=False)
    path = tmp_path / NOTE_NAME
    content = json.loads(path.read_text())
    del content["here"]
    path.write_text(json.dumps(content))
    assert directory.request().config == asked.config


@pytest.fixture
def without_note(command: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """A directory `o` with checkpoints of a run whose note is gone."""
    crash_after(2, monkeypatch)
    with pytest.raises(Crash):
        command(*TINY)
    Path("o/run.json").unlink()
    return command


def test_checkpoints_without_a_note_are_never_cleared_silently(
    without_note: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    before = {p: p.read_bytes() for p in Path("o").rglob("*") if p.is_file()}
    for words in (TINY, (*TINY, "--dry-run"), ("resume", "o")):
        refused = without_note(*words)
        assert (refused.code, refused.err.count("\n")) == (2, 1)
        assert "run.json" in refused.err
    said = "o/checkpoints holds checkpoints, but o/run.json, which says of what run, is missing"
    assert said in without_note(*TINY).err
    config = resolve(learner="finetune", options={"stream.tasks": 1, "run.batch_size": 200})
    with pytest.raises(OutputInUseError, match="o/checkpoints holds checkpoints"):
        training.run(config, "o", resume=True)
    assert {p: p.read_bytes() for p in Path("o").rglob("*") if p.is_file()} == before
    training.run(config, "o", resume=True, force=True)
    assert "--force removes them; the run starts again" in caplog.text
    assert results.read(Path("o")).seeds


def test_they_are_cleared_when_asked_for(without_note: Callable[..., Any]) -> None:
    assert without_note(*TINY, "--force").code == 0
    assert not Path("o/checkpoints").exists()


@pytest.mark.parametrize("name", [".lock", "checkpoints", "checkpoints/seed-0", "seeds"])
def test_links_in_the_directory_of_somebody_else_are_not_followed(
    command: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    crash_after(2, monkeypatch)
    with pytest.raises(Crash):
        command(*TINY)
    link, target = Path("o") / name, tmp_path / "precious"
    if name == ".lock":
        target.write_text("of somebody else")
    elif name == "seeds":
        target.mkdir()
        (target / "seed-0.json").write_text("of somebody else")
    else:
        link.rename(target)
    link.symlink_to(target)
    before = {p: p.read_bytes() for p in (target, *target.rglob("*")) if p.is_file()}
    for words in (("resume", "o"), (*TINY, "--force")):
        refused = command(*words)
        assert (refused.code, refused.out, refused.err.count("\n")) == (2, "", 1)
        assert f"{link} is a symbolic link, which is not followed" in refused.err
    assert {p: p.read_bytes() for p in (target, *target.rglob("*")) if p.is_file()} == before
    link.unlink()
    if name.startswith("checkpoints"):
        target.rename(link)
    assert command("resume", "o").code == 0
