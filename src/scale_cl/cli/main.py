"""The command `scale-cl`: its sub-commands and its exit codes."""

from __future__ import annotations

import io
import logging
import os
import sys
from typing import Annotated

import typer

import scale_cl
from scale_cl.cli import say
from scale_cl.cli.bench import bench
from scale_cl.cli.catalog import list_app, show
from scale_cl.cli.data import app as data_app
from scale_cl.cli.demo import demo
from scale_cl.cli.export import export
from scale_cl.cli.memory import app as memory_app
from scale_cl.cli.model import evaluate, info, learn, predict
from scale_cl.cli.report import compare, report
from scale_cl.cli.reproduce import reproduce
from scale_cl.cli.run import resume, run
from scale_cl.errors import ConfigError, Interrupted, ScaleClError, one_line, printable

USAGE_ERROR = 2
STOPPED = 75  # EX_TEMPFAIL of sysexits.h: nothing is wrong, and the run is resumable

app = typer.Typer(
    name="scale-cl",
    help="Online continual learning: tasks arrive one after another, one pass, a small memory, no forgetting.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
for command in (run, resume, learn, predict, evaluate, info, export, reproduce, show, demo, bench, report, compare):
    app.command()(command)
app.add_typer(list_app, name="list")
app.add_typer(data_app, name="data")
app.add_typer(memory_app, name="memory")


def _print_version(asked: bool) -> None:
    if asked:
        say(f"scale-cl {scale_cl.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run the command line: an error of ours is one line on stderr and exit code 2; a stopped run has exit code 75."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without ± must not end a run
    logging.getLogger("scale_cl").addFilter(_escape)
    try:
        _check_arguments(sys.argv[1:])
        app()
    except Interrupted as stopped:
        print(f"scale-cl: {stopped}", file=sys.stderr)
        sys.exit(STOPPED)
    except ScaleClError as error:
        print(f"scale-cl: error: {' '.join(str(error).split())}", file=sys.stderr)
        sys.exit(USAGE_ERROR)
    except OSError as error:  # what no command foresees of the file system, such as a name that is too long
        where = "" if error.filename is None else f"{printable(os.fsdecode(error.filename))}: "
        print(f"scale-cl: error: {where}{error.strerror or one_line(error)}", file=sys.stderr)
        sys.exit(USAGE_ERROR)


def _check_arguments(arguments: list[str]) -> None:
    """Refuse an argument without content: an empty path would mean the current directory."""
    for before, argument in zip(["", *arguments], arguments, strict=False):
        if argument == "" or (argument.startswith("--") and argument.endswith("=") and argument.count("=") == 1):
            option = argument.rstrip("=") or (before if before.startswith("-") else "an argument")
            raise ConfigError(f"{option} is empty; give a value, or leave it out")


def _escape(record: logging.LogRecord) -> bool:
    """Escape what a terminal would obey in the names of a warning."""
    record.msg, record.args = printable(record.getMessage()), ()
    return True
