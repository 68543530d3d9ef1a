"""Every row of the pages of results, and of those about claims, scenarios and boundaries, says what its file holds."""

import json
import re
from pathlib import Path
from statistics import fmean

import pytest
import scipy.stats

from docs.figures import methods
from docs.making import paper_rows
from docs.making import results_tables as tables
from scale_cl import metrics, results
from scale_cl.bench.cost import cost_of, size_of
from scale_cl.learners import method_properties
from scale_cl.training.config import resolve

ROOT = Path(__file__).parents[1]


def page(name: str) -> str:
    """A page, with ordinary spaces in its figures."""
    return (ROOT / name).read_text().replace("\u00a0", " ")


PAGES = {name: page(f"docs/{name}.md") for name in ("results", "results-appendix", "results-families")}
APPENDIX = " ".join(PAGES["results-appendix"].split())
ROW = re.compile(r"^\|(?P<cells>.*)\| (?P<files>\[\w+\]\(\.\./results/[^|]+\)) \|$")
FILE = re.compile(r"\]\(\.\./(results/[^)]+)\)")
ROWS_OF = {name: [found for line in page.splitlines() if (found := ROW.match(line))] for name, page in PAGES.items()}
ROWS = [row for rows in ROWS_OF.values() for row in rows]


def measured(values: list[float | None]) -> str:
    mean, deviation = metrics.mean_and_deviation(values)
    if mean is None:
        return "-"
    return f"{mean:.2f}" if deviation is None else f"{mean:.2f} ± {deviation:.2f}"


@pytest.mark.parametrize(
    ("stream", "package"), [("scifar100", "scifar100-off"), ("sminiimagenet", "sminiimagenet-off")]
)
def test_what_it_says_of_the_plain_implementation_is_in_its_files(stream: str, package: str) -> None:
    found = [json.loads(path.read_text()) for path in sorted((ROOT / "results/plain").glob(f"{stream}-seed-*.json"))]
    plain = {one["seeds"][0]: (one["acc"][0], one["fm"][0]) for one in found}
    ours = results.read(ROOT / f"results/norm/{package}/result.json")
    same = [(seed.acc, seed.fm) for seed in ours.seeds if seed.seed in plain]
    means = [tuple(fmean(column) for column in zip(*those, strict=True)) for those in (list(plain.values()), same)]
    for acc, fm in [*plain.values(), *means]:
        assert f"{acc:.2f} / {fm:.2f}" in APPENDIX


def test_what_it_says_of_all_seeds_on_mini_imagenet_is_in_the_two_files() -> None:
    parts = [
        results.read(ROOT / f"results/sminiimagenet/{name}/result.json") for name in ("scale", "scale-seeds-5-to-14")
    ]
    assert sorted(seed.seed for part in parts for seed in part.seeds) == list(range(15))
    acc, fm = (measured([value for part in parts for value in part.values(measure)]) for measure in ("acc", "fm"))
    assert f"{acc} / {fm}" in APPENDIX


def test_the_pages_have_rows() -> None:
    assert all(len(rows) > 5 for rows in ROWS_OF.values())


@pytest.mark.parametrize("row", ROWS, ids=lambda row: FILE.findall(row["files"])[0])
def test_a_row_agrees_with_its_files(row: re.Match[str]) -> None:
    found = [results.read(ROOT / file) for file in FILE.findall(row["files"])]
    learner, seeds, acc, fm = (cell.strip() for cell in row["cells"].split("|")[:4])
    assert {learner.split(",")[0]} == {
        result.learner.rpartition(":")[2] for result in found
    }  # of a reference, the class
    assert int(seeds) == sum(len(result.seeds) for result in found)
    for text, measure in ((acc, "acc"), (fm, "fm")):
        assert text == measured([value for result in found for value in result.values(measure)])
    for result in found:
        assert " /" not in result.environment["command"], "a command without paths of one machine"


@pytest.mark.parametrize("row", [row for row in ROWS if "/time/" in row["files"]], ids=lambda row: row["files"])
def test_seconds_are_those_of_the_file_which_was_made_alone(row: re.Match[str]) -> None:
    result = results.read(ROOT / FILE.findall(row["files"])[0])
    assert result.environment["alone"] is True
    assert row["cells"].split("|")[4].strip() == f"{result.seeds[0].seconds_train:.1f}"


