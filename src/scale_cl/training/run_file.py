"""`DIR/run.json`: what a run was asked to do, written before it begins and removed when its result is there.

Whoever finds it knows that the run is not finished, and has all that is needed to finish it.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scale_cl import files
from scale_cl.errors import CheckpointError
from scale_cl.training.config import SECTIONS, Config, resolve

SCHEMA = 1
RUN_NAME = "run.json"
_LARGEST = 1 << 20  # bytes


@dataclass(frozen=True)
class Asked:
    """A run as it was asked for."""

    config: Config
    root: Path | None  # where the data lies, if that was said
    arguments: list[str] | None  # of the command line, without the program


def write(directory: Path, asked: Asked) -> None:
    """Note that a run begins in `directory`."""
    root = asked.root or os.environ.get("SCALE_CL_DATA")
    content = {
        "schema": SCHEMA,
        "kind": "started",
        "config": asked.config.as_dict(),
        "data": None if root is None else str(Path(root).absolute()),
        "arguments": asked.arguments,
    }
    files.write_json(directory / RUN_NAME, content)


def remove(directory: Path) -> None:
    """Note that nothing is left to be done in `directory`."""
    (directory / RUN_NAME).unlink(missing_ok=True)


def read(directory: Path) -> Asked:
    """The unfinished run in `directory`; CheckpointError if there is none, or its note is damaged, foreign or newer."""
    path = directory / RUN_NAME
    try:
        if path.stat().st_size > _LARGEST:
            raise CheckpointError(f"{path} is larger than {_LARGEST} bytes: it is not the note of a run")
        content = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise CheckpointError(f"{directory} holds no unfinished run: it has no {RUN_NAME}") from None
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise CheckpointError(f"{path} is damaged: it is not JSON") from None
    schema = content.get("schema") if isinstance(content, dict) else None
    if not isinstance(schema, int) or isinstance(schema, bool) or schema < 1 or content.get("kind") != "started":
        raise CheckpointError(f"{path} is not the note of a run of scale-cl: it has no schema version and kind")
    if schema > SCHEMA:
        raise CheckpointError(f"{path} has schema {schema}, this version reads up to {SCHEMA}: use a newer scale-cl")
    data, arguments = content.get("data"), content.get("arguments")
    if not isinstance(data, str | None) or not isinstance(arguments, list | None):
        raise CheckpointError(f"{path} is damaged: 'data' or 'arguments' is of another type")
    named = None if arguments is None else [str(a) for a in arguments]
    return Asked(config_of(content.get("config"), path), None if data is None else Path(data), named)


def config_of(content: Any, path: Path) -> Config:
    """The config whose `as_dict` is `content`; ConfigError for an unknown or wrong value."""
    whole = isinstance(content, dict) and all(isinstance(content.get(section), dict) for section in SECTIONS)
    if not whole:
        raise CheckpointError(f"{path} is damaged: its config does not have the sections {', '.join(SECTIONS)}")
    return resolve(options={f"{section}.{k}": v for section in SECTIONS for k, v in content[section].items()})
