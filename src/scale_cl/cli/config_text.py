"""A config as commented YAML: what `show` and `--dry-run` print, and what `--config` reads back."""

from __future__ import annotations

from typing import TYPE_CHECKING

import yaml

from scale_cl.settings import Settings, explain

if TYPE_CHECKING:
    from scale_cl.training.config import Config

_COMMENT_COLUMN = 34


def config_text(config: Config) -> str:
    """The three sections, every field with its meaning, and its default where another value is in force."""
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
    plain = list(value) if isinstance(value, tuple) else value
    return yaml.safe_dump(plain, default_flow_style=True, width=1 << 20).removesuffix("\n").removesuffix("\n...")