@pytest.mark.parametrize("stream", ["pmnist", "scifar100"])
def test_what_it_says_of_the_last_samples_is_in_their_file(stream: str) -> None:
    found = json.loads((ROOT / f"results/kept/last-samples-{stream}.json").read_text())
    for kind, value in found["mean"].items():
        assert value == pytest.approx(fmean(one for seed in found["seeds"] for one in seed[kind]))
        assert f"{value:.3f}" in APPENDIX


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


SIZED = [row for row in ROWS_OF["results-families"] if " | +" in row["cells"]]


@pytest.mark.parametrize("row", SIZED, ids=lambda row: row["files"])
def test_sizes_and_seconds_of_the_families_are_those_of_the_file(row: re.Match[str]) -> None:
    file = ROOT / FILE.findall(row["files"])[0]
    result, config = results.read(file), resolve(file=file)
    size = size_of(config.learner_name, config.learner, config.stream.name)
    device = "GPU" if result.environment["device"].startswith("cuda") else "CPU"
    assert [cell.strip() for cell in row["cells"].split("|")[5:]] == [
        f"{size.parameters:,}",
        f"+{size.growth:,}",
        f"{size.bytes / 1024:,.0f}",
        f"{fmean(seed.seconds_train for seed in result.seeds):.1f} ({device})",
    ]


# ---- tables that are written from result files -----------------------------------------------------------------------
def test_tables_of_the_pages_are_what_the_files_hold_today() -> None:
    used = []
    for name in tables.PAGES:
        text = (ROOT / name).read_text()
        used += re.findall(r"<!-- table ([a-z-]+) -->", text)
        assert text == tables.filled(text), f"{name}: run `python -m docs.making.results_tables`"
    assert sorted(used) == sorted(tables.TABLES)


@pytest.mark.parametrize("row", tables.LEFT_OUT, ids=lambda row: row[-1])
def test_what_a_part_of_scale_brings_is_paired_by_seed(row: tuple[str, ...]) -> None:
    *_, complete, without = row
    found = [results.read(ROOT / f"results/{name}/result.json") for name in (complete, without)]
    with_it, without_it = ({seed.seed: seed.acc or 0.0 for seed in result.seeds} for result in found)
    changes = [with_it[seed] - acc for seed, acc in without_it.items()]
    interval = scipy.stats.ttest_1samp(changes, 0.0).confidence_interval(0.95)
    assert f"| {fmean(changes):+.2f} | {interval.low:+.2f} to {interval.high:+.2f} |" in PAGES["results-appendix"]


def test_pictures_of_the_methods_are_drawn_from_the_files_of_today() -> None:
    drawn = dict(methods.drawn())
    assert drawn.keys() == set((ROOT / "docs/figures/results").glob("methods-*.svg"))
    for path, content in drawn.items():
        assert content.splitlines()[-1] == path.read_bytes().splitlines()[-1], (
            "run `python -m docs.making.results_tables`"
        )


def test_lanes_beyond_the_paper_are_those_of_their_result_files() -> None:
    for stream in tables.measured("beyond"):
        rows = tables.rows_of("beyond", stream)
        for row in rows:
            seeds = [seed for path in tables.files_of("beyond", stream, row) for seed in results.read(path).seeds]
            assert [(lane["seed"], lane["acc"]) for lane in row["lanes"]] == [(seed.seed, seed.acc) for seed in seeds]


def test_methods_beyond_the_paper_cost_at_most_four_times_what_scale_costs() -> None:
    for stream in tables.measured("beyond"):
        scale = resolve(stream=stream, learner="scale", preset="paper").learner
        limit = 4 * cost_of("scale", scale, stream, tasks=5).images  # as with all tasks: enough are stored by then
        assert all(row["cost"]["images"] <= limit for row in tables.rows_of("beyond", stream))


