"""The tables of the pages of results and of the README, written from result files.

    python -m docs.making.results_tables    # write all tables, and the figures beside them

A table stands between `<!-- table NAME -->` and `<!-- end of table -->`. A stream has a table of methods on equal terms
once `scale-cl reproduce matched --out results` has written results/matched/STREAM.json, and one beyond the paper once
`scale-cl reproduce beyond --out results` has written results/beyond/STREAM.json. Rows with the preset `paper` are found
by their settings, wherever in results/ they are.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import Any

from docs.figures import methods
from docs.making.paper_rows import MAIN, MORE, RESULTS, STREAMS, result_files
from scale_cl import results
from scale_cl.reports import paper
from scale_cl.reports.seed_statistics import holm, paired, summarise

ROOT = Path(__file__).parents[2]
PAGES = ("README.md", "docs/results.md", "docs/results-appendix.md")
BOUND = "joint"
NOT_RUN = "not run yet"
_BLOCK = re.compile(r"(<!-- table ([a-z-]+) -->\n)(.*?)(<!-- end of table -->)", re.DOTALL)
Row = dict[str, Any]  # of results/matched/STREAM.json and results/beyond/STREAM.json


def main() -> None:
    """Write all tables and figures."""
    for name in PAGES:
        page = ROOT / name
        page.write_text(filled(page.read_text(encoding="utf-8")), encoding="utf-8")
    for path, picture in methods.drawn():
        path.write_bytes(picture)


def filled(text: str) -> str:
    """The page with its tables written anew."""
    return _BLOCK.sub(lambda block: f"{block[1]}\n{TABLES[block[2]]().strip()}\n\n{block[4]}", text)


def table(head: list[str], rows: list[list[str]]) -> str:
    """A Markdown table; figures are not broken into lines."""
    lines = [f"| {' | '.join(cells)} |" for cells in (head, *rows)]
    lines.insert(1, "|---" * len(head) + "|")
    return re.sub(r"(?<=[\d.]) ([±/]) (?=\d)", "\u00a0\\1\u00a0", "\n".join(lines))


def images(count: float) -> str:
    """A number of images, with one decimal if it has any."""
    return f"{round(count, 1):g}"


def mean(values: list[float | None]) -> str:
    """Mean and sample deviation; a dash if there is none."""
    found = summarise(values)
    if found is None:
        return "-"
    return f"{found.mean:.2f}" + ("" if found.deviation is None else f" ± {found.deviation:.2f}")


def short(acc: list[float | None], fm: list[float | None]) -> str:
    """`72.8 / 3.9`, or only the accuracy."""
    means = [summary.mean for summary in (summarise(acc), summarise(fm)) if summary is not None]
    return " / ".join(f"{value:.1f}" for value in means)


# ---- A: as the paper -------------------------------------------------------------------------------------------------
def _printed(target: paper.Target | None, digits: int = 2) -> str:
    if target is None:
        return ""
    if digits == 1:
        return f"{target.acc.mean:.1f} / {target.fm.mean:.1f}"
    return " / ".join(f"{value.mean:.2f} ± {value.deviation:.2f}" for value in (target.acc, target.fm))


def _pooled(paths: list[Path], measure: str) -> list[float | None]:
    return [value for path in paths for value in results.read(path).values(measure)]


def as_the_paper() -> str:
    """One row per learner: ours and the paper's on each stream."""
    rows: dict[str, list[str]] = {}
    for case in MAIN:
        paths = result_files(case)
        ours = f"[{short(_pooled(paths, 'acc'), _pooled(paths, 'fm'))}]({_link(paths[0])})" if paths else NOT_RUN
        rows.setdefault(case.learner, [case.learner]).extend([ours, _printed(case.printed, 1)])
    head = [cell for title in STREAMS.values() for cell in (title, "paper")]
    return table(["", *head], list(rows.values()))


