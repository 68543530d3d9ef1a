"""`scale-cl resume`: what was stopped is finished, with the result it would have had."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from scale_cl import results
from scale_cl.training import checkpointing
from scale_cl.training.checkpoint import found
from scale_cl.training.run_directory import RunDirectory
from tests.training.test_checkpointing import Crash

RUN = ("run", "--tasks", "2", "--learner", "er", "-q", "--set", "run.batch_size=50", "--set", "run.checkpoint_every=6")


def crash_after(steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the next run break off after so many steps."""
    real, count = checkpointing.Checkpointer.due, iter(range(1, 10**6))

    def due(self: checkpointing.Checkpointer, done: int) -> bool:
        if next(count) == steps + 1:
            monkeypatch.setattr(checkpointing.Checkpointer, "due", real)
            raise Crash
        return real(self, done)

    monkeypatch.setattr(checkpointing.Checkpointer, "due", due)


def crashed(command: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, *more: str, after: int = 26) -> None:
    crash_after(after, monkeypatch)
    with pytest.raises(Crash):
        command(*RUN, "--out", "o", *more)


def test_a_crashed_run_is_finished_with_the_same_result(
    command: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert command(*RUN, "--out", "straight").code == 0
    crashed(command, monkeypatch)
    assert [p.stem for p in found(Path("o/checkpoints/seed-0"))] == ["at-00001-00000004", "at-00001-00000000"]
    assert not Path("o/result.json").exists()
    resumed = command("resume", "o", "-q")
    assert resumed.code == 0
    assert resumed.out.startswith("er on digits: ACC ")
    one, other = (results.read(Path(d)) for d in ("straight", "o"))
    assert other.seeds[0].matrix == one.seeds[0].matrix
    assert other.seeds[0].config == one.seeds[0].config
    assert other.environment["command"] == "scale-cl " + " ".join([*RUN, "--out", "o"])
    assert sorted(str(p.relative_to("o")) for p in Path("o").rglob("*")) == [
        "result.json",
        "seeds",
        "seeds/seed-0.json",
    ]


def test_several_seeds_go_on_each_from_where_it_was(
    command: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    more = ("--seeds", "2", "--set", "run.processes=1")
    crashed(command, monkeypatch, *more, after=48)
    assert found(Path("o/checkpoints/seed-0"))[0].stem == "at-00002-00000000"
    assert found(Path("o/checkpoints/seed-1"))[0].stem == "at-00000-00000006"
    assert command("resume", "o", "-q").code == 0
    assert command(*RUN, *more, "--out", "straight").code == 0
    one, other = (results.read(Path(d)) for d in ("straight", "o"))
    assert [s.matrix for s in other.seeds] == [s.matrix for s in one.seeds]


def test_a_run_killed_before_its_first_checkpoint_begins_anew(
    command: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    crashed(command, monkeypatch, after=5)
    assert not Path("o").exists(), "a run that breaks off before there is anything to keep leaves nothing"
    crashed(command, monkeypatch)
    RunDirectory("o").remove_checkpoints()  # as if it had been killed: the note is there, checkpoints are not
    assert command("resume", "o", "-q").code == 0
    assert results.read(Path("o")).seeds[0].acc is not None


def test_a_finished_run_says_so(command: Callable[..., Any]) -> None:
    assert command(*RUN, "--out", "o").code == 0
    before = Path("o/result.json").read_bytes()
    resumed = command("resume", "o")
    assert (resumed.code, resumed.out) == (0, "o is finished: its result is in o/result.json\n")
    assert Path("o/result.json").read_bytes() == before


def test_a_run_that_died_while_it_cleaned_up_is_finished_as_well(
    command: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(directory: RunDirectory) -> None:
        raise Crash

    with monkeypatch.context() as patched:
        patched.setattr(RunDirectory, "remove_note", die)
        with pytest.raises(Crash):
            command(*RUN, "--out", "o")
    wanted = results.read(Path("o")).seeds[0]
    assert command("resume", "o", "-q").code == 0
    assert results.read(Path("o")).seeds[0] == wanted, "no step is made again, or it would have taken another time"
    assert not Path("o/checkpoints").exists()


def test_the_state_is_kept_on_demand(command: Callable[..., Any]) -> None:
    assert command(*RUN, "--out", "o", "--set", "run.keep_state=true").code == 0
    assert [p.stem for p in found(Path("o/checkpoints/seed-0"))] == ["at-00002-00000000"]
    assert not Path("o/run.json").exists()


def test_an_unfinished_run_is_not_overwritten_unless_forced(
    command: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    crashed(command, monkeypatch)
    refused = command(*RUN, "--out", "o")
    assert refused.code == 2
    assert "o holds a run that is not finished; `scale-cl resume o` goes on with it" in refused.err
    assert command(*RUN, "--out", "o", "--force", "--seed", "3").code == 0
    assert results.read(Path("o")).seeds[0].seed == 3


@pytest.mark.parametrize(
    ("content", "part"),
    [
        (None, "holds no unfinished run"),
        ("[", "is not JSON"),
        ("[]", "no schema version"),
        ('{"schema": 1, "kind": "run"}', "no schema version and kind"),
        ('{"schema": 7, "kind": "started"}', "has schema 7, this version reads up to 1: use a newer scale-cl"),
        ('{"schema": 1, "kind": "started", "config": {}}', "does not have the sections"),
        ('{"schema": 1, "kind": "started", "data": 5}', "of another type"),
        (
            '{"schema": 1, "kind": "started", "config": {"stream": {}, "learner": {"x": 1}, "run": {}}}',
            "unknown setting 'learner.x'",
        ),
    ],
)
def test_a_damaged_note_is_one_line(command: Callable[..., Any], content: str | None, part: str) -> None:
    Path("o").mkdir()
    if content is not None:
        Path("o/run.json").write_text(content)
    refused = command("resume", "o")
    assert refused.code == 2
    assert part in refused.err
    assert refused.err.count("\n") == 1
    assert command("resume", "nowhere").err == (
        "scale-cl: error: nowhere is not a directory; name the one that the run writes to\n"
    )


def test_a_data_root_that_has_vanished_is_said_and_the_state_stays(
    command: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    crashed(command, monkeypatch)
    note = json.loads(Path("o/run.json").read_text())
    note["config"]["stream"]["name"], note["data"] = "pmnist", "/nowhere/at/all"
    Path("o/run.json").write_text(json.dumps(note))
    before = {p: p.read_bytes() for p in Path("o").rglob("*") if p.is_file()}
    refused = command("resume", "o", "-q")
    assert refused.code == 2
    assert "/nowhere/at/all" in refused.err
    assert {p: p.read_bytes() for p in Path("o").rglob("*") if p.is_file()} == before
