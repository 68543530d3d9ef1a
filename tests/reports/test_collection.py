"""Collecting: everything below a directory is found, and what is not a result is a gap or a clear error."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from scale_cl.errors import ResultError
from scale_cl.reports import collect
from tests.reports.made_results import run_result


def altered(directory: Path, **changes: Any) -> None:
    path = run_result().write(directory)
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_results_are_found_at_any_depth_and_named_by_their_path(tmp_path: Path) -> None:
    run_result().write(tmp_path)
    run_result("er").write(tmp_path / "a" / "b")
    found = collect(tmp_path)
    assert [(run.name, run.result.learner) for run in found.runs] == [
        ("result.json", "scale"),
        ("a/b/result.json", "er"),
    ]
    assert found.gaps == ()


def test_a_file_below_two_directories_is_read_once(tmp_path: Path) -> None:
    run_result().write(tmp_path / "a")
    assert [run.name for run in collect(tmp_path, tmp_path / "a").runs] == [f"{tmp_path.as_posix()}/a/result.json"]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("", "is damaged: it is not JSON"),
        ('{"schema": 1, "kind": "ru', "is damaged: it is not JSON"),
        ("{}", "is not a result of scale-cl: it has no schema version and kind"),
        ('{"schema": 9, "kind": "run"}', "has schema 9, this version reads up to 2: use a newer scale-cl"),
        ('{"schema": 1, "kind": "run"}', "is damaged: 'seeds' is missing"),
    ],
)
def test_what_cannot_be_read_is_a_gap_beside_what_can(tmp_path: Path, content: str, reason: str) -> None:
    run_result().write(tmp_path / "good")
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "result.json").write_text(content)
    found = collect(tmp_path)
    assert [run.name for run in found.runs] == ["good/result.json"]
    assert [(gap.name, gap.reason) for gap in found.gaps] == [("bad/result.json", reason)]


def test_a_number_that_is_none_is_a_gap_and_not_a_crash(tmp_path: Path) -> None:
    run_result().write(tmp_path / "good")
    altered(tmp_path / "bad", seconds_wall=10**400)
    assert [gap.name for gap in collect(tmp_path).gaps] == ["bad/result.json"]


def test_a_file_whose_config_names_another_learner_is_not_believed(tmp_path: Path) -> None:
    run_result().write(tmp_path / "good")
    altered(tmp_path / "bad", learner="er")
    (gap,) = collect(tmp_path).gaps
    assert gap.reason == "is damaged: it is a result of the learner 'er', but its config says 'scale'"


@pytest.mark.parametrize("trace", ["seeds/seed-0.json", "run.json", ".lock"])
def test_a_run_that_has_not_finished_is_a_gap(tmp_path: Path, trace: str) -> None:
    run_result().write(tmp_path / "good")
    left = tmp_path / "running" / trace
    left.parent.mkdir(parents=True)
    left.write_text("{}")
    (gap,) = collect(tmp_path).gaps
    assert (gap.name, gap.reason) == ("running", "has no result.json: its run has not finished")


def test_hidden_folders_are_not_searched(tmp_path: Path) -> None:
    run_result().write(tmp_path / "good")
    run_result("er").write(tmp_path / ".old")
    assert len(collect(tmp_path).runs) == 1


def test_a_stopped_run_alone_is_named_by_its_directory(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("{}")
    with pytest.raises(ResultError, match=f"cannot be read; {tmp_path} has no result.json: its run has not finished"):
        collect(tmp_path)


def test_a_directory_without_results_is_an_error_that_says_so(tmp_path: Path) -> None:
    with pytest.raises(ResultError, match=r"nowhere does not exist; name a directory"):
        collect(tmp_path / "nowhere")
    with pytest.raises(ResultError, match=r"holds no result\.json"):
        collect(tmp_path)
    (tmp_path / "result.json").write_text("{")
    with pytest.raises(ResultError, match=r": the only result cannot be read; result\.json is damaged: it is not JSON"):
        collect(tmp_path)
    with pytest.raises(ResultError, match="is not a directory"):
        collect(tmp_path / "result.json")
