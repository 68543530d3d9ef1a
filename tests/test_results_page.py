"""Every row of docs/results.md, and of the tables about claims, scenarios and boundaries, says what its file holds."""

import json
import re
from pathlib import Path
from statistics import fmean

import pytest

from scale_cl import metrics, results
from scale_cl.bench.cost import size_of
from scale_cl.learners import method_properties
from scale_cl.training.config import resolve

ROOT = Path(__file__).parents[1]
ROW = re.compile(r"^\|(?P<cells>.*)\| \[file\]\(\.\./(?P<file>results/[^)]+)\) \|$")
ROWS = [found for line in (ROOT / "docs/results.md").read_text().splitlines() if (found := ROW.match(line))]


def measured(values: list[float | None]) -> str:
    mean, deviation = metrics.mean_and_deviation(values)
    if mean is None:
        return "-"
    return f"{mean:.2f}" if deviation is None else f"{mean:.2f} ± {deviation:.2f}"


@pytest.mark.parametrize(
    ("stream", "package"), [("scifar100", "scifar100-off"), ("sminiimagenet", "sminiimagenet-off")]
)
def test_what_it_says_of_the_plain_implementation_is_in_its_files(stream: str, package: str) -> None:
    words = " ".join((ROOT / "docs/results.md").read_text().split())
    found = [json.loads(path.read_text()) for path in sorted((ROOT / "results/plain").glob(f"{stream}-seed-*.json"))]
    plain = {one["seeds"][0]: (one["acc"][0], one["fm"][0]) for one in found}
    ours = results.read(ROOT / f"results/norm/{package}/result.json")
    same = [(seed.acc, seed.fm) for seed in ours.seeds if seed.seed in plain]
    means = [tuple(fmean(column) for column in zip(*those, strict=True)) for those in (list(plain.values()), same)]
    for acc, fm in [*plain.values(), *means]:
        assert f"{acc:.2f} / {fm:.2f}" in words


def test_what_it_says_of_all_seeds_on_mini_imagenet_is_in_the_two_files() -> None:
    words = " ".join((ROOT / "docs/results.md").read_text().split())
    parts = [
        results.read(ROOT / f"results/sminiimagenet/{name}/result.json") for name in ("scale", "scale-seeds-5-to-14")
    ]
    assert sorted(seed.seed for part in parts for seed in part.seeds) == list(range(15))
    acc, fm = (measured([value for part in parts for value in part.values(measure)]) for measure in ("acc", "fm"))
    assert f"{acc} / {fm}" in words


def test_the_page_has_rows() -> None:
    assert len(ROWS) > 5


@pytest.mark.parametrize("row", ROWS, ids=[row["file"] for row in ROWS])
def test_a_row_agrees_with_its_file(row: re.Match[str]) -> None:
    result = results.read(ROOT / row["file"])
    learner, seeds, acc, fm = (cell.strip() for cell in row["cells"].split("|")[:4])
    assert learner.split(",")[0] == result.learner.rpartition(":")[2]  # of a reference, the class
    assert int(seeds) == len(result.seeds)
    assert (acc, fm) == (measured(result.values("acc")), measured(result.values("fm")))
    assert " /" not in result.environment["command"], "a command without paths of one machine"


@pytest.mark.parametrize("row", [row for row in ROWS if "/time/" in row["file"]], ids=lambda row: row["file"])
def test_seconds_are_those_of_the_file_which_was_made_alone(row: re.Match[str]) -> None:
    result = results.read(ROOT / row["file"])
    assert result.environment["alone"] is True
    assert row["cells"].split("|")[4].strip() == f"{result.seeds[0].seconds_train:.1f}"


@pytest.mark.parametrize("stream", ["pmnist", "scifar100"])
def test_what_it_says_of_the_last_samples_is_in_their_file(stream: str) -> None:
    words = " ".join((ROOT / "docs/results.md").read_text().split())
    found = json.loads((ROOT / f"results/kept/last-samples-{stream}.json").read_text())
    for kind, value in found["mean"].items():
        assert value == pytest.approx(fmean(one for seed in found["seeds"] for one in seed[kind]))
        assert f"{value:.3f}" in words


