"""`scale-cl report` and `scale-cl compare`: finished results as a page with tables and figures, or in the terminal."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scale_cl.cli import say

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.table import Table

    from scale_cl.reports import Section

_BLOCKS = "▁▂▃▄▅▆▇█"
_MISSING = "·"


def report(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Directory below which all results are read.")],
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Directory to write to; default: DIR itself.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only the path of the page, and gaps.")] = False,
) -> None:
    """Write a report on all results below a directory.

    The results are compared with the paper's numbers.

    Writes report.html (one self-contained page), tables.md, tables.tex and figures/ (PDF and SVG). Files that cannot
    be read are listed as gaps, in the report and on stderr.
    """
    from scale_cl.reports import collect, write_report

    written = write_report(collect(directory), out or directory)
    for gap in written.gaps:
        say(f"gap: {gap.name}: {gap.reason}", err=True)
    if not quiet:
        figures = sum(path.suffix == ".pdf" for path in written.files)
        say(f"wrote tables.md, tables.tex and {figures} figures to {out or directory}", err=True)
    say(written.page)


def compare(
    directories: Annotated[
        list[Path], typer.Argument(metavar="DIR...", help="Directories with results; all results below them are read.")
    ],
) -> None:
    """Show results side by side in the terminal.

    The accuracy after each task is a sparkline. Measures at any time have columns where results hold them.
    """
    from rich.console import Console

    from scale_cl.reports import collect, sections

    collection = collect(*directories)
    parts = sections(collection)
    for gap in [*collection.gaps, *(gap for section in parts for gap in section.gaps)]:
        say(f"gap: {gap.name}: {gap.reason}", err=True)
    console = Console()
    tables = [_terminal_table(section, longest=30 if console.width >= 100 else 12) for section in parts]
    if not console.is_terminal:  # a file may be as wide as needed
        wide = console.options.update(max_width=1000)
        console.width = max(console.width, *(console.measure(table, options=wide).maximum for table in tables))
    for table in tables:
        console.print(table)
    say("Percent, mean ± deviation over seeds; s: training seconds per seed.")


def _terminal_table(section: Section, *, longest: int) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from scale_cl.reports.charts import accuracies_so_far, mean_curve
    from scale_cl.results import MEASURE_NAMES, OPTIONAL_MEASURES, percent

    curves = [[s.mean if s else None for s in mean_curve(row, accuracies_so_far)] for row in section.rows]
    known = [value for curve in curves for value in curve if value is not None]
    low, high = min(known, default=0.0), max(known, default=0.0)
    table = Table(title=Text(section.title, style="bold"), title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("learner", overflow="fold")
    anytime = [
        m for m in OPTIONAL_MEASURES if any(m in seed.optional_measures for row in section.rows for seed in row.seeds)
    ]
    measures = ("acc", "fm", "la", *anytime)
    for name in ("seeds", *(MEASURE_NAMES[measure] for measure in measures), "s"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column(f"tasks, {low:.0f}–{high:.0f} %" if known else "tasks", no_wrap=True)
    for row, curve in zip(section.rows, curves, strict=True):
        values = [percent([getattr(seed, measure) for seed in row.seeds]) for measure in measures]
        seconds = row.summary("seconds_train")
        shown = "-" if seconds is None else f"{seconds.mean:.1f}"
        drawn = Text(sparkline(curve, low, high, longest=longest))
        table.add_row(Text(row.label), str(len(row.seeds)), *values, shown, drawn)
    return table


def sparkline(values: Sequence[float | None], low: float, high: float, *, longest: int = 30) -> str:
    """A curve as text: a block per value, scaled from `low` to `high`, or a dot for None; long curves are thinned."""
    if len(values) > longest:
        values = [values[round(at * (len(values) - 1) / (longest - 1))] for at in range(longest)]
    return "".join(_MISSING if value is None else _block(value, low, high) for value in values)


def _block(value: float, low: float, high: float) -> str:
    share = (value - low) / (high - low) if high > low else 1.0
    return _BLOCKS[min(len(_BLOCKS) - 1, max(0, int(share * len(_BLOCKS))))]
