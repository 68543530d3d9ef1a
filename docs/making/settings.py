"""The page of all settings, made when the manual is built from the dataclasses that declare them."""

from __future__ import annotations

import dataclasses
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

PAGE = "reference/settings.md"
_OPENING = """# Settings

Made from the code: each setting is declared once, with its default, its range and its meaning. A YAML file for
`--config` has them under `stream:`, `learner:` and `run:`; `--set lambda3=0.1` names a setting of the learner,
`--set run.batch_size=20` one of another section. `scale-cl show LEARNER --stream STREAM` prints those in force.
"""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the page to those that are written by hand."""
    files.append(File.generated(config, PAGE, content=page()))
    return files


def page() -> str:
    """The page as Markdown."""
    from scale_cl.learners import LearnerConfig, MemoryConfig
    from scale_cl.learners import registry as learners
    from scale_cl.training.config import RunSettings, StreamSettings

    parts = [
        _OPENING,
        "## The section stream\n",
        _table(StreamSettings),
        "## The section run\n",
        _table(RunSettings),
        "## The section learner\n",
        "### Every learner\n",
        _table(LearnerConfig),
        "### Every learner with a memory\n",
        _table(MemoryConfig, beyond=LearnerConfig),
    ]
    for name in learners.names():
        kind = learners.config_class(name)
        shared = MemoryConfig if issubclass(kind, MemoryConfig) else LearnerConfig
        also = "Also those of every learner" + (
            " and of every learner with a memory." if shared is MemoryConfig else "."
        )
        parts += [f"### {name}\n", f"{learners.describe(name)}. {also}\n", _table(kind, beyond=shared), _paper(name)]
    return "\n".join(parts)


def _table(kind: type[Any], *, beyond: type[Any] | None = None) -> str:
    """Every field, or those that `beyond` does not have in the same way."""
    from scale_cl.settings import explain

    known = {} if beyond is None else {f.name: (f.default, f.metadata) for f in dataclasses.fields(beyond)}
    legal = {row.name: row.legal or "text" for row in explain(kind())}
    rows = []
    for field in dataclasses.fields(kind):
        if known.get(field.name) != (field.default, field.metadata):
            rows.append(f"| `{field.name}` | `{_default(field.default)}` | {legal[field.name]} | {_doc(field)} |")
    return "\n".join(["| setting | default | values | meaning |", "|---|---|---|---|", *rows, ""])


def _default(value: object) -> str:
    if value is None:
        return "none"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _doc(field: dataclasses.Field[Any]) -> str:
    return str(field.metadata.get("doc", "")).replace("|", "\\|")


def _paper(name: str) -> str:
    """What is set otherwise on which streams."""
    from scale_cl.learners import registry as learners
    from scale_cl.streams import catalog as streams

    lines = []
    for stream in streams.names():
        values = learners.preset_settings(name, stream)
        if values:
            lines.append(f"- on `{stream}`: " + ", ".join(f"`{key}` {value}" for key, value in values.items()))
    return "\n".join(["Unless you say otherwise:\n", *lines, ""]) if lines else ""
