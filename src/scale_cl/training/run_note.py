"""`DIR/run.json`: what a run was asked to do, written before it begins and removed when its result is there.

Whoever finds it knows that the run is not finished, and has all that is needed to finish it.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from scale_cl import files
from scale_cl.errors import CheckpointError
from scale_cl.json_format import Format
from scale_cl.streams.sources.source import data_root
from scale_cl.training.config import SECTIONS, Config, resolve

SCHEMA = 1
RUN_NAME = "run.json"
_LARGEST = 1 << 20  # bytes


@dataclass(frozen=True)
class RunRequest:
    """A run as it was asked for."""

    config: Config
    root: Path | None  # where the data lies, if that was said
    arguments: list[str] | None  # of the command line, without the program


def write(directory: Path, asked: RunRequest) -> None:
    """Note that a run begins in `directory`."""
    root = asked.root or os.environ.get("SCALE_CL_DATA")
    content = {
        "schema": SCHEMA,
        "kind": "started",
        "config": asked.config.as_dict(),
        "here": str(Path.cwd()),
        "data": None if root is None else str(data_root(root).absolute()),
        "arguments": asked.arguments,
    }
    files.write_json(directory / RUN_NAME, content)


def remove(directory: Path) -> None:
    """Note that nothing is left to be done in `directory`."""
    (directory / RUN_NAME).unlink(missing_ok=True)


def read(directory: Path) -> RunRequest:
    """The unfinished run in `directory`; CheckpointError if there is none, or its note is damaged, foreign or newer."""
    path = directory / RUN_NAME
    missing = "{path.parent} holds no unfinished run: it has no {path.name}"
    content = Format("the note of a run", "started", SCHEMA, CheckpointError, _LARGEST, missing=missing).read(path)
    here, data, arguments = (content.get(key) for key in ("here", "data", "arguments"))
    if not isinstance(here, str | None) or not isinstance(data, str | None) or not isinstance(arguments, list | None):
        raise CheckpointError(f"{path} is damaged: 'here', 'data' or 'arguments' is of another type")
    named = None if arguments is None else [str(a) for a in arguments]
    config = _found_again(config_of(content.get("config"), path), here)
    return RunRequest(config, None if data is None else Path(data), named)


def _found_again(config: Config, here: str | None) -> Config:
    """The config with images of a relative path where they were, if they are still there; else where they are now."""
    there = config if here is None else replace(config, base=Path(here))
    own = there.own_data
    with contextlib.suppress(OSError):
        if own is not None and own.path.exists():
            return there
    return config


def config_of(content: Any, path: Path) -> Config:
    """The config whose `as_dict` is `content`; ConfigError for an unknown or wrong value."""
    whole = isinstance(content, dict) and all(isinstance(content.get(section), dict) for section in SECTIONS)
    if not whole:
        raise CheckpointError(f"{path} is damaged: its config does not have the sections {', '.join(SECTIONS)}")
    return resolve(options={f"{section}.{k}": v for section in SECTIONS for k, v in content[section].items()})
