"""Every row of docs/results.md says what the result file beside it holds."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

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


def test_what_it_says_of_the_plain_implementation_is_in_its_files() -> None:
    words = " ".join((ROOT / "docs/results.md").read_text().split())
    found = [json.loads(path.read_text()) for path in sorted((ROOT / "results/plain").glob("scifar100-seed-*.json"))]
    package = results.read(ROOT / "results/scifar100/scale-20-seeds-again/result.json")
    same = [seed for seed in package.seeds if seed.seed in [plain["seeds"][0] for plain in found]]
    each = [f"{plain['acc'][0]:.2f} / {plain['fm'][0]:.2f}" for plain in found]
    assert f"gave {', '.join(each[:-1])} and {each[-1]} for" in words
    for acc, fm in ((_mean(found, "acc"), _mean(found, "fm")), (_mean(same, "acc"), _mean(same, "fm"))):
        assert f"{acc:.2f} / {fm:.2f}" in words


def _mean(of: Sequence[Any], measure: str) -> float:
    return fmean(one[measure][0] if isinstance(one, dict) else getattr(one, measure) for one in of)


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
