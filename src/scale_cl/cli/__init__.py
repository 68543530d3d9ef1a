"""The command line: thin typer commands over the package; what needs torch is imported when a command runs."""

from __future__ import annotations

import typer

from scale_cl.errors import printable


def say(text: object = "", *, err: bool = False) -> None:
    """Print lines; of names in them, what a terminal would obey is escaped."""
    for line in str(text).split("\n"):
        typer.echo(printable(line), err=err)
