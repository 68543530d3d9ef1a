"""`scale-cl report`: from result files to tables, figures and a page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def report(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Where the results are; all below it are read.")],
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Where to write; DIR itself if not given.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Only the path of the page, and gaps.")] = False,
) -> None:
    """Make a report of all results below a directory, beside the paper's numbers.

    Writes report.html (one page that needs no network), tables.md, tables.tex and figures/ (PDF and SVG). What cannot
    be read is named as a gap, in the report and on stderr.
    """
    from scale_cl.reports import collect, write_report

    written = write_report(collect(directory), out or directory)
    for gap in written.gaps:
        typer.echo(f"gap: {gap.name}: {gap.reason}", err=True)
    if not quiet:
        figures = sum(path.suffix == ".pdf" for path in written.files)
        typer.echo(f"wrote tables.md, tables.tex and {figures} figures to {out or directory}", err=True)
    typer.echo(written.page)
