"""The command line: thin typer commands over the package; what needs torch is imported when a command runs."""

from __future__ import annotations

from typing import Annotated

import typer

from scale_cl.errors import printable

# Options of commands that read a run: code from outside is never imported because a file names it.
StreamReference = Annotated[
    str | None, typer.Option("--stream", metavar="NAME", help="Its stream, if module:function or file.py:function.")
]
LearnerReference = Annotated[
    str | None, typer.Option("--learner", metavar="NAME", help="Its learner, if module:Class or file.py:Class.")
]
BackboneReference = Annotated[
    str | None,
    typer.Option("--backbone", metavar="NAME", help="Its backbone, if module:function or file.py:function."),
]
Seed = Annotated[int | None, typer.Option(metavar="S", help="Seed; needed if the run has several.")]


def counted(number: int, what: str) -> str:
    """`1 task`, `2 tasks`."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def say(text: object = "", *, err: bool = False) -> None:
    """Print lines; of names in them, what a terminal would obey is escaped."""
    for line in str(text).split("\n"):
        typer.echo(printable(line), err=err)
