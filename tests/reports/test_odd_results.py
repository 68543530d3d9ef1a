"""A report on results of which some are odd: those are gaps, and the rest is written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from scale_cl import files
from scale_cl.reports import collect, sections, write_report
from scale_cl.reports.charts import heatmaps
from scale_cl.reports.collection import distinct
from tests.reports.made_results import run_result


def altered(folder: Path, **entries: Any) -> None:
    """A result in which these entries are others."""
    path = run_result("er", level=70.0).write(folder)
    path.write_text(json.dumps({**json.loads(path.read_text()), **entries}))


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sound result, and odd ones."""
    folder = tmp_path_factory.mktemp("runs")
    run_result(tasks=1).write(folder / "sound")
    altered(folder / "surrogate", environment={"device_name": "\ud800"})
    altered(folder / "digits", seconds_wall=10**400)
    altered(folder / "nan", seconds_wall=float("nan"))
    config = json.loads((folder / "sound" / "result.json").read_text())["config"]
    altered(folder / "huge", config={**config, "learner": {"name": "er", "memory": 10**400}})
    return folder


def test_odd_files_are_gaps_and_the_rest_is_written(runs: Path, tmp_path: Path) -> None:
    written = write_report(collect(runs), tmp_path)
    assert {gap.name: gap.reason for gap in written.gaps} == {
        "digits/result.json": "is damaged: it holds a number of 401 digits",
        "huge/result.json": "is damaged: it holds a number of 401 digits",
        "nan/result.json": "is damaged: it holds NaN, which is not a finite number",
        "surrogate/result.json": "is damaged: it holds half a character (a lone surrogate)",
    }
    assert all(path.stat().st_size > 0 for path in written.files)
    assert "half a character" in (tmp_path / "report.html").read_text()


def test_many_changed_settings_make_names_that_a_file_can_have(tmp_path: Path) -> None:
    for value in (1, 2):
        changed: dict[str, Any] = {f"a_setting_of_a_long_name_{number}": value * number for number in range(14)}
        run_result("mine", level=50.0 + value, **changed).write(tmp_path / str(value))
    (section,) = sections(collect(tmp_path))
    names = distinct(f"{section.key}-{heatmap.key}" for heatmap in heatmaps(section))
    assert min(len(row.label) for row in section.rows) > 255
    assert len(set(names)) == 2
    for name in names:
        files.write_bytes(tmp_path / f"{name}.pdf", b"")