def as_the_paper_rows() -> str:
    """All rows with the preset `paper`, with deviations; those without a result are listed below."""
    rows: list[list[str]] = []
    missing: dict[tuple[str, str], list[str]] = {}  # learners by stream and what is special
    for case in (*MAIN, *MORE):
        if paths := result_files(case):
            acc, fm = (_pooled(paths, measure) for measure in ("acc", "fm"))
            links = " ".join(f"[file]({_link(path)})" for path in paths)
            rows.append([case.name, str(len(acc)), mean(acc), mean(fm), _printed(case.printed), links])
        else:
            missing.setdefault((STREAMS[case.stream], case.label), []).append(case.learner)
    gaps: dict[str, list[str]] = {}
    for (stream, label), learners in missing.items():
        gaps.setdefault(f"{', '.join(learners)} on {stream}", []).append(label or "at all")
    text = table(["learner", "seeds", "ACC", "FM", "paper's ACC / FM", "file"], rows)
    return text + ("\n\nNot run yet:\n" if gaps else "") + "".join(f"\n- {n}: {'; '.join(w)}" for n, w in gaps.items())


def left_out() -> str:
    """SCALE complete and without a part, paired by seed: the difference and its interval, beside the paper's."""
    lines = []
    for stream, settings, letter, part, complete, without in LEFT_OUT:
        with_it, without_it = (
            {seed.seed: seed.acc for seed in results.read(RESULTS / name / "result.json").seeds if seed.acc is not None}
            for name in (complete, without)
        )
        test = paired(with_it, without_it)
        assert test is not None
        assert test.difference.interval is not None
        low, high = test.difference.interval
        printed = paper.ABLATION_TARGETS[stream].get(letter)
        gain = "" if printed is None else f"{paper.MAIN[stream]['scale'].acc.mean - printed.acc.mean:+.2f}"
        found = f"{test.difference.mean:+.2f}", f"{low:+.2f} to {high:+.2f}"
        lines.append([f"{STREAMS[stream]}, {settings}", f"{part} ({letter})", *found, gain])
    return table(["stream, settings", "left out", "complete ahead", "95 % interval", "paper"], lines)


_PARTS = (("A", "adversary", "adversary"), ("C", "generator", "generator"))
_BOTH = ("A and C", "adversary and generator", "adversary-and-generator")
_ABLATION = "ablation/scifar100/as-paper-without-"
LEFT_OUT = (  # stream, settings, the paper's letter, the part, the complete run, the run without
    *(
        (stream, "ours", letter, part, f"{stream}/scale", f"ablation/{stream}/without-{name}")
        for stream in ("scifar100", "scifar10")
        for letter, part, name in (*_PARTS, ("B", "DER++", "derpp"))
    ),
    (
        *("scifar100", "ours, ring, class order 1", "A", "adversary"),
        *("adversary/scifar100-order-1", "adversary/scifar100-order-1-without"),
    ),
    *(
        ("scifar100", "preset `paper`", letter, part, "norm/scifar100-off", f"{_ABLATION}{name}")
        for letter, part, name in (*_PARTS, _BOTH)
    ),
)


# ---- B and C ---------------------------------------------------------------------------------------------------------
def rows_of(kind: str, stream: str) -> list[Row]:
    """The rows of results/KIND/STREAM.json, named as on a page; none if there is no such file."""
    path = RESULTS / kind / f"{stream}.json"
    rows = json.loads(path.read_bytes())["rows"] if path.is_file() else []
    return [row | {"learner": methods.named(kind, row)} for row in rows if row["lanes"]]


def measured(kind: str) -> list[str]:
    """The streams that results/KIND has."""
    return [stream for stream in STREAMS if rows_of(kind, stream)]


def values_of(row: Row, measure: str) -> list[float | None]:
    """A measure in all lanes of a row."""
    return [lane[measure] for lane in row["lanes"]]


def acc_of(row: Row) -> float:
    """The mean accuracy over all lanes of a row."""
    return fmean(lane["acc"] for lane in row["lanes"])


def files_of(kind: str, stream: str, row: Row) -> list[Path]:
    """The result files of a row, found by its settings: one, or some for each class order."""
    folders = RESULTS / kind / stream, *sorted((RESULTS / kind).glob(f"{stream}-order-*"))
    found = [path for folder in folders for path in sorted(folder.rglob("result.json"))]
    return [path for path in found if _settings(path).items() <= row["settings"].items()]


def _settings(path: Path) -> Row:
    learner: Row = results.read(path).seeds[0].config["learner"]
    return learner


