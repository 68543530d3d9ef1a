"""`scale-cl show`: the settings in force for a learner on a stream, with their meaning, as commented YAML."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from scale_cl.training.config import Config

_COMMENT_COLUMN = 34


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
    from scale_cl.training.config import resolve

    resolved = resolve(stream=stream, learner=learner, file=config, assignments=assignments or (), preset=preset)
    typer.echo(config_text(resolved))


def config_text(config: Config) -> str:
    """A config as YAML that `--config` reads: each field with its meaning, and its default if it has another value."""
    from scale_cl.settings import Settings, explain

    sections: list[tuple[str, Settings]] = [
        ("stream", config.stream),
        ("learner", config.learner),
        ("run", config.run),
    ]
    lines = [_line("preset", config.preset, "settings that the learner begins with: paper or ours").removeprefix("  ")]
    for section, settings in sections:
        lines.append(f"{section}:")
        if section == "learner":
            lines.append(_line("name", config.learner_name, "name of the learner, see `scale-cl list learners`"))
        for name, value, default, doc in explain(settings):
            changed = value != default and name != "name"
            lines.append(_line(name, value, f"{doc} (default {_scalar(default)})" if changed else doc))
    return "\n".join(lines)


def _line(name: str, value: object, comment: str) -> str:
    return f"{f'  {name}: {_scalar(value)}':{_COMMENT_COLUMN}} # {comment}"


def _scalar(value: object) -> str:
    import yaml

    plain = list(value) if isinstance(value, tuple) else value
    return yaml.safe_dump(plain, default_flow_style=True, width=1 << 20).removesuffix("\n").removesuffix("\n...")
