"""`scale-cl list` and `scale-cl show`: the streams and learners by name, their properties and their settings."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scale_cl.cli import say

if TYPE_CHECKING:
    from collections.abc import Callable

    from scale_cl.training.config import Config

list_app = typer.Typer(help="List the streams or the learners.", no_args_is_help=True)

_COMMENT_COLUMN = 34
_TITLES = {
    "episodic_memory": "memory",
    "task_specific_parameters": "task-specific",
    "task_at_inference": "task id",
    "history_in_training": "history",
    "history_in_testing": "at test",
}
_APPLIES = ("scenarios", "boundaries", "labels")
_MEANING = (
    "scenarios: of streams that it applies to (task, domain, class);",
    "boundaries: needed if it must be told where tasks begin and end;",
    "labels: few if it trains without them and is told those of a few samples when a task ends;",
    "memory: stores samples; task-specific: has parameters of a single task, besides its head;",
    "task id: needs the task to predict; history: stores earlier parameters, gradients or logits for training;",
    "at test: stores earlier parameters for prediction; parameters: of all networks, also those used in training only.",
    "On a stream with one head for all tasks, a task id matters only to learners with task-specific parameters.",
)


@list_app.command("streams")
def list_streams() -> None:
    """List all streams, including those of other packages."""
    from scale_cl.streams import catalog

    _print_lines(catalog.names(), catalog.describe)


@list_app.command("learners")
def list_learners() -> None:
    """List all learners, and what each stores and needs.

    One line each, then a table of what they store, what they need and how large they are.
    """
    from scale_cl.learners import registry

    _print_lines(registry.names(), registry.describe)
    say("")
    for line in property_lines():
        say(line)


def property_lines() -> list[str]:
    """The table of properties from the paper's supplement, one line per learner, with notes where ours differs."""
    from scale_cl.learners import method_properties, registry

    cells = [["learner", *_APPLIES, *_TITLES.values()]]
    for stream in method_properties.EXAMPLES:
        cells[0] += [f"{stream}: parameters", "per task"]
    ticks, missing = [], []
    for name in registry.names():
        try:
            kind = registry.entry(name).kind
            rows = [
                method_properties.rows(spec, classes, [name])[0] if spec.scenario in kind.scenarios else None
                for spec, classes in method_properties.EXAMPLES.values()
            ]
        except Exception as error:  # one broken package must not hide the other learners
            if name not in registry.OUTSIDE.names():
                raise
            missing.append(f"* {name} is not in the table: {' '.join(str(error).split()) or type(error).__name__}")
            continue
        one = next(filter(None, reversed(rows)), method_properties.Row(name, kind.traits, {}, 0, 0))
        ticks.append(one)
        marks = [("yes" if said else "-") + "*" * (trait in one.differs) for trait, said in asdict(one.traits).items()]
        numbers = [t for row in rows for t in ((f"{row.parameters:,}", f"+{row.growth:,}") if row else ("-", "-"))]
        applies = [
            "all" if len(kind.scenarios) == 3 else "/".join(kind.scenarios),
            "needed" if kind.needs_boundaries else "-",
            "all" if kind.needs_labels else "few",
        ]
        cells.append([name, *applies, *marks, *numbers])
    widths = [max(len(line[column]) for line in cells) for column in range(len(cells[0]))]
    lines = ["  ".join(_padded(line, widths)).rstrip() for line in cells]
    differing = [(row.learner, _TITLES[column], why) for row in ticks for column, why in row.differs.items()]
    notes = [f"* {learner}, {title}: {why}; the paper says otherwise" for learner, title, why in differing]
    return [*lines, "", *_MEANING, *notes, *missing]


def _padded(line: list[str], widths: list[int]) -> list[str]:
    """Words aligned left, numbers aligned right."""
    words = 1 + len(_APPLIES) + len(_TITLES)
    sides = [str.ljust] * words + [str.rjust] * (len(line) - words)
    return [side(text, width) for side, text, width in zip(sides, line, widths, strict=True)]


def _print_lines(names: list[str], describe: Callable[[str], str]) -> None:
    from scale_cl.errors import ConfigError

    width = max(map(len, names))
    for name in names:
        try:
            description = describe(name)
        except ConfigError as error:  # one broken package must not hide the others
            description = f"cannot be used: {error}"
        say(f"{name:{width}}  {description}")


def show(
    learner: Annotated[
        str | None, typer.Argument(help="Method: a name, module:Class or file.py:Class; scale if not given.")
    ] = None,
    stream: Annotated[
        str | None, typer.Option(metavar="NAME", help="Name of a stream, see `scale-cl list streams`.")
    ] = None,
    preset: Annotated[str | None, typer.Option(metavar="paper|ours", help="The learner's settings [ours].")] = None,
    config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="YAML file with sections stream, learner, run.")
    ] = None,
    assignments: Annotated[
        list[str] | None, typer.Option("--set", metavar="FIELD=VALUE", help="One setting; may be repeated.")
    ] = None,
) -> None:
    """Print all settings: values, meaning and legal values.

    The output is YAML that `run --config` reads.
    """
    from scale_cl.training.config import resolve

    resolved = resolve(stream=stream, learner=learner, file=config, assignments=assignments or (), preset=preset)
    say(config_text(resolved))


def config_text(config: Config) -> str:
    """A config as YAML that `--config` reads: each field with its meaning, legal values, and default if it differs."""
    from scale_cl.settings import Settings, explain

    parts: dict[str, Settings] = {"stream": config.stream, "learner": config.learner, "run": config.run}
    lines = [_line("preset", config.preset, "settings that the learner begins with: paper or ours").removeprefix("  ")]
    for section, settings in parts.items():
        lines.append(f"{section}:")
        if section == "learner":
            doc = "name of the learner, see `scale-cl list learners`; or module:Class, file.py:Class"
            lines.append(_line("name", config.learner_name, doc))
        for name, value, default, doc, legal in explain(settings):
            changed = value != default and name != "name"
            texts = [doc, legal and f"[{legal}]", f"(default {_scalar(default)})" if changed else ""]
            lines.append(_line(name, value, " ".join(filter(None, texts))))
    return "\n".join(lines)


def _line(name: str, value: object, comment: str) -> str:
    return f"{f'  {name}: {_scalar(value)}':{_COMMENT_COLUMN}} # {comment}"


def _scalar(value: object) -> str:
    import yaml

    plain = list(value) if isinstance(value, tuple) else value
    return yaml.safe_dump(plain, default_flow_style=True, width=1 << 20).removesuffix("\n").removesuffix("\n...")
