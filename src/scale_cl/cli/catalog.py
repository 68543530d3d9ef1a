"""`scale-cl list`: the streams and learners there are, a line each."""

from __future__ import annotations

import typer

list_app = typer.Typer(help="Say which streams and learners there are.", no_args_is_help=True)


@list_app.command("streams")
def list_streams() -> None:
    """Name every stream and say what its tasks are."""
    from scale_cl.streams import catalog

    _print_lines([(name, catalog.describe(name)) for name in catalog.names()])


@list_app.command("learners")
def list_learners() -> None:
    """Name every learner and say what it does, what it keeps and needs, and how large it is."""
    from scale_cl.cli.property_table import property_lines
    from scale_cl.learners import registry

    _print_lines([(name, registry.describe(name)) for name in registry.names()])
    typer.echo("")
    for line in property_lines():
        typer.echo(line)


def _print_lines(entries: list[tuple[str, str]]) -> None:
    width = max(len(name) for name, _ in entries)
    for name, description in entries:
        typer.echo(f"{name:{width}}  {description}")