def test_the_table_of_found_boundaries_says_what_its_file_holds() -> None:
    rows = json.loads((ROOT / "results/class/boundaries.json").read_text())["rows"]
    found = {(row["learner"], row["detector"], row["signal"]): row for row in rows if row["first_seed"] == 0}
    line = re.compile(r"^\| `([a-z]+)` \| `([a-z-]+)`, `([a-z]+)` \|(.+)\|$", re.MULTILINE)
    table = line.findall((ROOT / "docs/boundaries.md").read_text())
    assert {tuple(names) for *names, _ in table} == found.keys()
    for *names, cells in table:
        row = found[tuple(names)]
        worst = min(one - other for one, other in zip(row["found"], row["told"], strict=True))
        values = [f"{fmean(row['told']):.1f}", f"{fmean(row['found']):.1f}", f"{round(worst, 1) + 0.0:.1f}"]
        values += [f"{fmean(row[name]):.2f}" for name in ("recall", "precision")]
        assert [cell.strip() for cell in cells.split("|")] == values


SIZED = [row for row in ROWS if " | +" in row["cells"]]  # tables of the families


@pytest.mark.parametrize("row", SIZED, ids=lambda row: row["file"])
def test_sizes_and_seconds_of_the_families_are_those_of_the_file(row: re.Match[str]) -> None:
    result, config = results.read(ROOT / row["file"]), resolve(file=ROOT / row["file"])
    size = size_of(config.learner_name, config.learner, config.stream.name)
    device = "GPU" if result.environment["device"].startswith("cuda") else "CPU"
    assert [cell.strip() for cell in row["cells"].split("|")[5:]] == [
        f"{size.parameters:,}",
        f"+{size.growth:,}",
        f"{size.bytes / 1024:,.0f}",
        f"{fmean(seed.seconds_train for seed in result.seeds):.1f} ({device})",
    ]


COUNTED = [row for row in ROWS if re.search(r"\| \d+\.\d \| \d+\.\d \| \d+\.\d \|", row["cells"])]  # images and cost


@pytest.mark.parametrize("row", COUNTED, ids=lambda row: row["file"])
def test_what_a_method_costs_is_in_the_table_of_its_stream(row: re.Match[str]) -> None:
    folder = Path(row["file"]).parent
    found = json.loads((ROOT / folder.parent.with_suffix(".json")).read_text())
    own = next(one for one in found["rows"] if one["learner"] == folder.name)
    cost, seconds = own["cost"], fmean(lane["seconds_train"] for lane in own["lanes"])
    kept = sum(cost[name] for name in ("samples", "logits", "importances", "networks")) / 1024
    images = [f"{cost[name]:.1f}" for name in ("forward", "backward", "images")]
    assert [cell.strip() for cell in row["cells"].split("|")[4:]] == [*images, f"{kept:,.0f}", f"{seconds:.2f}"]


# ---- docs/scenarios.md -----------------------------------------------------------------------------------------------
NAMED = {name.lower(): measure for measure, name in results.MEASURE_NAMES.items()}


def table_after(words: str) -> list[dict[str, str]]:
    """The rows of the first table after these words in docs/scenarios.md; the learner is what stands in backticks."""
    text = (ROOT / "docs/scenarios.md").read_text().partition(words)[2]
    lines = [line.strip("|").split("|") for line in re.findall(r"(?:^\|.*\|$\n)+", text, re.MULTILINE)[0].splitlines()]
    head, _, *rows = [[cell.strip() for cell in line] for line in lines]
    found = [dict(zip(head, row, strict=True)) for row in rows]
    return [row | {"learner": row["learner"].split("`")[1]} for row in found]


CLASS_ROWS = [
    (prefix, row)
    for prefix, words in (
        ("scifar100", "**Split CIFAR-100, class-incr"),
        ("split-digits", "**split-digits, class-incr"),
    )
    for row in table_after(words)
]


