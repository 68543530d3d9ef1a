"""The tables of docs/performance.md say what the recorded benchmarks and results hold."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from scale_cl import metrics, results

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/performance.md").read_text()
LINES = [[cell.strip() for cell in line.strip("|").split("|")] for line in PAGE.splitlines() if line.startswith("|")]
HISTORY: list[dict[str, Any]] = [
    json.loads(line) for line in (ROOT / "benchmarks/history.jsonl").read_text().splitlines()
]


def entries(part: str, device: str) -> list[dict[str, Any]]:
    """What the history has of one part on one kind of device, oldest first."""
    return [one for one in HISTORY if part in one and one["environment"]["device"].startswith(device)]


def test_steps_on_a_cpu_are_those_of_the_last_two_entries() -> None:
    before, now = (entries("steps", "cpu")[at]["steps"] for at in (-2, -1))
    networks = {"pmnist": "MLP", "scifar100": "ResNet"}
    for old, new in zip(before, now, strict=True):
        name = f"{new['learner'].upper()}, {networks[new['stream']]} (`{new['stream']}`)"
        row = next(cells for cells in LINES if cells[0] == name)
        assert row[3:] == [f"{old['ratio_updates']:.2f}", f"{new['ratio_updates']:.2f}"]
        assert float(row[4]) <= 1.1 * float(row[3]), "no slower than before, within the noise of the machine"


def test_ratios_to_plain_scripts_and_avalanche_are_those_of_the_file() -> None:
    found = json.loads((ROOT / "benchmarks/peers.json").read_text())["scale_cl_to"]
    names = {
        "er-3": "ER, three updates per batch",
        "er": "ER, one update per batch",
        "derpp": "DER++, one update per batch",
    }
    for work, name in names.items():
        row = next(cells for cells in LINES if cells[0] == name)
        beside = f"{found[work]['avalanche']:.2f}" if "avalanche" in found[work] else "-"
        assert (row[1], row[3]) == (f"{found[work]['plain']:.2f}", beside)
        assert row[2] == "-" or found[work]["plain"] <= float(row[2])


def test_growth_is_that_of_the_last_entry_of_each_learner() -> None:
    last = {
        (row["learner"], row["stream"], row["tasks"]): row for one in entries("growth", "cpu") for row in one["growth"]
    }
    for (learner, stream, tasks), row in last.items():
        expected = [f"{row['ratio']:.2f}", f"{row['bytes_per_task'] / 1024:.0f}", str(row["unexplained_bytes"])]
        assert [f"{learner}, `{stream}`", str(tasks), *expected] in LINES


def test_steps_on_a_gpu_are_those_of_the_last_entry() -> None:
    entry = entries("steps", "cuda")[-1]
    assert f"`{entry['environment']['command']}`" in " ".join(PAGE.split())
    for row in entry["steps"]:
        of_all = [f"{one['steps_per_second']:.0f}" for one in entry["seeds"] if one["learner"] == row["learner"]]
        step = [f"{row['step_ms']:.2f}", str(row["images"]), f"{row['floor_ms']:.2f}", str(row["updates"])]
        assert [row["learner"], *step, f"{row['ratio_updates']:.2f}", *of_all] in LINES


@pytest.mark.parametrize("cells", [c for c in LINES if len(c) == 9 and c[-1].startswith("[file](../results/")])
def test_seconds_on_a_gpu_are_those_of_the_file(cells: list[str]) -> None:
    found = re.fullmatch(r"\[file\]\(\.\./(.*)\)", cells[-1])
    assert found is not None
    result = results.read(ROOT / found[1])
    _, seeds, wall, after_reading, aim, training, evaluation, _, _ = cells
    seconds = (result.seconds_wall, result.seconds_wall - result.seconds_load)
    assert (wall, after_reading) == tuple(f"{one:.1f}" for one in seconds)
    assert int(seeds) == len(result.seeds)
    assert aim == "-" or seconds[1] <= float(aim)
    parts = [sum(getattr(seed, part) for seed in result.seeds) for part in ("seconds_train", "seconds_eval")]
    assert [training, evaluation] == [f"{one:.1f}" for one in parts]


def test_accuracies_by_precision_are_those_of_the_files() -> None:
    where = {"tf32": "kept/scifar100-ring", "bf16": "precision/scifar100-bf16", "fp32": "precision/scifar100-fp32"}
    for precision, folder in where.items():
        result = results.read(ROOT / f"results/{folder}/result.json")
        assert result.seeds[0].config["run"]["precision"] == precision
        row = next(cells for cells in LINES if cells[0] == precision)
        assert folder in row[-1]
        for cell, measure in zip(row[1:3], ("acc", "fm"), strict=True):
            mean, deviation = metrics.mean_and_deviation(result.values(measure)[:5])
            assert cell == f"{mean:.2f} ± {deviation:.2f}"


def test_seeds_without_graphs_have_the_matrices_they_have_in_graphs() -> None:
    together = {
        seed.seed: seed.matrix for seed in results.read(ROOT / "results/kept/scifar100-ring-5-seeds/result.json").seeds
    }
    for number, matrix in together.items():
        alone = results.read(ROOT / f"results/speed/eager-seed-{number}/result.json")
        assert "run.capture=false" in alone.environment["command"]
        assert [seed.matrix for seed in alone.seeds] == [matrix]


@pytest.mark.parametrize("stream", ["pmnist", "scifar10", "scifar100", "sminiimagenet"])
def test_times_of_one_run_after_another_are_those_of_the_files(stream: str) -> None:
    heads = next(cells for cells in LINES if cells[0] == "ours")
    row = next(cells for cells in LINES if cells[-1] == f"`results/time/{stream}`")
    for head, cell in zip(heads[1:-1], row[1:-1], strict=True):
        result = results.read(ROOT / f"results/time/{stream}/{head.lower()}/seed-0/result.json")
        assert (result.learner, result.stream) == (head.lower(), stream)
        assert result.environment["alone"] is True
        assert " /" not in result.environment["command"]
        assert cell == f"{result.seeds[0].seconds_train:.1f}"
