"""`scale-cl show`: the settings in force for a learner on a stream, with their meaning."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def show(
    learner: Annotated[
        str | None, typer.Argument(help="Name of a learner, see `scale-cl list learners`; scale if not given.")
    ] = None,
    stream: Annotated[str | None, typer.Option(help="Name of a stream, see `scale-cl list streams`.")] = None,
    preset: Annotated[
        str | None, typer.Option(metavar="paper|ours", help="The learner's settings; ours if not given.")
    ] = None,
    config: Annotated[Path | None, typer.Option(help="YAML file with sections stream, learner, run.")] = None,
    assignments: Annotated[
        list[str] | None, typer.Option("--set", metavar="FIELD=VALUE", help="One setting; may be repeated.")
    ] = None,
) -> None:
    """Print the settings in force and their meaning, as YAML that `run --config` reads."""
    from scale_cl.cli.config_text import config_text
    from scale_cl.training.config import resolve

    resolved = resolve(stream=stream, learner=learner, file=config, assignments=assignments or (), preset=preset)
    typer.echo(config_text(resolved))
