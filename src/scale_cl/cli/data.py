"""`scale-cl data`: which data sets the streams need, getting them, and checking what is on disk."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from scale_cl.streams.fetch import Report
    from scale_cl.streams.sources.source import Progress, Source

app = typer.Typer(help="List, get and check the data sets of the streams.", no_args_is_help=True)

Root = Annotated[
    Path | None,
    typer.Option("--data", metavar="DIR", help="Data root; SCALE_CL_DATA or the user's cache folder by default."),
]
Name = Annotated[str, typer.Argument(metavar="NAME", help="A stream, such as pmnist, or its data set, such as mnist.")]


@app.command("list")
def list_data(data: Root = None) -> None:
    """Say for each stream which data set it needs and whether it is there."""
    from scale_cl.streams import catalog, data_root
    from scale_cl.streams.catalog import SOURCES

    root = data_root(data)
    typer.echo(f"data root: {root}")
    width = max(len(name) for name in catalog.names())
    for name in catalog.names():
        source = SOURCES[catalog.entry(name).source]
        if source.embedded:
            state = "comes with scikit-learn"
        elif source.present(root):
            state = "there"
        else:
            state = "missing: " + (f"scale-cl data get {name}" if source.downloads else "place its files yourself")
        typer.echo(f"{name:{width}}  {source.title:20} {state}")


@app.command("get")
def get(name: Name, data: Root = None) -> None:
    """Download a data set from its official address, check it and put it in place; a cut download is resumed."""
    from scale_cl.errors import FetchError
    from scale_cl.streams import data_root
    from scale_cl.streams.fetch import fetch

    source = _source(name)
    if source.embedded:
        typer.echo(source.placing)
        return
    root = data_root(data)
    if not source.downloads:
        if source.present(root):
            typer.echo(f"{source.title} is in {root} already; `scale-cl data check {name}` looks at every file")
            return
        raise FetchError(f"{source.title} has no official address to download from; put it in {root}: {source.placing}")
    with _download_bars() as report:
        lines = fetch(source, root, report=report)
    for line in lines:
        typer.echo(line)


@app.command("check")
def check(name: Name, data: Root = None) -> None:
    """Look at every file of a data set: is it there, is it whole, is it the published one."""
    from scale_cl.errors import DataError
    from scale_cl.streams import data_root

    source = _source(name)
    root = Path() if source.embedded else data_root(data)
    try:
        with _bar(f"checking {source.title}") as progress:
            findings = source.check(root, progress)
    except OSError as error:
        raise DataError(f"{source.title} cannot be read in {root}: {error}") from error
    for found in findings:
        typer.echo(f"{'ok ' if found.good else 'BAD'}  {found.path}: {found.text}")
    if bad := [found for found in findings if not found.good]:
        raise DataError(
            f"{source.title} in {root} is not whole: {len(bad)} of {len(findings)} checks failed, see above"
        )


def _source(name: str) -> Source:
    """The data set of a stream, or the one of that name itself."""
    from scale_cl.streams import catalog
    from scale_cl.streams.catalog import SOURCES

    return SOURCES[name] if name in SOURCES else SOURCES[catalog.entry(name).source]


@contextlib.contextmanager
def _bar(text: str) -> Iterator[Progress | None]:
    """A progress bar on a terminal, nothing elsewhere."""
    from rich.console import Console
    from rich.progress import Progress as Bar

    console = Console(stderr=True)
    if not console.is_terminal:
        yield None
        return
    with Bar(console=console, transient=True) as bar:
        line = bar.add_task(text, total=None)
        yield lambda done, total: bar.update(line, completed=done, total=total)


@contextlib.contextmanager
def _download_bars() -> Iterator[Report | None]:
    """A bar for each file, with speed and time left, on a terminal; nothing elsewhere."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn, TransferSpeedColumn
    from rich.progress import Progress as Bar

    console = Console(stderr=True)
    if not console.is_terminal:
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Bar(*columns, TimeRemainingColumn(), console=console) as bar:
        lines = {}

        def report(file: str, done: int, total: int) -> None:
            if file not in lines:
                lines[file] = bar.add_task(file, total=total)
            bar.update(lines[file], completed=done)

        yield report
