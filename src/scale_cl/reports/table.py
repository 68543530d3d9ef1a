"""Tables as data, and as Markdown and LaTeX: a cell holds its text, its sort value and the runs it comes from."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from scale_cl.reports.paper import PrintedValue
from scale_cl.reports.sections import ResultRow, lane
from scale_cl.reports.seed_statistics import Summary
from scale_cl.results import ANYTIME_MEASURES

GAP = "–"
UNDEFINED = {  # reasons why a measure has no value
    "acc": "not evaluated on all tasks at the end",
    "fm": "needs two tasks, and a test after each",
    "la": "needs a test after each task",
    "bwt": "needs two tasks, and a test after each",
    **dict.fromkeys(ANYTIME_MEASURES, "needs evaluations within tasks (run.evaluate_every) of tasks one after another"),
    "prequential_acc": "needs predictions before learning (run.prequential)",
}
Tone = Literal["", "good", "bad", "gap"]
_MARKDOWN_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~&$])")
_LATEX_SPECIAL = {
    "\\": r"\textbackslash{}",
    **{character: f"\\{character}" for character in "{}$&#%_"},
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\textquotedbl{}",
    "±": r"$\pm$",
    "×": r"$\times$",
    "↑": r"$\uparrow$",
    "↓": r"$\downarrow$",
    "λ": r"$\lambda$",
    "–": "--",
}


@dataclass(frozen=True)
class TableCell:
    """One cell; `value` is its sort key, `source` the anchor of the runs behind it."""

    text: str
    value: float | None = None
    best: bool = False
    tone: Tone = ""
    hover: str = ""
    source: str = ""


@dataclass(frozen=True)
class Column:
    """A heading, its explanation, and whether the column holds numbers."""

    title: str
    hover: str = ""
    numeric: bool = True


@dataclass(frozen=True)
class Table:
    """Rows of cells with a title and an explanatory note."""

    key: str
    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[TableCell, ...], ...]
    note: str = ""


LEARNER = Column("Learner", numeric=False)


def name_cell(row: ResultRow | None, name: str = "") -> TableCell:
    """The name of a row, linked to its provenance; a gap if the row was not run."""
    if row is None:
        return TableCell(name, tone="gap", hover="no result with these settings")
    return TableCell(name or row.label, hover="provenance of these numbers", source=row.anchor)


def measure_cell(row: ResultRow, measure: str) -> TableCell:
    """A measure of a row, over its seeds."""
    return mean_cell(row.summary(measure), source=row.anchor, why_none=UNDEFINED[measure])


def seeds_cell(row: ResultRow) -> TableCell:
    """The number of seeds, with the class orders if there are several; the seeds themselves on hover."""
    several = len(row.orders) > 1
    text = f"{len(row.seeds)}, orders {', '.join(map(str, row.orders))}" if several else str(len(row.seeds))
    each = [f"order {order} seed {seed}" if several else f"seed {seed}" for order, seed in map(lane, row.seeds)]
    return TableCell(text, len(row.seeds), hover=", ".join(each))


def gap(reason: str) -> TableCell:
    """A missing number; the reason on hover."""
    return TableCell(GAP, tone="gap", hover=reason)


def number(value: float, decimals: int = 2) -> str:
    """`80.70`, never `-0.00`."""
    return f"{round(value, decimals) + 0.0:.{decimals}f}"


def signed(value: float) -> str:
    """`+0.12`, `-0.30`, `0.00`."""
    shown = number(value)
    return f"+{shown}" if value > 0 and float(shown) > 0 else shown


def mean_cell(summary: Summary | None, *, source: str, why_none: str) -> TableCell:
    """`80.65 ± 0.63`, or `80.65` for one seed; the values of all seeds on hover."""
    if summary is None:
        return replace(gap(why_none), source=source)
    return TableCell(mean_text(summary), summary.mean, hover=values_text(summary), source=source)


def mean_text(summary: Summary | PrintedValue) -> str:
    """`80.65 ± 0.63`, or `80.65` for one seed."""
    mean = number(summary.mean)
    return mean if summary.deviation is None else f"{mean} ± {number(summary.deviation)}"


def values_text(summary: Summary) -> str:
    """The confidence interval and the single values behind a mean."""
    singles = ", ".join(number(value) for value in summary.values)
    if summary.interval is None:
        return f"one seed: {singles}"
    low, high = summary.interval
    return f"95 % interval {number(low)} to {number(high)}; seeds: {singles}"


def interval_cell(summary: Summary | None, *, source: str) -> TableCell:
    """`80.20 to 81.10`."""
    if summary is None or summary.interval is None:
        return replace(gap("not defined" if summary is None else "one seed has no interval"), source=source)
    low, high = summary.interval
    return TableCell(f"{number(low)} to {number(high)}", high - low, source=source)


def mark_best(cells: Sequence[TableCell], *, highest: bool, competing: Sequence[bool]) -> list[TableCell]:
    """Mark the cells with the best value as printed; a single value is never marked."""
    values = [cell.value if runs else None for cell, runs in zip(cells, competing, strict=True)]
    shown = [None if value is None else round(value, 2) for value in values]
    known = [value for value in shown if value is not None]
    if len(known) < 2:
        return list(cells)
    best = max(known) if highest else min(known)
    return [replace(cell, best=value == best) for cell, value in zip(cells, shown, strict=True)]


def markdown_escape(text: str) -> str:
    """Escape text for Markdown."""
    return _MARKDOWN_SPECIAL.sub(r"\\\1", " ".join(text.split()))


def markdown_lines(table: Table) -> list[str]:
    """The table as lines of Markdown."""
    heads = [markdown_escape(column.title) for column in table.columns]
    rules = ["---:" if column.numeric else "---" for column in table.columns]
    cells = [[f"**{markdown_escape(c.text)}**" if c.best else markdown_escape(c.text) for c in r] for r in table.rows]
    return [f"| {' | '.join(row)} |" for row in (heads, rules, *cells)]


def latex_escape(text: str) -> str:
    """Escape text for LaTeX; characters that plain LaTeX lacks become question marks."""
    one_line = " ".join(text.split())
    plain = "".join(_LATEX_SPECIAL.get(c, c if c.isascii() and c.isprintable() else "?") for c in one_line)
    return re.sub(r"(?<![\w-])-(?=\d)", "$-$", plain)


def latex_table(table: Table, of: str, key: str) -> str:
    """The table with booktabs: best values bold, deviations behind ±; `of` is appended to its caption."""
    columns = "".join("r" if column.numeric else "l" for column in table.columns)
    body = [
        r"\begin{table}[t]",
        r"  \centering",
        rf"  \caption{{{latex_escape(table.title + of)}. {latex_escape(table.note)}}}".replace(". }", ".}"),
        rf"  \label{{tab:{key}-{table.key}}}",
        r"  \resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%",
        rf"  \begin{{tabular}}{{{columns}}}",
        r"    \toprule",
        f"    {_latex_row([latex_escape(column.title) for column in table.columns])}",
        r"    \midrule",
        *(f"    {_latex_row([_latex_cell(cell) for cell in row])}" for row in table.rows),
        r"    \bottomrule",
        r"  \end{tabular}}",
        r"\end{table}",
        "",
    ]
    return "\n".join(body)


def _latex_cell(cell: TableCell) -> str:
    mean, plus_minus, deviation = cell.text.partition(" ± ")
    shown = rf"\textbf{{{latex_escape(mean)}}}" if cell.best else latex_escape(mean)
    return rf"{shown} {{\scriptsize $\pm$ {latex_escape(deviation)}}}" if plus_minus else shown


def _latex_row(cells: list[str]) -> str:
    return " & ".join(cells) + r" \\"
