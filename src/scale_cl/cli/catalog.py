"""`scale-cl list` and `scale-cl show`: the streams and learners by name, their properties and their settings."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from scale_cl.learners.method_properties import Row

list_app = typer.Typer(help="List the streams or the learners.", no_args_is_help=True)

_TITLES = {
    "episodic_memory": "memory",
    "task_specific_parameters": "task-specific",
    "task_at_inference": "task id",
    "history_in_training": "history",
    "history_in_testing": "at test",
}
_MEANING = (
    "memory: stores samples; task-specific: has parameters of a single task, besides its head;",
    "task id: needs the task to predict; history: stores earlier parameters, gradients or logits for training;",
    "at test: stores earlier parameters for prediction; parameters: of all networks, also those used in training only.",
    "On a stream with one head for all tasks, a task id matters only to learners with task-specific parameters.",
)


@list_app.command("streams")
def list_streams() -> None:
    """List all streams with one line each; installed streams of other packages included."""
    from scale_cl.errors import ConfigError
    from scale_cl.streams import catalog

    def described(name: str) -> str:
        try:
            return catalog.describe(name)
        except ConfigError as error:  # one broken package must not hide the other streams
            return f"cannot be used: {error}"

    _print_lines([(name, described(name)) for name in catalog.names()])


@list_app.command("learners")
def list_learners() -> None:
    """List all learners with one line each, then a table of what they store, what they need and how large they are."""
    from scale_cl.learners import registry

    _print_lines([(name, registry.describe(name)) for name in registry.names()])
    typer.echo("")
    for line in property_lines():
        typer.echo(line)


def show(
    learner: Annotated[
        str | None, typer.Argument(help="Name of a learner, see `scale-cl list learners`; scale if not given.")
    ] = None,
    stream: Annotated[str | None, typer.Option(help="Name of a stream, see `scale-cl list streams`.")] = None,
    config: Annotated[Path | None, typer.Option(help="YAML file with sections stream, learner, run.")] = None,
    assignments: Annotated[
        list[str] | None, typer.Option("--set", metavar="FIELD=VALUE", help="One setting; may be repeated.")
    ] = None,
) -> None:
    """Print the settings in force and their meaning, as YAML that `run --config` reads."""
    from scale_cl.cli.config_text import config_text
    from scale_cl.training.config import resolve

    resolved = resolve(stream=stream, learner=learner, file=config, assignments=assignments or ())
    typer.echo(config_text(resolved))


def property_lines() -> list[str]:
    """The table of properties from the paper's supplement, one line per learner, with notes where ours differs."""
    from scale_cl.learners import method_properties

    streams = list(method_properties.EXAMPLES)
    tables = [method_properties.rows(*method_properties.EXAMPLES[stream]) for stream in streams]
    ticks = tables[streams.index("scifar100")]
    cells = [["learner", *_TITLES.values()]]
    cells += [[row.learner, *_ticks(row)] for row in ticks]
    for stream, table in zip(streams, tables, strict=True):
        cells[0] += [f"{stream}: parameters", "per task"]
        for line, row in zip(cells[1:], table, strict=True):
            line += [f"{row.parameters:,}", f"+{row.growth:,}"]
    widths = [max(len(line[column]) for line in cells) for column in range(len(cells[0]))]
    lines = ["  ".join(_padded(line, widths)).rstrip() for line in cells]
    notes = [
        f"* {row.learner}, {_TITLES[c]}: {why}; the paper says otherwise"
        for row in ticks
        for c, why in row.differs.items()
    ]
    return [*lines, "", *_MEANING, *notes]


def _ticks(row: Row) -> list[str]:
    return [("yes" if said else "-") + "*" * (column in row.differs) for column, said in asdict(row.traits).items()]


def _padded(line: list[str], widths: list[int]) -> list[str]:
    """Words aligned left, numbers aligned right."""
    words = 1 + len(_TITLES)
    return [
        f"{text:{'<' if at < words else '>'}{width}}" for at, (text, width) in enumerate(zip(line, widths, strict=True))
    ]


def _print_lines(entries: list[tuple[str, str]]) -> None:
    width = max(len(name) for name, _ in entries)
    for name, description in entries:
        typer.echo(f"{name:{width}}  {description}")
