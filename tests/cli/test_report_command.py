"""`scale-cl report`: from result files to a report, with gaps said on stderr."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.reports.made_results import run_result


def test_a_report_goes_into_the_directory_itself(command: Callable[..., Any]) -> None:
    run_result().write(Path("runs/a"))
    finished = command("report", "runs")
    assert (finished.code, finished.out) == (0, "runs/report.html\n")
    assert finished.err == "wrote tables.md, tables.tex and 3 figures to runs\n"
    assert "<h1>Results: runs</h1>" in Path("runs/report.html").read_text()


def test_a_report_goes_where_out_says_and_names_gaps(command: Callable[..., Any]) -> None:
    run_result().write(Path("runs/a"))
    Path("runs/b").mkdir()
    Path("runs/b/result.json").write_text('{"schema": 7, "kind": "run"}')
    finished = command("report", "runs", "--out", "there/it/is", "-q")
    assert (finished.code, finished.out) == (0, "there/it/is/report.html\n")
    reason = "has schema 7, this version reads up to 2: use a newer scale-cl"
    assert finished.err == f"gap: b/result.json: {reason}\n"
    assert reason in Path("there/it/is/report.html").read_text()
    assert sorted(p.name for p in Path("runs").iterdir()) == ["a", "b"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "nowhere does not exist"),
        (["empty"], "empty holds no result.json"),
        (["bad"], "result.json is damaged: it is not JSON"),
        (["good", "--out", "good/result.json"], "good/result.json cannot be written to"),
    ],
)
def test_bad_input_is_one_line_and_code_2(command: Callable[..., Any], arguments: list[str], message: str) -> None:
    Path("empty").mkdir()
    Path("bad").mkdir()
    Path("bad/result.json").write_text("{")
    run_result().write(Path("good"))
    before = sorted(Path().rglob("*"))
    finished = command("report", *arguments)
    assert (finished.code, finished.out, len(finished.err.splitlines())) == (2, "", 1)
    assert finished.err.startswith("scale-cl: error: ")
    assert message in finished.err
    assert sorted(Path().rglob("*")) == before