@pytest.mark.parametrize(
    ("prefix", "row"), CLASS_ROWS, ids=[f"{prefix}-{row['learner']}" for prefix, row in CLASS_ROWS]
)
def test_a_class_incremental_row_agrees_with_its_file(prefix: str, row: dict[str, str]) -> None:
    result = results.read(ROOT / f"results/class/{prefix}-{row['learner']}/result.json")
    assert (result.learner, len(result.seeds)) == (row["learner"], 5)
    assert row["ACC"] == results.percent(result.values("acc"))
    for column in row.keys() - {"learner", "ACC", "seconds"}:
        mean, _ = metrics.mean_and_deviation(result.values(NAMED[column.lower()]))
        assert row[column] == results.percent([mean]), column
    if row.get("seconds", "-") != "-":
        assert row["seconds"] == f"{sum(seed.seconds_train for seed in result.seeds):.0f}"


def test_the_table_of_digits_without_tasks_says_what_its_file_holds() -> None:
    found = json.loads((ROOT / "results/class/digits-without-tasks.json").read_text())["rows"]
    written = {
        row["learner"]: [
            f"{fmean(row['accuracies']):.1f}",
            f"{min(row['accuracies']):.1f}",
            f"{fmean(row['nearest_stored']):.1f}" if row["nearest_stored"] else "-",
        ]
        for row in found
    }
    table = {learner: cells for learner, *cells in map(dict.values, table_after("**Digits without tasks**"))}
    assert table == written


# ---- docs/claims.md --------------------------------------------------------------------------------------------------
CLAIMS = (ROOT / "docs/claims.md").read_text()
PLAIN = "ScalePlainDiscriminator"
FIGURE = re.compile(r"\[([^\]]+)\]\(\.\./(results/[^)]+result\.json)\)")


@pytest.mark.parametrize(("text", "file"), sorted(set(FIGURE.findall(CLAIMS))))
def test_a_figure_of_a_claim_is_that_of_its_file(text: str, file: str) -> None:
    result = results.read(ROOT / file)
    if text.endswith(" s"):
        assert result.environment["alone"] is True
        assert text == f"{fmean(seed.seconds_train for seed in result.seeds):.1f} s"
        return
    means = [metrics.mean_and_deviation(result.values(measure))[0] for measure in ("acc", "fm")]
    assert text == " / ".join(f"{mean:.1f}" for mean in means if mean is not None)


def test_what_claims_say_of_the_adversary_is_in_their_file() -> None:
    found = json.loads((ROOT / "results/claims/pmnist.json").read_text())
    aligned = found["alignment"]
    told = [fmean(map(fmean, aligned[name]["own_discriminator_by_seed_and_task"])) for name in ("scale", PLAIN)]
    probes = [f"{aligned[name]['probe']:.1f} %" for name in ("scale", "scale adversary=false")]
    assert f"{probes[0]} of test samples from SCALE's common features, and of {probes[1]} without" in CLAIMS
    assert f"chance is {aligned['scale']['chance']:g} %" in CLAIMS
    assert f"the right task for {told[0]:.1f} % of test samples, without DER++ for {told[1]:.1f} %" in CLAIMS
    assert f"it adds {found['adversary_cost']['percent']:.0f} % to the training time" in CLAIMS


def test_what_claims_say_of_the_time_of_generators_is_in_their_file() -> None:
    found = json.loads((ROOT / "results/claims/pmnist-layers.json").read_text())
    seconds = {name: fmean(each) for name, each in found["seconds"].items()}
    none, last, both, er = (f"{seconds[name]:.1f} s" for name in ("none", "last", "all", "er"))
    more = [f"(+{100 * (seconds[name] / seconds['none'] - 1):.0f} %)" for name in ("last", "all")]
    words = f"{none} without a generator, {last} with it in the last layer {more[0]}, {both} in both {more[1]}; ER {er}"
    assert words in CLAIMS
    assert f"takes {seconds['none'] / seconds['er']:.1f} times the time of ER" in CLAIMS
    assert " /" not in found["environment"]["command"]


def test_growth_in_claims_is_that_of_the_methods() -> None:
    rows = {row.learner: row.growth for row in method_properties.rows(*method_properties.EXAMPLES["scifar100"])}
    for name in ("scale", "acl", "pnn"):
        assert f"{name.upper()} +{rows[name]:,}" in CLAIMS
