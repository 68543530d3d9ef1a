"""`scale-cl data`: lists, downloads and checks the data sets of the streams."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scale_cl.cli import say
from scale_cl.cli.progress import bar

if TYPE_CHECKING:
    from scale_cl.streams.fetch import Report
    from scale_cl.streams.sources.source import Source

app = typer.Typer(help="List, download and check the data sets of the streams.", no_args_is_help=True)

Root = Annotated[
    Path | None,
    typer.Option("--data", metavar="DIR", help="Data root; by default SCALE_CL_DATA or the user's cache folder."),
]
Name = Annotated[str, typer.Argument(metavar="NAME", help="A stream, such as pmnist, or its data set, such as mnist.")]


@app.command("list")
def list_data(data: Root = None) -> None:
    """List the data set of each stream and whether it is there."""
    from scale_cl.streams import catalog, data_root

    root = data_root(data)
    say(f"data root: {root}")
    width = max(map(len, catalog.ENTRIES))
    for name in catalog.ENTRIES:
        source = catalog.source_of(name)
        if source.embedded:
            state = "comes with scikit-learn"
        elif source.present(root):
            state = "there"
        else:
            state = "missing: " + (f"scale-cl data get {name}" if source.downloads else "place its files yourself")
        say(f"{name:{width}}  {source.title:20} {state}")


@app.command("get")
def get(name: Name, data: Root = None) -> None:
    """Download a data set from its official address.

    Every file is checked; an interrupted download is resumed.
    """
    say(f"{name}: checking what is there already", err=True)  # at once: the imports below take a moment
    from scale_cl.errors import FetchError
    from scale_cl.streams import data_root
    from scale_cl.streams.fetch import fetch

    source = _source(name)
    if source.embedded:
        say(source.placing)
        return
    root = data_root(data)
    if not source.downloads:
        if source.present(root):
            say(f"{source.title} is in {root} already; `scale-cl data check {name}` looks at every file")
            return
        raise FetchError(f"{source.title} is not downloaded by scale-cl; put it in {root}: {source.placing}")
    with _download_bars(root) as report:
        lines = fetch(source, root, report=report)
    for line in lines:
        say(line)


@app.command("check")
def check(name: Name, data: Root = None) -> None:
    """Check every file of a data set.

    A file must be there, complete and the published one.
    """
    from scale_cl.errors import DataError
    from scale_cl.streams import data_root

    source = _source(name)
    root = Path() if source.embedded else data_root(data)
    try:
        with bar(f"checking {source.title}") as progress:
            findings = source.check(root, progress)
    except OSError as error:
        raise DataError(f"{source.title} cannot be read in {root}: {error}") from error
    for found in findings:
        say(f"{'ok ' if found.good else 'BAD'}  {found.path}: {found.text}")
    if bad := [found for found in findings if not found.good]:
        raise DataError(f"{source.title} in {root} is not whole: {len(bad)} of {len(findings)} checks failed")


def _source(name: str) -> Source:
    """The data set of that name, or of the stream of that name."""
    from scale_cl.streams import catalog

    return catalog.SOURCES[name] if name in catalog.SOURCES else catalog.source_of(name)


@contextlib.contextmanager
def _download_bars(root: Path) -> Iterator[Report]:
    """A progress bar per file with speed and remaining time on a terminal, one line per file elsewhere."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn, TransferSpeedColumn
    from rich.progress import Progress as Bar

    console = Console(stderr=True)
    if not console.is_terminal:
        said: set[str] = set()

        def tell(file: str, done: int, total: int) -> None:
            if file not in said:
                said.add(file)
                say(f"downloading {file}, {total / 1e6:.1f} MB, to {root}", err=True)

        yield tell
        return
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Bar(*columns, TimeRemainingColumn(), console=console) as bars:
        lines = {}

        def report(file: str, done: int, total: int) -> None:
            if file not in lines:
                lines[file] = bars.add_task(file, total=total)
            bars.update(lines[file], completed=done)

        yield report
