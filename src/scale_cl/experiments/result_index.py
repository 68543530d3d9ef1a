"""What is already done: every valid result below a directory, by what it is a result of."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scale_cl import results
from scale_cl.errors import ResultError
from scale_cl.experiments.identity import identity
from scale_cl.results import RESULT_NAME, SCHEMA, SEEDS_FOLDER, SeedResult

ALONE = "alone"  # key in a result's environment: nothing ran beside it, so its times count


@dataclass(frozen=True)
class Found:
    """One seed of a result on disk."""

    seed: SeedResult
    folder: Path
    environment: dict[str, Any]

    @property
    def alone(self) -> bool:
        """Whether its times count."""
        return bool(self.environment.get(ALONE))


@dataclass
class Finished:
    """Results by the identity of their config and by seed."""

    by_key: dict[str, dict[int, Found]] = field(default_factory=dict)

    def of(self, key: str) -> dict[int, Found]:
        """The seeds that are there for a config."""
        return self.by_key.get(key, {})

    def take(self, folder: Path) -> None:
        """Read the result in `folder`; one that is missing, damaged, foreign or newer counts as not done."""
        try:
            result = results.read(folder)
        except ResultError:
            return
        for seed in result.seeds:
            self.by_key.setdefault(identity(seed.config, len(seed.tasks)), {}).setdefault(
                seed.seed, Found(seed, folder, result.environment)
            )


def scan(directory: Path, *, alone: str | None = None) -> Finished:
    """All results below `directory` that were not made alone, or those made alone on `alone`: "cpu" or "cuda"."""
    finished = Finished()
    for folder, folders, names in os.walk(directory):
        folders[:] = sorted(name for name in folders if name != SEEDS_FOLDER)
        if RESULT_NAME in names and _made_alone_on(Path(folder)) == alone:
            finished.take(Path(folder))
    return finished


def must_stay(folder: Path) -> bool:
    """Whether `folder` holds something that a run must not write over: a valid result, or one of a newer version."""
    try:
        results.read(folder)
    except ResultError:
        content = _content(folder)
        schema = content.get("schema")
        return isinstance(schema, int) and schema > SCHEMA
    return True


def _made_alone_on(folder: Path) -> str | None:
    environment = _content(folder).get("environment")
    if not isinstance(environment, dict) or not environment.get(ALONE):
        return None
    return str(environment.get("device")).partition(":")[0]


def _content(folder: Path) -> dict[str, Any]:
    try:
        content = json.loads((folder / RESULT_NAME).read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}
