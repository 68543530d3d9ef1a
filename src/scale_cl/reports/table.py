"""A table as data, before it is Markdown, LaTeX or HTML: cells with their text, their value and where it comes from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from scale_cl.reports.paper import Figure
from scale_cl.reports.rows import Row
from scale_cl.reports.seed_statistics import Summary

GAP = "–"
UNDEFINED = {  # why a measure may be none
    "acc": "not evaluated on all tasks at the end",
    "fm": "needs two tasks, and a test after each",
    "la": "needs a test after each task",
    "bwt": "needs two tasks, and a test after each",
}
Tone = Literal["", "good", "bad", "gap"]


@dataclass(frozen=True)
class Cell:
    """One cell; `value` is what it sorts by, `source` the anchor of the runs it was computed from."""

    text: str
    value: float | None = None
    best: bool = False
    tone: Tone = ""
    hover: str = ""
    source: str = ""


@dataclass(frozen=True)
class Column:
    """A heading, what it means, and whether it holds numbers."""

    title: str
    hover: str = ""
    numeric: bool = True


@dataclass(frozen=True)
class Table:
    """Rows of cells under a title, with a note on how to read them."""

    key: str
    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    note: str = ""


LEARNER = Column("Learner", numeric=False)


def name_cell(row: Row | None, name: str = "") -> Cell:
    """The name of a row, with a link to what made it; a row that was not run is a gap."""
    if row is None:
        return Cell(name, tone="gap", hover="no result with the paper's settings")
    return Cell(name or row.label, hover="what made these numbers", source=row.anchor)


def measure_cell(row: Row, measure: str) -> Cell:
    """A measure of a row over its seeds."""
    return mean_cell(row.summary(measure), source=row.anchor, why_none=UNDEFINED[measure])


def seeds_cell(row: Row) -> Cell:
    """How many seeds, and which."""
    return Cell(str(len(row.seeds)), len(row.seeds), hover=", ".join(f"seed {seed.seed}" for seed in row.seeds))


def gap(reason: str) -> Cell:
    """A number that is not there, and why."""
    return Cell(GAP, tone="gap", hover=reason)


def number(value: float, decimals: int = 2) -> str:
    """`80.70`, never `-0.00`."""
    return f"{round(value, decimals) + 0.0:.{decimals}f}"


def signed(value: float) -> str:
    """`+0.12`, `-0.30`, `0.00`."""
    shown = number(value)
    return f"+{shown}" if value > 0 and float(shown) > 0 else shown


def mean_cell(summary: Summary | None, *, source: str, why_none: str) -> Cell:
    """`80.65 ± 0.63`; without a deviation for one seed; all values on hover."""
    if summary is None:
        return replace(gap(why_none), source=source)
    return Cell(mean_text(summary), summary.mean, hover=values_text(summary), source=source)


def mean_text(summary: Summary | Figure) -> str:
    """`80.65 ± 0.63`, or `80.65` for one seed."""
    mean = number(summary.mean)
    return mean if summary.deviation is None else f"{mean} ± {number(summary.deviation)}"


def values_text(summary: Summary) -> str:
    """What stands behind a mean: interval and single values."""
    singles = ", ".join(number(value) for value in summary.values)
    if summary.interval is None:
        return f"one seed: {singles}"
    low, high = summary.interval
    return f"95 % interval {number(low)} to {number(high)}; seeds: {singles}"


def interval_cell(summary: Summary | None, *, source: str) -> Cell:
    """`80.20 to 81.10`."""
    if summary is None or summary.interval is None:
        return replace(gap("not defined" if summary is None else "one seed has no interval"), source=source)
    low, high = summary.interval
    return Cell(f"{number(low)} to {number(high)}", high - low, source=source)


def mark_best(cells: Sequence[Cell], *, highest: bool, competing: Sequence[bool]) -> list[Cell]:
    """The same cells, those with the best value (as printed) marked; nothing is best of one."""
    shown = [
        round(c.value, 2) if c.value is not None and runs else None for c, runs in zip(cells, competing, strict=True)
    ]
    known = [value for value in shown if value is not None]
    if len(known) < 2:
        return list(cells)
    best = max(known) if highest else min(known)
    return [replace(cell, best=value == best) for cell, value in zip(cells, shown, strict=True)]
