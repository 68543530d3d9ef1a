"""Every row of docs/results.md says what the result file beside it holds."""

import re
from pathlib import Path

import pytest

from scale_cl import metrics, results

ROOT = Path(__file__).parents[1]
ROW = re.compile(r"^\|(?P<cells>.*)\| \[file\]\(\.\./(?P<file>results/[^)]+)\) \|$")
ROWS = [found for line in (ROOT / "docs/results.md").read_text().splitlines() if (found := ROW.match(line))]


def measured(values: list[float | None]) -> str:
    mean, deviation = metrics.mean_and_deviation(values)
    if mean is None:
        return "-"
    return f"{mean:.2f}" if deviation is None else f"{mean:.2f} ± {deviation:.2f}"


def test_the_page_has_rows() -> None:
    assert len(ROWS) > 5


@pytest.mark.parametrize("row", ROWS, ids=[row["file"] for row in ROWS])
def test_a_row_agrees_with_its_file(row: re.Match[str]) -> None:
    result = results.read(ROOT / row["file"])
    learner, seeds, acc, fm = (cell.strip() for cell in row["cells"].split("|")[:4])
    assert learner.split(",")[0] == result.learner
    assert int(seeds) == len(result.seeds)
    assert (acc, fm) == (measured(result.values("acc")), measured(result.values("fm")))
    assert " /" not in result.environment["command"], "a command without paths of one machine"
