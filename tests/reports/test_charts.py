"""Figures as data: the curves agree with the measures, and there is a figure only where there are data."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import hypothesis
import pytest
from hypothesis import strategies as st

from scale_cl import metrics
from scale_cl.metrics import Evaluation, Predictions
from scale_cl.reports import Section, collect, plots, sections
from scale_cl.reports.charts import Chart, accuracies_so_far, charts, colour_of, forgotten, heatmaps, log_ticks
from scale_cl.reports.html import HEIGHT, WIDTH, draw, draw_heatmap, ticks
from scale_cl.reports.tables import tables
from scale_cl.results import RunResult, SeedResult
from tests.reports.made_results import COMPONENTS, ENVIRONMENT, LAMBDAS, everything, run_result


def digits(directory: Path) -> Section:
    return next(s for s in sections(collect(directory)) if s.stream == "digits")


def by_key(section: Section) -> dict[str, Chart]:
    return {chart.key: chart for chart in charts(section)}


def matrices(tasks: int) -> st.SearchStrategy[list[list[float]]]:
    row = st.lists(st.floats(0, 100), min_size=tasks, max_size=tasks)
    return st.lists(row, min_size=tasks, max_size=tasks)


@hypothesis.given(st.integers(2, 5).flatmap(matrices))
def test_curves_end_in_the_measures(matrix: list[list[float | None]]) -> None:
    seed = SeedResult("s", "l", 0, {}, ["t"] * len(matrix), matrix, 1.0, 1.0)
    drops = forgotten(seed)
    assert accuracies_so_far(seed)[-1] == metrics.acc(matrix)
    assert sum(d for d in drops if d is not None) / len(drops) == pytest.approx(metrics.fm(matrix))


def test_every_experiment_has_its_figure(tmp_path: Path) -> None:
    everything(tmp_path)
    made = by_key(digits(tmp_path))
    assert list(made) == ["accuracy", "forgetting", "memory", "time", "sensitivity"]
    assert [s.label for s in made["accuracy"].series] == ["finetune", "er", "ctn", "scale", "joint"]
    assert [s.label for s in made["forgetting"].series] == ["finetune", "er", "ctn", "scale"]
    assert [s.label for s in made["sensitivity"].series] == ["λ1 = λ2 = 1", "λ1 = λ2 = 3"]
    memory = made["memory"].series
    assert [(p.x, p.y) for p in memory[0].points] == [(50, 89.0), (100, 91.0), (200, 92.0)]
    assert (memory[1].label, memory[1].level) == ("joint", True)


def test_what_was_tested_at_the_end_only_is_a_level(tmp_path: Path) -> None:
    everything(tmp_path)
    joint = by_key(digits(tmp_path))["accuracy"].series[-1]
    assert joint.level
    assert [p.y for p in joint.points] == [91.0]


def test_one_run_of_one_task_has_no_figure(tmp_path: Path) -> None:
    run_result(tasks=1).write(tmp_path)
    assert charts(digits(tmp_path)) == []
    assert heatmaps(digits(tmp_path)) == []


def test_one_seed_has_points_without_deviations(tmp_path: Path) -> None:
    run_result(seeds=(3,)).write(tmp_path)
    chart = by_key(digits(tmp_path))["accuracy"]
    assert {p.deviation for p in chart.series[0].points} == {None}
    assert draw(chart).strokes[0].band == ""


def test_only_runs_on_one_device_share_a_picture_of_time(tmp_path: Path) -> None:
    everything(tmp_path)
    run_result("er", level=70, environment={"device_name": "Fast"}, replay=5).write(tmp_path / "fast")
    chart = by_key(digits(tmp_path))["time"]
    assert "er replay=5" not in [s.label for s in chart.series]
    assert "on other devices, are left out" in chart.note


def test_a_picture_of_time_is_of_runs_alone_or_says_that_it_is_not(tmp_path: Path) -> None:
    everything(tmp_path)
    beside = by_key(digits(tmp_path))["time"]
    assert beside.x_label == "training, seconds per seed, beside other runs"
    assert len(beside.series) == 5
    alone = ENVIRONMENT | {"alone": True}
    run_result(memory=50, seconds=3, environment=alone, **LAMBDAS, **COMPONENTS).write(tmp_path / "time/scale")
    assert [s.label for s in by_key(digits(tmp_path))["time"].series] == ["finetune", "er", "ctn", "joint"]
    run_result("er", level=85.0, loss=3.0, seconds=2, environment=alone).write(tmp_path / "time/er")
    chart = by_key(digits(tmp_path))["time"]
    assert [(s.label, s.points[0].x) for s in chart.series] == [("er", 3.0), ("scale", 4.0)]
    assert chart.x_label == "training, seconds per seed"
    assert "nothing beside it" in chart.note
    assert "are left out" in chart.note


def test_times_far_apart_are_on_a_logarithmic_axis(tmp_path: Path) -> None:
    run_result().write(tmp_path / "a")
    run_result("er", seconds=900.0).write(tmp_path / "b")
    chart = by_key(digits(tmp_path))["time"]
    assert chart.log_x
    assert [tick.text for tick in draw(chart).x_ticks] == ["10", "20", "50", "100", "200", "500", "1000"]
    assert plots.plot(chart)["pdf"].startswith(b"%PDF")


def test_heat_maps_share_one_scale_and_leave_out_what_was_not_tested(tmp_path: Path) -> None:
    everything(tmp_path)
    maps = heatmaps(digits(tmp_path))
    assert [one.label for one in maps] == ["finetune", "er", "ctn", "scale"]
    assert {(one.low, one.high) for one in maps} == {(80.5 - 27, 90.5)}
    squares = draw_heatmap(maps[0]).squares
    assert len(squares) == 10
    assert squares[0].hover == "finetune, after task 1, on task 1: 80.50 %"


def test_variants_of_a_learner_have_its_colour_and_other_dashes(tmp_path: Path) -> None:
    run_result().write(tmp_path / "a")
    run_result(film="sum").write(tmp_path / "b")
    first, second = by_key(digits(tmp_path))["accuracy"].series
    assert first.colour == second.colour == colour_of("scale")
    assert first.dash != second.dash


def test_a_learner_from_outside_has_its_place_its_colour_and_its_name_everywhere(tmp_path: Path) -> None:
    everything(tmp_path)
    run_result("their-method", level=87.0, memory=50).write(tmp_path / "theirs")
    run_result("their-method", level=88.0, memory=100).write(tmp_path / "theirs-100")
    section = digits(tmp_path)
    for chart in charts(section):
        if chart.key != "sensitivity":
            (line,) = [series for series in chart.series if series.label == "their-method"]
            assert line.colour == colour_of("their-method") == sum(b"their-method") % 10
    assert "their-method" in [one.label for one in heatmaps(section)]
    shown = {table.key: [row[0].text for row in table.rows] for table in tables(section)}
    assert shown["results"] == ["finetune", "er", "ctn", "scale", "joint", "their-method"]
    assert [key for key, names in shown.items() if "their-method" in names] == [
        *("results", "tests", "memory-acc", "memory-fm", "times")
    ]


def test_a_drawing_stays_in_its_frame(tmp_path: Path) -> None:
    everything(tmp_path)
    for chart in charts(digits(tmp_path)):
        drawing = draw(chart)
        for mark in (m for stroke in drawing.strokes for m in stroke.marks):
            assert drawing.left - 1 <= mark.x <= WIDTH
            assert 0 <= mark.y <= HEIGHT
        assert len(drawing.y_ticks) >= 2
        assert len(drawing.x_ticks) >= 2


@hypothesis.given(st.floats(-1e3, 1e3), st.floats(0, 1e3))
def test_ticks_span_the_values(low: float, spread: float) -> None:
    marks = ticks(low, low + spread)
    assert marks[0] <= low + 1e-6
    assert marks[-1] >= low + spread - 1e-6
    assert 2 <= len(marks) <= 9


def test_ticks_of_a_logarithmic_axis_are_round() -> None:
    assert log_ticks(0.3, 30) == pytest.approx([0.5, 1, 2, 5, 10, 20])


def judged(learner: str, level: float) -> RunResult:
    """Two tasks of ten steps, evaluated every five; the first task drops by 30 points when the second begins."""
    run = run_result(learner, tasks=2, seeds=(0, 2))
    rows = [(5, (level,)), (10, (level + 10,)), (15, (level - 20, 40.0)), (20, (level, 80.0))]
    seeds = [
        replace(
            seed,
            evaluations=tuple(Evaluation(step, tuple(a + seed.seed for a in row)) for step, row in rows),
            predictions=(Predictions(10, 100, 50), Predictions(20, 100, 70)),
        )
        for seed in run.seeds
    ]
    return RunResult(tuple(seeds), run.environment)


def test_evaluations_within_tasks_have_curves_over_steps_with_boundaries_and_a_table(tmp_path: Path) -> None:
    judged("er", 60.0).write(tmp_path / "er")
    run_result("scale", tasks=2).write(tmp_path / "scale")
    section = digits(tmp_path)
    made = by_key(section)
    points = {key: [(p.x, p.y) for p in made[key].series[0].points] for key in ("anytime", "earlier", "prequential")}
    assert points["anytime"] == [(5, 61.0), (10, 71.0), (15, 41.0), (20, 71.0)]
    assert points["earlier"] == [(10, 71.0), (15, 41.0), (20, 61.0)]
    assert points["prequential"] == [(10, 50.0), (20, 60.0)]
    for key in points:
        assert [s.label for s in made[key].series] == ["er"], "the other row has no evaluations"
        assert made[key].boundaries == (10.0,)
        drawing = draw(made[key])
        assert drawing.left < drawing.boundaries[0] < drawing.right
        assert plots.plot(made[key])["pdf"].startswith(b"%PDF")
    table = next(table for table in tables(section) if table.key == "anytime")
    assert [column.title for column in table.columns[2:]] == [
        "AAA ↑",
        "WC-ACC ↑",
        "min-ACC ↑",
        "Stability gap ↓",
        "Prequential ↑",
    ]
    # seeds 0 and 2 are two points apart in everything but the gap
    assert [cell.value for cell in table.rows[0][2:]] == pytest.approx([61.0, 61.0, 41.0, 30.0, 60.0])
