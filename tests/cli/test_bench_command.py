"""`scale-cl bench` as a user runs it, at tiny sizes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

TINY = (
    "--stream",
    "digits",
    "--learner",
    "scale",
    "--learner",
    "er",
    "--device",
    "cpu",
    "--rounds",
    "1",
    "--block",
    "1",
)
SMALL = ("--tasks", "1", "--grow-to", "5", "--out", "out", "--history", "history.jsonl")


def test_it_leaves_json_a_plot_and_a_history_to_compare_with(command: Callable[..., Any]) -> None:
    first = command("bench", "steps", "streams", "growth", *TINY, *SMALL, "--save", "--compare")
    assert first.code == 0, first.err
    assert "history.jsonl has no benchmark of this kind of machine" in first.out
    entry = json.loads(Path("out/bench.json").read_text())
    assert [json.loads(line) for line in Path("history.jsonl").read_text().splitlines()] == [entry]
    assert Path("out/bench.png").read_bytes().startswith(b"\x89PNG")
    assert entry["schema"] == "scale-cl/bench/1"
    assert entry["environment"]["command"].startswith("scale-cl bench steps streams growth")
    assert [row["learner"] for row in entry["steps"]] == ["scale", "er"]
    assert [(row["learner"], row["tasks"], row["steps"]) for row in entry["streams"]] == [
        ("scale", 1, 100),
        ("er", 1, 100),
    ]
    assert all(row["peak_bytes"] is None or row["peak_bytes"] > 0 for row in entry["streams"])
    assert [(row["learner"], row["tasks"]) for row in entry["growth"]] == [
        ("scale", 3),
        ("scale", 5),
        ("er", 3),
        ("er", 5),
    ]
    for row in entry["growth"]:
        assert row["grown"] == row["allowed"]
        assert row["unexplained_bytes"] == row["grown"]["rest"] == 0
        assert row["grown"]["samples"] > 0

    again = command("bench", "growth", *TINY, *SMALL, "--compare")
    assert "a ratio above 1 is slower or larger" in again.out
    assert "state of scale on digits after 5 tasks, MiB" in again.out
    assert len(Path("history.jsonl").read_text().splitlines()) == 1


def test_what_cannot_be_measured_is_said_in_a_line(command: Callable[..., Any]) -> None:
    for arguments, said in (
        (("stepps",), "unknown part 'stepps'; did you mean 'steps'?"),
        (("steps", "--seeds", "1,many"), "--seeds '1,many': give numbers"),
        (("steps", "--learner", "scael"), "unknown learner 'scael'; did you mean 'scale'?"),
    ):
        finished = command("bench", *arguments)
        assert finished.code == 2
        assert said in finished.err
        assert not list(Path().iterdir())