def test_a_result_that_differs_from_the_preset_is_not_taken_for_the_papers() -> None:
    found = paper_rows.result_files(paper_rows.Case("scifar100", "scale"))
    assert found == [ROOT / "results/norm/scifar100-off/result.json"]
    assert (
        paper_rows.result_files(paper_rows.Case("scifar100", "scale", {"norm_on_memory": True, "lambda3": 0.5})) == []
    )


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
        values = result.values(NAMED[column.lower()])
        if row[column] == "-":  # joint training is tested once
            assert values == [None] * 5, column
            continue
        mean, _ = metrics.mean_and_deviation(values)
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
FIGURES = CLAIMS + PAGES["results"] + page("README.md")
PLAIN = "ScalePlainDiscriminator"
FIGURE = re.compile(r"\[(\d[^\]]+)\]\((?:\.\./)?(results/[^)]+result\.json)\)")


@pytest.mark.parametrize(("text", "file"), sorted(set(FIGURE.findall(FIGURES))))
def test_a_linked_figure_is_that_of_its_file(text: str, file: str) -> None:
    result = results.read(ROOT / file)
    if text.endswith(" s"):
        assert result.environment["alone"] is True
        assert text == f"{fmean(seed.seconds_train for seed in result.seeds):.1f} s"
        return
    means = [metrics.mean_and_deviation(result.values(measure))[0] for measure in ("acc", "fm")]
    assert text == " / ".join(f"{mean:.1f}" for mean in means if mean is not None)


ALL_ORDERS = re.compile(r"\[(\d[^\]]+)\]\((?:\.\./)?results/([a-z-]+)/(\w+)\.md\)")


@pytest.mark.parametrize(("text", "kind", "stream"), sorted(set(ALL_ORDERS.findall(FIGURES))))
def test_a_linked_figure_of_all_class_orders_is_in_its_table(text: str, kind: str, stream: str) -> None:
    rows = tables.rows_of(kind, stream)
    assert text in [tables.short(*(tables.values_of(row, measure) for measure in ("acc", "fm"))) for row in rows]


@pytest.mark.parametrize(
    ("stream", "probes", "told"),
    [
        (
            "pmnist",
            "a probe tells the task of {:.1f} % of test samples from SCALE's common features, and of {:.1f} % without",
            "it names the right task for {:.1f} % of test samples, without DER++ for {:.1f} %",
        ),
        (
            "scifar100",
            "where FiLM comes after these features: of {:.1f} % and of {:.1f} %",
            "Split CIFAR-100: for {:.1f} %, without DER++ for {:.1f} %, nearly all of the last task (98.6 %)",
        ),
    ],
)
def test_what_claims_say_of_the_adversary_is_in_their_file(stream: str, probes: str, told: str) -> None:
    aligned = json.loads((ROOT / f"results/claims/{stream}.json").read_text())["alignment"]
    known = [aligned[name]["own_discriminator_by_seed_and_task"] for name in ("scale", PLAIN)]
    assert probes.format(*(aligned[name]["probe"] for name in ("scale", "scale adversary=false"))) in CLAIMS
    assert told.format(*(fmean(map(fmean, seeds)) for seeds in known)) in CLAIMS
    assert f"chance is {aligned['scale']['chance']:.2g} %" in CLAIMS
    if stream == "scifar100":
        assert known[1][0][-1] == pytest.approx(98.6)


def test_what_claims_say_of_the_adversarys_time_is_in_its_file() -> None:
    found = json.loads((ROOT / "results/claims/pmnist.json").read_text())
    assert f"it adds {found['adversary_cost']['percent']:.0f} % to the training time" in CLAIMS
    seconds = json.loads((ROOT / "results/claims/scifar100.json").read_text())["adversary_cost"]
    assert f"{seconds['with'][0]:.0f} s with it and {seconds['without'][0]:.0f} s without" in CLAIMS


def test_growth_in_claims_is_that_of_the_methods() -> None:
    rows = {row.learner: row.growth for row in method_properties.rows(*method_properties.EXAMPLES["scifar100"])}
    for name in ("scale", "acl", "pnn"):
        assert f"{name.upper()} +{rows[name]:,}" in CLAIMS
