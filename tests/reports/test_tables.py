"""Tables: the right numbers in the right cells, and a gap where there is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from scale_cl.reports import Section, collect, sections
from scale_cl.reports.paper import PrintedValue
from scale_cl.reports.sections import main_rows
from scale_cl.reports.seed_statistics import summarise
from scale_cl.reports.table import Table, TableCell, mark_best, number, signed
from scale_cl.reports.tables import overview_table, tables
from scale_cl.reports.versus_paper import verdict
from tests.reports.made_results import ENVIRONMENT, everything, run_result

ALONE = ENVIRONMENT | {"alone": True, "experiment": "time"}


def table(directory: Path, key: str, stream: str = "digits") -> Table:
    return next(t for t in tables(section(directory, stream)) if t.key == key)


def section(directory: Path, stream: str = "digits") -> Section:
    return next(s for s in sections(collect(directory)) if s.stream == stream)


def texts(made: Table) -> list[list[str]]:
    return [[cell.text for cell in row] for row in made.rows]


def test_results_have_means_deviations_and_intervals(tmp_path: Path) -> None:
    run_result(level=90, loss=1, seeds=(0, 1, 2)).write(tmp_path / "a")
    made = table(tmp_path, "results")
    # levels 90, 90.5, 91; four tasks lose 3, 2, 1, 0 points: ACC 1.5 below, FM 2, LA the level, BWT -2
    assert texts(made) == [
        ["scale", "3", "89.00 ± 0.50", "87.76 to 90.24", "2.00 ± 0.00", "2.00 to 2.00", "90.50 ± 0.50", "-2.00 ± 0.00"]
    ]
    assert made.rows[0][2].value == pytest.approx(89.0)
    assert made.rows[0][2].source == section(tmp_path).rows[0].anchor


def test_one_seed_has_no_deviation_and_no_verdict(tmp_path: Path) -> None:
    run_result(stream="pmnist", tasks=20, seeds=(0,)).write(tmp_path)
    assert texts(table(tmp_path, "results", "pmnist"))[0][2:4] == ["80.50", "–"]
    row = texts(table(tmp_path, "paper", "pmnist"))[-1]
    assert row[:5] == ["scale", "1", "80.50", "80.70 ± 0.46", "-0.20"]
    assert row[5] == "one seed"


def test_a_single_task_has_no_forgetting(tmp_path: Path) -> None:
    run_result(tasks=1).write(tmp_path)
    assert texts(table(tmp_path, "results"))[0][4] == "–"


def test_the_best_is_bold_but_never_the_bound(tmp_path: Path) -> None:
    everything(tmp_path)
    made = table(tmp_path, "results")
    assert [(row[0].text, row[2].best, row[4].best) for row in made.rows] == [
        ("finetune", False, False),
        ("er", False, False),
        ("ctn", False, False),
        ("scale", True, True),
        ("joint", False, False),
    ]
    assert [cell.text for cell in made.rows[-1]][4:] == ["–"] * 4


def test_values_that_print_alike_are_both_best() -> None:
    cells = [TableCell("1.00", 1.001), TableCell("1.00", 1.002), TableCell("0.50", 0.5)]
    assert [c.best for c in mark_best(cells, highest=True, competing=[True] * 3)] == [True, True, False]
    assert not mark_best(cells[:1], highest=True, competing=[True])[0].best


def test_learners_of_the_paper_that_were_not_run_are_gaps(tmp_path: Path) -> None:
    everything(tmp_path)
    rows = texts(table(tmp_path, "paper", "pmnist"))
    assert [row[0] for row in rows] == ["gem", "mer", "mir", "er", "ctn", "scale"]
    assert rows[0] == ["gem", "–", "–", "71.10 ± 0.47", "–", "–", "–", "10.16 ± 0.41", "–", "–"]
    # 82.5 at the middle seed, less 0.16 * 9.5; FM is 0.16 * 10
    assert rows[-1][1:6] == ["3", "80.98 ± 0.50", "80.70 ± 0.46", "+0.28", "within"]
    assert rows[-1][6:] == ["1.60 ± 0.00", "2.90 ± 0.27", "-1.30", "better"]


def test_other_settings_are_not_compared_with_the_paper(tmp_path: Path) -> None:
    run_result(stream="pmnist", tasks=20, weight_average=0.9).write(tmp_path)
    assert texts(table(tmp_path, "results", "pmnist"))[0][0] == "scale weight_average=0.9"
    assert {t.key for t in tables(section(tmp_path, "pmnist"))} == {"results", "times"}


def test_the_preset_paper_is_compared_with_the_paper_beside_the_default_settings(tmp_path: Path) -> None:
    run_result(stream="pmnist", tasks=20, memory_policy="ring").write(tmp_path / "paper")
    assert texts(table(tmp_path, "paper", "pmnist"))[-1][:2] == ["scale memory_policy=ring", "3"]
    run_result(stream="pmnist", tasks=20).write(tmp_path / "ours")
    rows = texts(table(tmp_path, "paper", "pmnist"))
    assert [row[0] for row in rows[-3:]] == ["ctn", "scale", "scale memory_policy=ring"]


def test_a_shorter_stream_is_not_compared_with_the_paper(tmp_path: Path) -> None:
    run_result(stream="pmnist", tasks=5).write(tmp_path)
    assert {t.key for t in tables(section(tmp_path, "pmnist"))} == {"results", "times"}


def test_the_order_of_classes_is_said_where_it_matters(tmp_path: Path) -> None:
    run_result(stream="scifar10", tasks=5, norm_on_memory=True).write(tmp_path / "a")
    run_result(stream="pmnist", tasks=20).write(tmp_path / "b")
    assert "does not settle the order of the classes; here it is default" in table(tmp_path, "paper", "scifar10").note
    assert "order" not in table(tmp_path, "paper", "pmnist").note


def test_one_seed_in_common_gives_a_difference_and_no_test(tmp_path: Path) -> None:
    run_result(seeds=(0,)).write(tmp_path / "a")
    run_result("er", level=80).write(tmp_path / "b")
    made = table(tmp_path, "tests")
    assert texts(made)[0][:6] == ["er", "1", "+10.00", "–", "–", "–"]
    assert made.note.endswith("One seed gives no test.")


@pytest.mark.parametrize(
    ("values", "word"),
    [([79.0, 80.0], "within"), ([90.0, 90.1], "better"), ([70.0, 70.1], "worse"), ([80.0], "one seed")],
)
def test_within_means_no_further_apart_than_both_deviations(values: list[float], word: str) -> None:
    summary = summarise(values)
    assert summary is not None
    assert verdict(summary, PrintedValue(80.0, 0.5), higher_is_better=True)[0] == word
    opposite = {"better": "worse", "worse": "better"}.get(word, word)
    assert verdict(summary, PrintedValue(80.0, 0.5), higher_is_better=False)[0] == opposite


def test_paired_tests_compare_scale_with_each_other_learner(tmp_path: Path) -> None:
    everything(tmp_path)
    made = table(tmp_path, "tests")
    assert [row[0].text for row in made.rows] == ["finetune", "er", "ctn", "joint"]
    joint = [cell.text for cell in made.rows[-1]]
    # joint: 91 at every seed, SCALE: 88.5, 89, 89.5; t = -2 / (0.5 / sqrt 3) = -6.93 with 2 degrees: p = 0.020
    assert joint == ["joint", "3", "-2.00 ± 0.50", "0.020", "0.020", "0.250", "–", "–", "–", "–"]
    assert "cannot be below 0.25" in made.note


def test_each_experiment_has_its_table_and_leaves_the_main_one(tmp_path: Path) -> None:
    everything(tmp_path)
    made = {t.key: texts(t) for t in tables(section(tmp_path))}
    assert list(made) == ["results", "tests", "ablation", "memory-acc", "memory-fm", "sensitivity", "times"]
    assert [row[0] for row in made["ablation"]] == [
        "SCALE",
        "A: without the adversary",
        "B: without DER++",
        "C: without the parameter generator",
    ]
    assert made["memory-acc"] == [["scale", "89.00 ± 0.50", "91.00 ± 0.50", "92.00 ± 0.50"]]
    assert [row[:2] for row in made["sensitivity"]] == [["1", "0.03"], ["1", "0.3"], ["3", "0.03"], ["3", "0.3"]]
    assert [row.label for row in main_rows(section(tmp_path))] == ["finetune", "er", "ctn", "scale", "joint"]


def test_times_beside_the_papers_are_relative_to_scale(tmp_path: Path) -> None:
    everything(tmp_path)
    (row,) = texts(table(tmp_path, "times", "pmnist"))
    assert row == ["scale", "11.00 ± 1.00", "1.00 ± 0.00", "1.00", "beside other runs", "Abacus 9", "41.33", "1.00"]


def test_times_are_of_runs_that_had_nothing_beside_them_or_are_marked(tmp_path: Path) -> None:
    run_result(seconds=50).write(tmp_path / "main/scale")
    run_result("er", seconds=30).write(tmp_path / "main/er")
    run_result("ctn", seconds=70).write(tmp_path / "main/ctn")
    assert {row[4] for row in texts(table(tmp_path, "times"))} == {"beside other runs"}
    run_result(seconds=20, seeds=(0, 1), environment=ALONE).write(tmp_path / "time/scale")
    run_result("er", seconds=10, seeds=(0,), environment=ALONE).write(tmp_path / "time/er")
    made = table(tmp_path, "times")
    assert [row[:5] for row in texts(made)] == [
        ["er", "10.00", "1.00", "0.49", "alone"],
        ["ctn", "71.00 ± 1.00", "1.00 ± 0.00", "–", "beside other runs"],
        ["scale", "20.50 ± 0.71", "1.00 ± 0.00", "1.00", "alone"],
    ]
    assert "marked as beside other runs were not taken alone" in made.note
    assert section(tmp_path).gaps == []
    assert [row[1] for row in texts(table(tmp_path, "results"))] == ["3", "3", "3"]


def test_a_timed_run_on_a_gpu_may_differ_in_its_accuracies_but_one_on_a_cpu_may_not(tmp_path: Path) -> None:
    run_result(level=90).write(tmp_path / "main")
    run_result(level=90.1, environment=ALONE | {"device": "cuda:0", "device_name": "Gigant"}).write(tmp_path / "time")
    (row,) = section(tmp_path).rows
    assert [seed.matrix[0][0] for seed in row.seeds] == [90.0, 90.5, 91.0]
    assert (row.devices, row.timing_devices) == (["Abacus 9"], ["Gigant"])
    assert [run.name for run in row.sources] == ["main/result.json", "time/result.json"]
    run_result(level=90.1, environment=ALONE).write(tmp_path / "time")
    assert [r.is_timed_alone for r in section(tmp_path).rows] == [False, True]
    assert "other accuracies" in section(tmp_path).gaps[0].reason


def test_several_streams_have_an_overview(tmp_path: Path) -> None:
    everything(tmp_path)
    made = overview_table(sections(collect(tmp_path)))
    assert made is not None
    assert [column.title.replace("\N{NO-BREAK SPACE}", " ") for column in made.columns][1:] == [
        "pmnist ACC ↑",
        "pmnist FM ↓",
        "digits ACC ↑",
        "digits FM ↓",
    ]
    assert texts(made)[1] == ["er", "–", "–", "81.00 ± 0.50", "6.00 ± 0.00"]
    assert overview_table([section(tmp_path)]) is None


def test_streams_that_differ_in_length_alone_are_told_apart_in_the_overview(tmp_path: Path) -> None:
    run_result(tasks=2).write(tmp_path / "short")
    run_result(tasks=3).write(tmp_path / "long")
    made = overview_table(sections(collect(tmp_path)))
    assert made is not None
    titles = [column.title.replace("\N{NO-BREAK SPACE}", " ") for column in made.columns][1:]
    assert titles == ["digits, 2 tasks ACC ↑", "digits, 2 tasks FM ↓", "digits, 3 tasks ACC ↑", "digits, 3 tasks FM ↓"]


def test_numbers_are_never_minus_zero() -> None:
    assert (number(-0.001), signed(0.001), signed(-0.001), signed(0.5)) == ("0.00", "0.00", "0.00", "+0.50")
