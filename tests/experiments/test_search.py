"""Search: grids from text, and the winner as a config."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from scale_cl.errors import ConfigError
from scale_cl.experiments.definitions import chosen
from scale_cl.experiments.planning import ExperimentPlan, Request, file_of_search, plan
from scale_cl.experiments.result_index import scan
from scale_cl.experiments.search import read_grid, winners
from scale_cl.training.config import resolve
from tests.experiments.small_runs import made_up


def searched(out: Path, *, seeds: tuple[int, ...] = (0,)) -> ExperimentPlan:
    cases = read_grid(["lr=0.01,0.1", "replay=5,10"], "er")
    return plan(chosen("search"), Request(out, ("digits",), ("er",), seeds, cases), gpu=False)


def test_a_grid_is_read_with_the_types_of_the_fields() -> None:
    assert read_grid(["inner_lr=1e-2, 0.1", "lambda1+lambda2=1,3", "ce=batch"], "scale") == tuple(
        {"inner_lr": rate, "lambda1": weight, "lambda2": weight, "ce": "batch"}
        for rate in (0.01, 0.1)
        for weight in (1.0, 3.0)
    )
    assert read_grid(["replay=5,5"], "er") == ({"replay": 5},)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("iner_lr=0.1", r"unknown setting 'learner\.iner_lr'; did you mean 'inner_lr'\?"),
        ("inner_lr=fast", r"learner\.inner_lr: 'fast' is not a number"),
        ("inner_lr=-1", r"out of range"),
        ("inner_lr", "expected field=value"),
        ("inner_lr=", "expected values"),
        ("lambda1+lambda1=1", "a field is given twice"),
        ("lambda1+nothing=1", r"unknown setting 'learner\.nothing'"),
    ],
)
def test_a_wrong_grid_is_a_clear_error(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_grid([text], "scale")
    with pytest.raises(ConfigError, match="given twice"):
        read_grid(["inner_lr=0.1", "inner_lr=0.2"], "scale")


def test_the_settings_found_for_a_learner_in_a_file_are_in_the_folder_of_the_search() -> None:
    assert file_of_search(Path("s"), "digits", "er") == Path("s/digits-er.yaml")
    assert file_of_search(Path("s"), "digits", "sub/own.py:Own") == Path("s/digits-sub_own.py_Own.yaml")


def test_the_winner_is_a_config_for_the_continual_run(tmp_path: Path) -> None:
    made = searched(tmp_path, seeds=(0, 1))
    for run in made.runs:
        case = run.config.learner
        made_up(run, acc=80.0 if (case.lr, case.replay) == (0.1, 5) else 60.0)  # type: ignore[attr-defined]
    (winner,) = winners(made.cells, scan(tmp_path), tmp_path)
    assert winner.case == {"memory_policy": "reservoir", "lr": 0.1, "replay": 5}
    assert (winner.accuracy, winner.finished, winner.points) == (80.0, 4, 4)
    best = resolve(file=winner.config)
    assert (best.stream.name, best.stream.part, best.learner_name) == ("digits", "continual", "er")
    assert (best.learner.lr, best.learner.replay) == (0.1, 5)  # type: ignore[attr-defined]
    ranking = json.loads(winner.config.with_suffix(".json").read_text())
    assert [point["acc"] for point in ranking["points"]] == [60.0, 60.0, 80.0, 60.0]


def test_a_point_that_did_not_finish_for_all_seeds_is_a_gap_and_cannot_win(tmp_path: Path) -> None:
    made = searched(tmp_path, seeds=(0, 1))
    for run in made.runs:
        if run.config.learner.lr == 0.01 or run.config.run.seed == 0:  # type: ignore[attr-defined]
            made_up(run, acc=50.0 if run.config.learner.lr == 0.01 else 99.0)  # type: ignore[attr-defined]
    (winner,) = winners(made.cells, scan(tmp_path), tmp_path)
    assert winner.case == {"memory_policy": "reservoir", "lr": 0.01, "replay": 5}  # the first of equals
    assert "2 of 4 points" in winner.config.read_text()
    ranking = json.loads(winner.config.with_suffix(".json").read_text())
    assert [point["acc"] for point in ranking["points"]] == [50.0, 50.0, None, None]


def test_without_a_finished_point_nothing_is_written(tmp_path: Path) -> None:
    made = searched(tmp_path)
    assert winners(made.cells, scan(tmp_path), tmp_path) == []
    assert list(tmp_path.iterdir()) == []