def _link(path: Path, base: str = "../") -> str:
    return f"{base}{path.relative_to(ROOT)}"


def _file_cell(paths: list[Path]) -> str:
    names = ["".join(re.findall(r"-order-(\d+)/", str(path))) or "file" for path in paths]
    return " ".join(f"[{name}]({_link(path)})" for name, path in zip(names, paths, strict=True))


def _leads(first: Row, others: list[Row]) -> dict[str, list[str]]:
    """How far the first row is ahead of each other, and p of a paired t-test after Holm's correction."""

    def by_lane(row: Row) -> dict[tuple[Any, int], float]:
        return {(lane["order"], lane["seed"]): lane["acc"] for lane in row["lanes"]}

    tests = [paired(by_lane(first), by_lane(row)) for row in others]
    corrected = holm([None if test is None else test.t for test in tests])
    leads = {}
    for row, test, p in zip(others, tests, corrected, strict=True):
        if test is not None:
            sure = "" if p is None else "<0.001" if p < 0.001 else f"{p:.3f}"
            leads[row["learner"]] = [f"{test.difference.mean:+.2f}", sure]
    return leads


def _seconds(paths: list[Path]) -> str | None:
    """Training seconds per seed; None for runs that shared a GPU, which get even shares of what all took."""
    made = [results.read(path) for path in paths]
    if any(run.environment["device"] != "cpu" and not run.environment.get("alone") for run in made):
        return None
    return f"{fmean(seed.seconds_train for run in made for seed in run.seeds):.0f}"


def _with_presets(stream: str, searched: list[Row]) -> dict[str, str]:
    """ACC / FM with the settings of the preset in place of those found, by learner; fewer runs are said."""
    link, runs = _link(RESULTS / "unsearched" / f"{stream}.md"), {row["learner"]: len(row["lanes"]) for row in searched}
    cells = {}
    for row in rows_of("unsearched", stream):
        fewer = f" ({len(row['lanes'])} runs)" if len(row["lanes"]) < runs.get(row["learner"], 0) else ""
        cells[row["learner"]] = f"[{short(values_of(row, 'acc'), values_of(row, 'fm'))}]({link}){fewer}"
    return cells


def _methods(kind: str, stream: str, rows: list[tuple[str, Row]], first: str) -> str:
    """A table of methods with their costs, sorted by accuracy; `first` is compared with all that are no bounds."""
    competing = [row for _, row in rows if row["settings"]["name"] != BOUND]
    reference = _row_of(competing, first)
    leads = _leads(reference, [row for row in competing if row is not reference]) if reference else {}
    presets = _with_presets(stream, [row for _, row in rows]) if kind == "matched" else {}
    lines, seconds = [], []
    for kept_in, row in sorted(rows, key=lambda pair: -acc_of(pair[1])):
        cost, paths = row["cost"], files_of(kept_in, stream, row)
        kept = sum(cost[name] for name in ("samples", "logits", "importances", "networks"))
        cells = [row["learner"] + (", no extras" if kept_in != kind else ""), str(len(row["lanes"]))]
        cells += [mean(values_of(row, measure)) for measure in ("acc", "fm", "la")]
        cells += leads.get(row["learner"], ["", ""]) if reference else []
        cells += [presets.get(row["learner"], "")] if presets else []
        cells += [f"{images(cost['forward'])} / {images(cost['backward'])}", images(cost["images"])]
        lines.append([*cells, f"{kept / 1024:,.0f}", _file_cell(paths)])
        seconds.append(_seconds(paths))
    head = ["learner", "runs", "ACC", "FM", "LA", *([f"{first} ahead", "p"] if reference else [])]
    head += ["with its preset"] if presets else []
    head += ["forward / backward", "cost", "KiB kept", "file"]
    if None not in seconds:
        for line, column in zip([head, *lines], ["seconds", *seconds], strict=True):
            line.insert(-1, str(column))
    return table(head, lines)


