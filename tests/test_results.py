"""Results: what is written can be read back, and what is damaged, foreign or newer is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from scale_cl import files, results
from scale_cl.errors import ResultError
from scale_cl.metrics import Evaluation, Predictions
from scale_cl.results import RunResult, SeedResult, StreamTasks


def seed_result(seed: int = 0, first: float = 90.0, **changes: Any) -> SeedResult:
    values: dict[str, Any] = {
        "stream": "pmnist",
        "learner": "scale",
        "seed": seed,
        "config": {"stream": {"name": "pmnist"}, "learner": {"name": "scale"}, "run": {"seed": 0}},
        "tasks": ["one", "two"],
        "matrix": [[first, None], [80.0, 70.125]],
        "seconds_train": 1.5,
        "seconds_eval": 0.25,
    }
    return SeedResult(**{**values, **changes})


def run_result(*firsts: float) -> RunResult:
    seeds = tuple(seed_result(seed, first) for seed, first in enumerate(firsts or (90.0, 92.0)))
    return RunResult(seeds, {"torch": "2.13.0", "git_revision": None}, 61.2)


def test_a_written_result_is_read_back_whole(tmp_path: Path) -> None:
    path = run_result().write(tmp_path / "run")
    assert path == tmp_path / "run" / "result.json"
    assert results.read(path) == run_result()
    assert results.read(tmp_path / "run") == run_result()


def test_the_file_has_the_documented_keys(tmp_path: Path) -> None:
    content = json.loads(run_result().write(tmp_path).read_text())
    assert content["schema"] == 2
    assert (content["stream"], content["learner"], content["seeds"]) == ("pmnist", "scale", [0, 1])
    assert content["acc"] == [75.0625, 75.0625]
    assert content["fm"] == [10.0, 12.0]
    assert content["bwt"] == [-10.0, -12.0]
    assert content["la"] == [80.0625, 81.0625]
    assert content["matrix"] == [[[90.0, None], [80.0, 70.125]], [[92.0, None], [80.0, 70.125]]]
    assert (content["seconds_train"], content["seconds_eval"]) == ([1.5, 1.5], [0.25, 0.25])
    assert content["config"]["learner"] == {"name": "scale"}
    assert content["environment"]["torch"] == "2.13.0"


def test_every_seed_has_a_file_of_its_own(tmp_path: Path) -> None:
    run_result().write(tmp_path)
    assert results.read_seed(tmp_path / "seeds" / "seed-1.json") == seed_result(1, 92.0)


def test_writing_again_replaces_the_result_and_leaves_no_stale_seed(tmp_path: Path) -> None:
    run_result(90.0, 91.0, 92.0).write(tmp_path)
    (tmp_path / "notes.txt").write_text("mine")
    run_result(85.0).write(tmp_path)
    assert results.read(tmp_path).seeds == (seed_result(0, 85.0),)
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["notes.txt", "result.json", "seed-0.json", "seeds"]


def test_a_write_that_fails_leaves_the_earlier_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_result(90.0).write(tmp_path)
    before = {p: p.read_bytes() for p in tmp_path.rglob("*.json")}
    write_json = files.write_json

    def full_disk(path: Path, obj: object) -> None:
        if path.name == "result.json":
            raise OSError(28, "No space left on device")
        write_json(path, obj)

    monkeypatch.setattr(files, "write_json", full_disk)
    with pytest.raises(OSError, match="No space left"):
        run_result(10.0, 20.0).write(tmp_path)
    assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == before


def test_the_closing_line_has_means_and_deviations() -> None:
    assert run_result(90.0, 92.0).line() == ("scale on pmnist: ACC 75.1 ± 0.0  FM 11.0 ± 1.4  LA 80.6 (2 seeds, 61 s)")


def test_the_closing_line_of_one_seed_has_no_deviation() -> None:
    assert run_result(90.0).line() == "scale on pmnist: ACC 75.1  FM 10.0  LA 80.1 (1 seed, 61 s)"


def test_a_small_negative_mean_is_shown_as_zero() -> None:
    assert results.percent([-0.04]) == "0.0"
    assert results.percent([-0.06, -0.06]) == "-0.1 ± 0.0"


def test_an_undefined_measure_is_a_dash_and_null(tmp_path: Path) -> None:
    result = RunResult((seed_result(tasks=["one"], matrix=[[88.0]]),), {}, 1.0)
    assert result.line() == "scale on pmnist: ACC 88.0  FM -  LA 88.0 (1 seed, 1 s)"
    assert json.loads(result.write(tmp_path).read_text())["fm"] == [None]
    assert results.read(tmp_path) == result


def test_seeds_of_different_runs_do_not_make_a_result() -> None:
    with pytest.raises(ResultError, match="seeds 0 and 1 differ in stream, learner"):
        RunResult((seed_result(0), seed_result(1, learner="er")))
    with pytest.raises(ResultError, match="a seed appears twice"):
        RunResult((seed_result(0), seed_result(0)))
    with pytest.raises(ResultError, match="at least one seed"):
        RunResult(())


def test_a_missing_result_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(ResultError, match=r"nothing\.json does not exist"):
        results.read(tmp_path / "nothing.json")
    with pytest.raises(ResultError, match=r"result\.json does not exist"):
        results.read(tmp_path)


@pytest.mark.parametrize("text", ["", "{", '{"schema": 1', "\x00"])
def test_what_is_not_json_is_damaged(tmp_path: Path, text: str) -> None:
    (tmp_path / "result.json").write_text(text)
    with pytest.raises(ResultError, match="is damaged: it is not JSON"):
        results.read(tmp_path)


@pytest.mark.parametrize(
    "content", [[], {}, {"schema": "1", "kind": "run"}, {"schema": True, "kind": "run"}, {"schema": 1}]
)
def test_a_foreign_file_is_refused(tmp_path: Path, content: object) -> None:
    (tmp_path / "result.json").write_text(json.dumps(content))
    with pytest.raises(ResultError, match="is not a result of scale-cl"):
        results.read(tmp_path)


def test_a_newer_schema_is_refused_with_what_to_do(tmp_path: Path) -> None:
    _alter(tmp_path, schema=3)
    with pytest.raises(ResultError, match="has schema 3, this version reads up to 2: use a newer scale-cl"):
        results.read(tmp_path)


def test_a_result_says_its_preset_its_scenario_and_its_streams(tmp_path: Path) -> None:
    seed = seed_result(preset="paper", scenario="domain")
    path = RunResult((seed,), {}, 1.0).write(tmp_path)
    for written in (path, tmp_path / "seeds" / "seed-0.json"):
        content = json.loads(written.read_text())
        assert (content["schema"], content["preset"], content["scenario"]) == (2, "paper", "domain")
        assert content["streams"] == [{"name": "pmnist", "tasks": 2}]
    assert results.read(tmp_path).seeds == (seed,)
    assert results.read_seed(tmp_path / "seeds" / "seed-0.json") == seed
    two = replace(seed, streams=(StreamTasks("pmnist", 1), StreamTasks("digits", 1)))
    RunResult((two,), {}, 1.0).write(tmp_path)
    assert results.read(tmp_path).seeds == (two,)


def test_a_result_of_schema_1_is_read_with_what_it_does_not_say_unknown(tmp_path: Path) -> None:
    path = RunResult((seed_result(preset="ours", scenario="task"),), {}, 1.0).write(tmp_path)
    content = json.loads(path.read_text())
    for key in ("preset", "scenario", "streams"):
        del content[key]
    path.write_text(json.dumps({**content, "schema": 1}))
    before = path.read_bytes()
    (seed,) = results.read(path).seeds
    assert seed == seed_result()
    assert (seed.preset, seed.scenario, seed.streams) == (None, None, (StreamTasks("pmnist", 2),))
    assert path.read_bytes() == before


def test_a_seed_is_not_taken_for_a_run(tmp_path: Path) -> None:
    run_result().write(tmp_path)
    with pytest.raises(ResultError, match="holds a 'seed', expected a 'run'"):
        results.read(tmp_path / "seeds" / "seed-0.json")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"matrix": None}, "lists of the same length"),
        ({"matrix": [[[90.0]]] * 2}, "not of 2 x 2 accuracies"),
        ({"matrix": [[[90.0, None], [80.0, 170.0]]] * 2}, "170.0, which is not a percentage"),
        ({"matrix": [[[90.0, None], [80.0, "x"]]] * 2}, "'x', which is not a percentage"),
        ({"acc": [75.0625, 99.0]}, "acc of seed 1 is 99.0, but its matrix gives 75.0625"),
        ({"fm": [None, 12.0]}, "fm of seed 0 is None, but its matrix gives 10.0"),
        ({"acc": [75.0625, "high"]}, "acc of seed 1 is 'high'"),
        ({"seeds": [0, "1"]}, "'seed' is '1', which is not of type int"),
        ({"seeds": [0, 0]}, "a seed appears twice"),
        ({"seeds": 5}, "has no len"),
        ({"seeds": []}, "lists of the same length"),
        ({"seconds_wall": "long"}, "could not convert"),
        ({"seconds_wall": 10**400}, "a number of 401 digits"),
        ({"acc": [75.0625, 10**400]}, "a number of 401 digits"),
        ({"seeds": [0, "1" * 10**6]}, "'seed' is '111"),
        ({"environment": []}, "'environment' is"),
        ({"preset": 3}, "'preset' is 3, which is not of type str"),
        ({"streams": [{"name": "pmnist", "tasks": 3}]}, "streams have 3 tasks, but the result has 2"),
        ({"streams": [{"tasks": 2}]}, "'name' is missing"),
    ],
)
def test_a_damaged_file_is_refused_with_the_reason(tmp_path: Path, changes: dict[str, Any], reason: str) -> None:
    _alter(tmp_path, **changes)
    with pytest.raises(ResultError) as error:
        results.read(tmp_path)
    assert "result.json is damaged: " in str(error.value)
    assert len(str(error.value)) < 1000
    assert reason in str(error.value)


def test_a_missing_key_is_damage(tmp_path: Path) -> None:
    path = run_result().write(tmp_path)
    content = json.loads(path.read_text())
    del content["tasks"]
    path.write_text(json.dumps(content))
    with pytest.raises(ResultError, match="is damaged: 'tasks' is missing"):
        results.read(path)


def _alter(directory: Path, **changes: Any) -> None:
    path = run_result().write(directory)
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


# ---- what is measured within tasks -----------------------------------------------------------------------------------
def judged(seed: int = 0) -> SeedResult:
    evaluations = Evaluation(5, (90.0,)), Evaluation(8, (50.0, 40.0)), Evaluation(10, (80.0, 70.0))
    return seed_result(seed, evaluations=evaluations, predictions=(Predictions(10, 100, 45 + seed),))


def test_evaluations_within_tasks_and_counts_before_learning_are_read_back(tmp_path: Path) -> None:
    run = RunResult((judged(0), judged(1)))
    path = run.write(tmp_path)
    assert results.read(path) == run
    assert results.read_seed(tmp_path / "seeds" / "seed-1.json") == judged(1)
    content = json.loads(path.read_text())
    assert (content["schema"], content["aaa"]) == (2, [pytest.approx((90 + 45 + 75) / 3)] * 2)
    assert (content["wc_acc"], content["min_acc"], content["stability_gap"]) == ([60.0] * 2, [50.0] * 2, [40.0] * 2)
    assert content["prequential_acc"] == [45.0, 46.0]
    assert content["anytime"][0] == {"steps": [5, 8, 10], "accuracies": [[90.0], [50.0, 40.0], [80.0, 70.0]]}
    plain = json.loads(run_result().write(tmp_path / "plain").read_text())
    assert not plain.keys() & {"anytime", "prequential", *results.OPTIONAL_MEASURES}


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({"aaa": [1.0]}, "its evaluations give"),
        ({"anytime": [{"steps": [5, 5, 10], "accuracies": [[1.0], [1.0, 2.0], [1.0, 2.0]]}]}, "must be rising"),
        ({"anytime": [{"steps": [5], "accuracies": [[101.0]]}]}, "not a percentage"),
        ({"anytime": [{"steps": [5]}]}, "'accuracies' is missing"),
        ({"prequential": [{"steps": [5], "samples": [3], "right": [4]}]}, "not samples and right ones"),
        ({"prequential": [3]}, "is damaged"),
    ],
)
def test_damaged_evaluations_are_refused(change: dict[str, Any], part: str, tmp_path: Path) -> None:
    path = RunResult((judged(),)).write(tmp_path)
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(ResultError, match=part):
        results.read(path)
