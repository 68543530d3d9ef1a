"""`scale-cl compare`: several runs side by side in the terminal."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.table import Table

    from scale_cl.reports import Section


def compare(
    directories: Annotated[
        list[Path], typer.Argument(metavar="DIR...", help="Where the results are; all below them are read.")
    ],
) -> None:
    """Show the results below directories side by side, with the accuracy over the tasks so far as a sparkline."""
    from rich.console import Console

    from scale_cl.reports import collect, sections

    collection = collect(*directories)
    parts = sections(collection)
    for gap in [*collection.gaps, *(gap for section in parts for gap in section.gaps)]:
        typer.echo(f"gap: {gap.name}: {gap.reason}", err=True)
    console = Console()
    tables = [_table(section, longest=30 if console.width >= 100 else 12) for section in parts]
    if not console.is_terminal:  # a file is as wide as it needs to be
        wide = console.options.update(max_width=1000)
        console.width = max(console.width, *(console.measure(table, options=wide).maximum for table in tables))
    for table in tables:
        console.print(table)
    typer.echo("Percent, mean ± deviation over seeds; s: seconds of training a seed.")


def _table(section: Section, *, longest: int) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from scale_cl.reports.charts import accuracies_so_far, mean_curve
    from scale_cl.reports.sparkline import sparkline
    from scale_cl.results import percent

    curves = [[s.mean if s else None for s in mean_curve(row, accuracies_so_far)] for row in section.rows]
    known = [value for curve in curves for value in curve if value is not None]
    low, high = min(known, default=0.0), max(known, default=0.0)
    table = Table(title=Text(section.title, style="bold"), title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("learner", overflow="fold")
    for name in ("seeds", "ACC", "FM", "LA", "s"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column(f"tasks, {low:.0f}–{high:.0f} %" if known else "tasks", no_wrap=True)
    for row, curve in zip(section.rows, curves, strict=True):
        measures = [percent([getattr(seed, name) for seed in row.seeds]) for name in ("acc", "fm", "la")]
        seconds = row.summary("seconds_train")
        shown = "-" if seconds is None else f"{seconds.mean:.1f}"
        drawn = Text(sparkline(curve, low, high, longest=longest))
        table.add_row(Text(row.label), str(len(row.seeds)), *measures, shown, drawn)
    return table