def matched() -> str:
    """All methods on equal terms, a table per stream."""
    parts = []
    for stream in measured("matched"):
        rows = [("matched", row) for row in rows_of("matched", stream)]
        tests = f"[all paired tests](../results/matched/{stream}.md)"
        parts.append(f"**{STREAMS[stream]}** ({tests}):\n\n{_methods('matched', stream, rows, paper.METHOD)}")
        what = f"Accuracy and cost of each method with and without extras, {STREAMS[stream]}"
        parts.append(f"![{what}](figures/results/methods-{stream}.svg){{ width=600 }}")
    return "\n\n".join(parts)


def beyond() -> str:
    """Methods with extras, a table per stream; without, those that are in both tables, and the bound."""
    parts = []
    for stream in measured("beyond"):
        rows = [("beyond", row) for row in rows_of("beyond", stream)]
        names = {paper.METHOD, BOUND, *(row["learner"].partition(",")[0] for _, row in rows)}
        rows += [("matched", row) for row in rows_of("matched", stream) if row["learner"] in names]
        parts.append(f"**{STREAMS[stream]}**:\n\n{_methods('beyond', stream, rows, 'scale-plus')}")
    return "\n\n".join(parts)


def _row_of(rows: list[Row], learner: str) -> Row | None:
    return next((row for row in rows if row["learner"] == learner), None)


def _best(rows: list[Row], *, but: tuple[str, ...]) -> Row | None:
    others = [row for row in rows if not row["learner"].startswith(but)]
    return max(others, key=acc_of, default=None)


def overview() -> str:
    """One row per stream: SCALE in A, B and C, and what is best beside it."""
    rows = []
    for stream, title in STREAMS.items():
        paths = result_files(next(case for case in MAIN if (case.stream, case.learner) == (stream, paper.METHOD)))
        cells = [short(_pooled(paths, "acc"), _pooled(paths, "fm")) or "–"]
        on_equal_terms, with_extras = rows_of("matched", stream), rows_of("beyond", stream)
        chosen = [
            _row_of(on_equal_terms, paper.METHOD),
            _best(on_equal_terms, but=(paper.METHOD, BOUND)),
            _row_of(with_extras, "scale-plus"),
            _best(with_extras, but=(paper.METHOD, BOUND)),
            _row_of(on_equal_terms, BOUND),
        ]
        for at, row in enumerate(chosen):
            named = f"{row['learner'].partition(',')[0]} " if row is not None and at in (1, 3) else ""
            cells.append("–" if row is None else named + short(values_of(row, "acc"), values_of(row, "fm")))
        rows.append([title, *cells])
    head = ["ACC / FM", "A: SCALE as the paper", "B: SCALE", "B: best other", "C: `scale-plus`", "C: best other"]
    return table([*head, "joint training (B)"], rows)


def readme() -> str:
    """The methods of a hurried reader: those of C, and some of B; for each stream that has all of these."""
    streams = [s for s in measured("beyond") if all(_row_of(rows_of("matched", s), name) for name in README_METHODS)]
    cells: dict[str, dict[str, list[str]]] = {}
    for stream in streams:
        rows = [("beyond", row) for row in rows_of("beyond", stream)]
        rows += [("matched", row) for row in rows_of("matched", stream) if row["learner"] in README_METHODS]
        for kind, row in sorted(rows, key=lambda pair: -acc_of(pair[1])):
            paths = files_of(kind, stream, row)
            path = paths[0] if len(paths) == 1 else RESULTS / kind / f"{stream}.md"
            figure = f"[{short(values_of(row, 'acc'), values_of(row, 'fm'))}]({_link(path, '')})"
            learner, comma, special = row["learner"].partition(",")
            name = f"`{learner}`{comma}{special}"
            cells.setdefault(name, {})[stream] = [figure, images(row["cost"]["images"])]
    head = [cell for stream in streams for cell in (f"{STREAMS[stream]}: ACC / FM", "cost")]
    body = [[name, *(cell for s in streams for cell in found.get(s, ["", ""]))] for name, found in cells.items()]
    return table(["method", *head], body)


README_METHODS = ("scale", "derpp", "ctn", "er", BOUND)
TABLES: dict[str, Callable[[], str]] = {
    "overview": overview,
    "paper": as_the_paper,
    "paper-rows": as_the_paper_rows,
    "left-out": left_out,
    "matched": matched,
    "beyond": beyond,
    "readme": readme,
}


if __name__ == "__main__":
    main()
