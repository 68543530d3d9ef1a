"""The page of all commands, made when the manual is built from what the commands say of themselves."""

from __future__ import annotations

from typing import Any

import typer.main
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

PAGE = "reference/commands.md"
_OPENING = """# Commands

Made from the commands themselves: `scale-cl COMMAND --help` says the same. An error is one line and exit code 2; a run
that is stopped exits with 75 and can be gone on with.
"""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the page to those that are written by hand."""
    files.append(File.generated(config, PAGE, content=page()))
    return files


def page() -> str:
    """The page as Markdown."""
    from scale_cl.cli.main import app

    group = typer.main.get_command(app)
    return "\n".join([_OPENING, *(_part(f"scale-cl {name}", command) for name, command in _commands(group))])


def _commands(group: Any) -> list[tuple[str, Any]]:
    """Every command that does something, those of groups under both names."""
    found: list[tuple[str, Any]] = []
    for name, command in group.commands.items():
        inner = _commands(command) if hasattr(command, "commands") else []
        found += [(f"{name} {sub}", part) for sub, part in inner] if inner else [(name, command)]
    return found


def _part(name: str, command: Any) -> str:
    shown = [parameter for parameter in command.params if parameter.name != "help"]
    arguments = [p for p in shown if p.param_type_name == "argument"]
    options = [p for p in shown if p.param_type_name == "option"]
    usage = " ".join([name, *(["[OPTIONS]"] if options else []), *(_metavar(p) for p in arguments)])
    lines = [f"## {name}", "", f"    {usage}", "", " ".join((command.help or "").split("\n\n")[0].split()), ""]
    lines += [" ".join(more.split()) + "\n" for more in (command.help or "").split("\n\n")[1:]]
    if shown:
        lines += ["| option | meaning |", "|---|---|"]
        lines += [f"| `{_written(p)}` | {_cell(_meaning(p))} |" for p in [*arguments, *options]]
        lines.append("")
    return "\n".join(lines)


def _metavar(parameter: Any) -> str:
    given = parameter.metavar or parameter.name.upper()
    return str(given if parameter.required or given.startswith("[") else f"[{given}]")


def _written(parameter: Any) -> str:
    """As it is typed: `--seeds N`, `-q, --quiet`, `DIR`."""
    if parameter.param_type_name == "argument":
        return _metavar(parameter)
    names = ", ".join(sorted(parameter.opts, key=len))
    return names if parameter.is_flag else f"{names} {parameter.metavar or 'TEXT'}"


def _meaning(parameter: Any) -> str:
    text = " ".join((parameter.help or "").split())
    plain = isinstance(parameter.default, str | int | float) and not isinstance(parameter.default, bool)
    return f"{text} Default: `{parameter.default}`." if plain else text


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
