"""`scale-cl compare`: several runs in the terminal."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.reports.made_results import run_result


def test_runs_stand_below_each_other_with_sparklines(command: Callable[..., Any]) -> None:
    run_result("er", level=85, loss=3).write(Path("a/er"))
    run_result().write(Path("b"))
    run_result(stream="other", seeds=(0,)).write(Path("c"))
    finished = command("compare", "a", "b", "c")
    assert (finished.code, finished.err) == (0, "")
    lines = finished.out.splitlines()
    (er,) = [line for line in lines if line.strip().startswith("er ")]
    assert er.split()[:8] == ["er", "3", "81.0", "±", "0.5", "6.0", "±", "0.0"]
    assert er.split()[-1] == "▄▃▂▁"
    assert [line.strip() for line in lines if "tasks" in line and "%" not in line] == [
        "digits, 4 tasks",
        "other, 4 tasks",
    ]
    assert any(line.split()[:4] == ["scale", "1", "88.5", "2.0"] for line in lines)


def test_numbers_are_never_cut_off_in_a_file(command: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    run_result("a-learner-with-quite-a-long-name", level=85, loss=3, tasks=40).write(Path("a"))
    monkeypatch.setenv("COLUMNS", "20")
    finished = command("compare", "a")
    assert "a-learner-with-quite-a-long-name" in finished.out
    assert "…" not in finished.out


def test_markup_in_a_name_is_text(command: Callable[..., Any]) -> None:
    run_result("[red]x[/red]\x1b[31m").write(Path("a"))
    out = command("compare", "a").out
    assert "[red]x[/red]" in out
    assert "\x1b" not in out


def test_gaps_are_said_on_stderr(command: Callable[..., Any]) -> None:
    run_result().write(Path("a"))
    Path("b/seeds").mkdir(parents=True)
    finished = command("compare", "a", "b")
    assert finished.code == 0
    assert finished.err == "gap: b: has no result.json: its run has not finished\n"


def test_nothing_to_compare_is_an_error(command: Callable[..., Any]) -> None:
    finished = command("compare", "nowhere")
    assert finished.code == 2
    assert finished.err.startswith("scale-cl: error: nowhere does not exist")


def test_runs_on_images_of_ones_own_are_compared_and_reported_tested_or_not(command: Callable[..., Any]) -> None:
    for task in ("day", "night"):
        for label, rows in (("low", slice(4, 8)), ("high", slice(0, 4))):
            for i in range(12):
                pixels = np.full((8, 8), i, dtype=np.uint8)
                pixels[rows] += 150
                target = Path("pictures", task, label, f"{i}.png")
                target.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(pixels).save(target)
    for learner in ("er", "finetune"):
        options = ("--set", "stream.channels=1", "-q", "--out", f"runs/{learner}")
        assert command("run", "--stream", "folder:pictures", "--learner", learner, *options).code == 0
    untested = ("run", "--stream", "folder:pictures", "--set", "stream.channels=1", "--set", "stream.held_out=0")
    refused = command(*untested, "--out", "runs/untested")
    assert (refused.code, Path("runs/untested").exists()) == (2, False)
    assert "pictures has no test samples" in refused.err.splitlines()[-1]
    judged = command(*untested, "--set", "run.prequential=true", "--out", "runs/untested")
    assert judged.code == 0, judged.err
    assert "task 2/2: " in judged.err
    assert "ACC -  FM -  LA -  prequential " in judged.out
    compared = command("compare", "runs")
    assert compared.code == 0, compared.err
    assert "pictures" in compared.out
    assert compared.err == ""
    tested, without = compared.out.split("held_out=0.0")
    assert ("Prequential" in tested, "Prequential" in without) == (False, True)
    reported = command("report", "runs")
    assert reported.code == 0, reported.err
    assert "| Learner | Seeds | Prequential ↑ |" in Path("runs/tables.md").read_text()
