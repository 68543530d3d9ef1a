"""A matched comparison: lanes are paired by class order and seed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from scale_cl.bench import matched
from scale_cl.bench.cost import Cost
from scale_cl.bench.matched import MatchedRow, cost_table, write_matched
from scale_cl.results import SeedResult

COST = Cost(60, 60, samples=2048, logits=1024, importances=0, networks=1024)


def lane(learner: str, seed: int, acc: float) -> SeedResult:
    matrix: list[list[float | None]] = [[acc, None], [acc - 2, acc + 2]]
    return SeedResult("scifar100", learner, seed, {}, ["one", "two"], matrix, 3.0, 0.1)


def row(learner: str, accuracies: dict[tuple[int, int], float]) -> MatchedRow:
    lanes = {at: lane(learner, at[1], acc) for at, acc in accuracies.items()}
    return MatchedRow(learner, lanes, None if learner == "mir" else COST, {"name": learner})


GRID = [(order, seed) for order in (3, 4, 5) for seed in (200, 201, 202)]
ROWS = [
    row("scale", {at: 70.0 + i for i, at in enumerate(GRID)}),
    row("er", {at: 69.0 + i + (i % 2) for i, at in enumerate(reversed(GRID[1:]))}),  # another order, one is missing
    row("mir", {GRID[0]: 60.0}),
    row("joint", {at: 90.0 for at in GRID}),
]


def test_a_row_is_over_all_orders_and_seeds_with_its_cost() -> None:
    cells = {body[0].text: [cell.text for cell in body[1:]] for body in cost_table(ROWS).rows}
    assert cells["scale"] == [
        "9",
        "74.00 ± 2.74",
        "2.00 ± 0.00",
        "75.00 ± 2.74",
        *("60.0", "60.0", "180.0"),
        "4",
        "3.00 ± 0.00",
    ]
    assert cells["mir"][4:8] == ["–"] * 4
    (best,) = [body[0].text for body in cost_table(ROWS).rows if body[2].best]
    assert best == "scale"  # joint training does not compete


def test_differences_are_of_the_same_order_and_seed() -> None:
    table = matched.tests_table(ROWS)
    assert table is not None
    assert [body[0].text for body in table.rows] == ["er", "mir"]
    er, mir = table.rows
    ours, theirs = ROWS[0].values("acc"), ROWS[1].values("acc")
    assert er[1].value == 8
    assert er[2].value == pytest.approx(sum(ours[at] - theirs[at] for at in GRID[1:]) / 8)
    assert mir[2].text == "+10.00"
    assert mir[3].value is None  # one lane gives no test, so that Holm's method corrects for one
    assert er[4].value == er[3].value
    assert matched.tests_table(ROWS[1:]) is None
    plus = matched.tests_table([row("scale-plus", {at: 75.0 for at in GRID}), *ROWS[1:]])
    assert plus is not None
    assert plus.columns[0].title == "scale-plus against"


def test_it_is_written_as_a_table_and_as_numbers(tmp_path: Path) -> None:
    written = write_matched("scifar100", ROWS, tmp_path / "matched" / "scifar100")
    text = written[0].read_text()
    assert "| scale | 9 | **74.00 ± 2.74** |" in text
    assert "## Paired tests" in text
    content = json.loads(written[1].read_text())
    assert [one["learner"] for one in content["rows"]] == ["scale", "er", "mir", "joint"]
    assert content["rows"][0]["cost"]["images"] == 180
    assert content["rows"][0]["lanes"][4]["order"] == 4
    assert content["rows"][0]["acc_difference"] is None
