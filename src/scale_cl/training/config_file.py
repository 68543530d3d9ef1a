"""Reading a config file: YAML of a page or so, or the `result.json` of an earlier run.

Only plain values are read. Aliases, duplicate keys and large files are refused, and an error names the line.
"""

from __future__ import annotations

import json
import re
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Any

import yaml

from scale_cl.errors import ConfigError
from scale_cl.settings import suggest

_LARGEST = 1 << 20  # bytes


def read_config_file(path: Path, sections: Sequence[str]) -> tuple[dict[str, dict[str, Any]], str | None]:
    """The values of each section, and the preset if one is named; `stream: pmnist` is short for a section's name."""
    content = _parse(path, _read(path))
    if content is None:
        content = {}
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: expected the sections {', '.join(sections)}, found {type(content).__name__}")
    if "schema" in content and isinstance(content.get("config"), dict):
        content = {**content["config"], "preset": content.get("preset")}  # the result of an earlier run
    preset = content.pop("preset", None)
    if not isinstance(preset, str | None):
        raise ConfigError(f"{path}: 'preset' must be a name, found {type(preset).__name__}")
    return {section: _section(path, content, section, sections) for section in sections}, preset


def _section(path: Path, content: dict[Any, Any], section: str, sections: Sequence[str]) -> dict[str, Any]:
    for name in content:
        if name not in sections:
            raise ConfigError(f"{path}: unknown section {name!r}; {suggest(str(name), sections)}")
    values = content.get(section)
    if values is None:
        return {}
    if isinstance(values, str) and section != "run":
        return {"name": values}
    if not isinstance(values, dict) or not all(isinstance(k, str) for k in values):
        raise ConfigError(f"{path}: section {section!r} must hold named values, such as `{section}: {{...}}`")
    return dict(values)


def _read(path: Path) -> str:
    try:
        if path.stat().st_size > _LARGEST:
            raise ConfigError(f"{path} is larger than {_LARGEST} bytes; a config is a page or so of YAML")
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"config file {path} does not exist") from None
    except OSError as error:
        raise ConfigError(f"config file {path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"config file {path} is not UTF-8 text: byte {error.start}") from None


def _parse(path: Path, text: str) -> Any:
    if path.suffix == ".json":
        try:
            return json.loads(text)
        except (ValueError, RecursionError) as error:
            where = f", line {error.lineno}: {error.msg}" if isinstance(error, json.JSONDecodeError) else ""
            raise ConfigError(f"{path} is not JSON{where}") from None
    try:
        return yaml.load(text, Loader=_PlainLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f", line {mark.line + 1}" if mark else ""
        raise ConfigError(f"{path}{where}: {error.problem or 'not YAML'}") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: not YAML: {' '.join(str(error).split())}") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: not YAML: {error}") from None


class _PlainLoader(yaml.SafeLoader):
    """SafeLoader without aliases and duplicate keys, that reads words and numbers as YAML 1.2 does."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise yaml.composer.ComposerError(None, None, "aliases (*name) are not read; write the value out", mark)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[Hashable] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, Hashable):
                raise yaml.constructor.ConstructorError(None, None, f"{key!r} is not a name", key_node.start_mark)
            if key in seen:
                raise yaml.constructor.ConstructorError(None, None, f"{key!r} is given twice", key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep=deep)


# YAML 1.1 takes yes, no, on and off for booleans and 1e-3 for text.
_PlainLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:bool"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_PlainLoader.add_implicit_resolver(
    "tag:yaml.org,2002:bool", re.compile(r"(true|True|TRUE|false|False|FALSE)$"), list("tTfF")
)
_PlainLoader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
)
