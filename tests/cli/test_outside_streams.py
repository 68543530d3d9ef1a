"""A stream of somebody else's package on the command line: listed, run, resumed and reproduced."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from scale_cl import results
from scale_cl.streams.user_streams import OUTSIDE
from tests.cli.test_resume import crash_after
from tests.streams.outside_package import install
from tests.training.test_checkpointing import Crash


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on the search path, also of child processes, with an installed package."""
    folder = install(tmp_path / "site", {"halves": "halves:two_halves", "broken": "halves_without:it"})
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("PYTHONPATH", str(folder), prepend=":")
    monkeypatch.setattr(OUTSIDE, "given", {})
    return folder


def test_installed_streams_are_listed_with_their_docstring(command: Callable[..., Any], site: Path) -> None:
    listed = command("list", "streams")
    assert listed.code == 0
    lines = {line.split()[0]: line.split(maxsplit=1)[1] for line in listed.out.splitlines()}
    assert lines["halves"] == "Two tasks of two classes each: which half of a vector is brighter."
    assert lines["broken"].startswith("cannot be used: stream 'broken' of package halves cannot be imported")
    assert "digits" in lines


@pytest.mark.parametrize(("name", "processes"), [("halves", 1), ("halves:two_halves", 2)])
@pytest.mark.usefixtures("quick_processes")
def test_it_runs_in_one_or_several_processes_and_is_recorded_by_its_name(
    command: Callable[..., Any], site: Path, name: str, processes: int
) -> None:
    options = ("--seeds", "2", "--set", f"run.processes={processes}", "--device", "cpu", "-q", "--out", "o")
    run = command("run", "--stream", name, "--learner", "er", *options)
    assert run.code == 0, run.err
    assert run.out.startswith(f"er on {name}: ACC ")
    found = results.read(Path("o"))
    assert [seed.config["stream"]["name"] for seed in found.seeds] == [name, name]
    assert [len(seed.tasks) for seed in found.seeds] == [2, 2]


def test_a_run_of_a_file_is_resumed_only_if_the_file_is_given_again(
    command: Callable[..., Any], site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("mine.py").write_text((site / "halves.py").read_text())
    run = ("run", "--stream", "mine.py:two_halves", "--learner", "er", "--set", "run.checkpoint_every=2", "-q")
    assert command(*run, "--out", "straight").code == 0
    crash_after(5, monkeypatch)
    with pytest.raises(Crash):
        command(*run, "--out", "o")
    monkeypatch.setattr(OUTSIDE, "given", {})  # as in a new process
    refused = command("resume", "o", "-q")
    assert refused.code == 2
    assert "'mine.py:two_halves' is named in a file" in refused.err
    assert len(refused.err.splitlines()) == 1
    resumed = command("resume", "o", "-q", "--stream", "mine.py:two_halves")
    assert resumed.code == 0, resumed.err
    one, other = (results.read(Path(d)) for d in ("straight", "o"))
    assert other.seeds[0].matrix == one.seeds[0].matrix


def test_a_run_of_a_file_is_exported_without_the_file(
    command: Callable[..., Any], site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("mine.py").write_text((site / "halves.py").read_text())
    name = "mine.py:two_halves"
    assert command("run", "--stream", name, "--set", "run.keep_state=true", "-q", "--out", "o").code == 0
    monkeypatch.setattr(OUTSIDE, "given", {})  # as in a new process
    export = ("export", "o", "--task", "task-1", "--format", "torch")
    Path("mine.py").unlink()
    done = command(*export)
    assert done.code == 0, done.err


def test_worker_processes_of_an_experiment_are_told_the_reference(
    command: Callable[..., Any], site: Path, tmp_path: Path
) -> None:
    words = ("reproduce", "main", "--streams", "halves,halves:two_halves", "--learners", "er", "--seeds", "1")
    done = command(*words, "--device", "cpu", "--slots", "1", "--out", tmp_path / "o")
    assert done.code == 0, done.err
    folders = sorted(path.parent.relative_to(tmp_path / "o").parts[1] for path in (tmp_path / "o").rglob("result.json"))
    assert folders == ["halves", "halves-two_halves"]
    names = [
        results.read(path.parent).seeds[0].config["stream"]["name"] for path in (tmp_path / "o").rglob("result.json")
    ]
    assert sorted(names) == ["halves", "halves:two_halves"]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("nowhere_at_all:f", "cannot be imported"),
        ("halves:three", "halves has no attribute 'three'"),
        ("halves:number", "it must be a function"),
        ("halves:no_stream", "returned a list"),
    ],
)
def test_a_bad_reference_is_one_line_and_code_2(command: Callable[..., Any], site: Path, name: str, words: str) -> None:
    refused = command("run", "--stream", name, "--out", "o", "-q")
    assert refused.code == 2
    assert words in refused.err
    assert len(refused.err.splitlines()) == 1
    assert not Path("o").exists()
