"""The history of benchmarks: what is like is compared with like."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from scale_cl.bench.suite import SCHEMA, append_history, comparison, read_history
from scale_cl.errors import ResultError


def entry(*, name: str = "a processor", threads: int = 1, step_ms: float = 2.0) -> dict[str, Any]:
    row = {"stream": "digits", "learner": "scale", "ratio": 3.0, "step_ms": step_ms}
    environment = {"device": "cpu", "device_name": name, "threads": threads}
    return {"schema": SCHEMA, "when": "2026-01-02T03:04:05", "environment": environment, "steps": [row]}


def test_entries_come_back_in_their_order(tmp_path: Path) -> None:
    path = tmp_path / "benchmarks" / "history.jsonl"
    assert read_history(path) == []
    entries = [entry(step_ms=1.0), entry(step_ms=2.0), entry(step_ms=3.0)]
    for each in entries:
        append_history(path, each)
    assert read_history(path) == entries
    assert len(path.read_text().splitlines()) == 3


def ratios(lines: list[str]) -> list[str]:
    return [line.split()[-1] for line in lines]


def test_only_machines_of_one_kind_are_compared() -> None:
    kept = [entry(step_ms=1.0), entry(step_ms=4.0), entry(name="another", step_ms=5.0), entry(threads=2, step_ms=8.0)]
    assert ratios(comparison(entry(step_ms=2.0), kept)) == ["1.00", "0.50"]
    assert comparison(entry(name="a third"), kept) == []


def test_a_slowdown_is_a_ratio_above_one() -> None:
    lines = comparison(entry(step_ms=3.0), [entry(step_ms=2.0)])
    assert ratios(lines) == ["1.00", "1.50"]
    assert lines[1].startswith("step of scale on digits, ms")


def test_a_figure_is_compared_with_the_last_entry_that_has_it() -> None:
    without = {**entry(), "steps": []}
    assert ratios(comparison(entry(step_ms=3.0), [entry(step_ms=2.0), without])) == ["1.00", "1.50"]


@pytest.mark.parametrize("text", ["{", "[]", '{"schema": "another"}', "\n"])
def test_a_history_that_is_none_is_refused_with_its_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "history.jsonl"
    append_history(path, entry())
    path.write_text(path.read_text() + text + "\n")
    with pytest.raises(ResultError, match=r"line 2: not an entry of scale-cl/bench/1"):
        read_history(path)
