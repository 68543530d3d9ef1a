"""Which run a result belongs to, and which runs are finished.

The identity of a run is its stream, learner and settings on whatever machine, seeds aside. It is defined here only:
experiments skip what is finished by it, and reports pool by it. A setting that a result does not name, because it is
newer than the result, has its default, or the value that corresponds to the behaviour of that time.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scale_cl import files, results
from scale_cl.errors import ResultError
from scale_cl.results import RESULT_NAME, SCHEMA, SEEDS_FOLDER, SeedResult

DIVERGED_NAME = "diverged.json"  # in place of a result
ALONE = "alone"  # key in a result's environment: nothing ran beside it, so its times count
# Defaults, repeated here so that reports need not import torch; a test compares them with the settings.
_ARRIVAL = {"boundaries": "told", "train_share": 1.0, "schedule": "steps", "blur": 0.0, "width": 0.5}
_DETECTION = {"detector": "page-hinkley", "sensitivity": 1.0, "signal": "loss", "spacing": 10}
_READING = {"keep": "auto", "workers": None, "on_error": "stop", "window": None}
_IMAGES = {"size": None, "channels": 3, "held_out": 0.2}
STREAM: dict[str, Any] = {
    "class_order": "default",
    "part": "continual",
    "scenario": "default",
    **_ARRIVAL,
    **_DETECTION,
    **_READING,
    **_IMAGES,
}
# Settings of the section `run` that can change an accuracy; the others only say where and how it is computed.
_ARITHMETIC = {"threads": 1, "precision": "tf32", "channels_last": True, "deterministic": False}
RUN: dict[str, Any] = {"batch_size": 10, **_ARITHMETIC}
# The behaviour of results older than a setting, where it is not the default of today.
_BEFORE: dict[str, dict[str, Any]] = {"learner": {"norm_on_memory": False}}
OFF: tuple[object, ...] = (False, None, 0, "none")  # an unknown setting with one of these values is ignored

ConfigDict = Mapping[str, Any]  # the three sections of a config


def identity(config: ConfigDict, tasks: int) -> str:
    """A text that is equal for configs of the same run; `tasks` is the number of tasks, named in the config or not."""
    name, settings = _learner(config)
    return _text(config, tasks, name, _completed(name, settings))


def identities(configs: Sequence[ConfigDict], tasks: int) -> list[str]:
    """Texts that are equal where the identities of these configs are.

    While all configs of a learner name the same settings, its defaults do not matter and torch is not imported.
    """
    learners = [_learner(config) for config in configs]
    named = {(name, frozenset(settings)) for name, settings in learners}
    if len(named) > len({name for name, _ in named}):
        return [identity(config, tasks) for config in configs]
    pairs = zip(configs, learners, strict=True)
    return [_text(config, tasks, name, settings) for config, (name, settings) in pairs]


def config_section(config: ConfigDict, name: str) -> dict[str, Any]:
    """A section of a config, completed for results older than a setting; empty if there is no such section.

    A stream's default scenario was called "task" in earlier results; where a stream can be task-incremental, that is
    still its default.
    """
    found = config.get(name)
    if not isinstance(found, Mapping):
        return {}
    renamed = {"scenario": "default"} if name == "stream" and found.get("scenario") == "task" else {}
    return {**_BEFORE.get(name, {}), **found, **renamed}


def _learner(config: ConfigDict) -> tuple[str, dict[str, Any]]:
    settings = config_section(config, "learner")
    return str(settings.pop("name", None)), settings


def _text(config: ConfigDict, tasks: int, learner: str, settings: dict[str, Any]) -> str:
    stream = STREAM | config_section(config, "stream") | {"tasks": tasks}
    run = RUN | config_section(config, "run")
    return json.dumps([stream, learner, settings, {name: run[name] for name in RUN}], sort_keys=True)


def _completed(learner: str, settings: dict[str, Any]) -> dict[str, Any]:
    """The settings with defaults filled in, without unknown settings that are off."""
    from scale_cl.errors import ConfigError
    from scale_cl.learners import registry
    from scale_cl.settings import as_dict, build, field_names

    kind = None
    if learner in registry.names():
        with contextlib.suppress(ConfigError):  # the package of an installed learner may be broken by now
            kind = registry.config_class(learner)
    fields = field_names(kind) if kind is not None else ()
    known = {name: value for name, value in settings.items() if name in fields}
    unknown = {name: value for name, value in settings.items() if name not in fields and value not in OFF}
    if kind is not None:
        with contextlib.suppress(ConfigError):  # values that are not valid today are compared as they are
            known = as_dict(build(kind, known))
    return known | unknown


@dataclass(frozen=True)
class Found:
    """One seed of a result on disk."""

    seed: SeedResult
    folder: Path
    environment: dict[str, Any]

    @property
    def alone(self) -> bool:
        """Whether nothing ran beside it, so that its times count."""
        return bool(self.environment.get(ALONE))


@dataclass
class Finished:
    """Finished results by the identity of their config and by seed."""

    by_key: dict[str, dict[int, Found]] = field(default_factory=dict)

    def of(self, key: str) -> dict[int, Found]:
        """The finished seeds of a config."""
        return self.by_key.get(key, {})

    def take(self, folder: Path) -> None:
        """Add the result in `folder`; a missing, damaged, foreign or newer one counts as not done."""
        try:
            result = results.read(folder)
        except ResultError:
            return
        for seed in result.seeds:
            self.by_key.setdefault(identity(seed.config, len(seed.tasks)), {}).setdefault(
                seed.seed, Found(seed, folder, result.environment)
            )


def scan(directory: Path, *, alone: str | None = None) -> Finished:
    """All results below `directory` that were not run alone, or those run alone on `alone` ("cpu" or "cuda")."""
    finished = Finished()
    for folder, folders, names in os.walk(directory):
        folders[:] = sorted(name for name in folders if name != SEEDS_FOLDER)
        if RESULT_NAME in names and _made_alone_on(Path(folder)) == alone:
            finished.take(Path(folder))
    return finished


def note_divergence(folder: Path, key: str, why: str) -> None:
    """Note in a run's folder that the run of this identity has diverged, and will again."""
    files.write_json(folder / DIVERGED_NAME, {"schema": SCHEMA, "kind": "diverged", "why": why, "identity": key})


def has_diverged(folder: Path, key: str) -> bool:
    """Whether the run of this identity is known to diverge."""
    return _content(folder, DIVERGED_NAME).get("identity") == key


def must_stay(folder: Path) -> bool:
    """Whether `folder` holds a valid result, or one of a newer version, which must not be overwritten."""
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


def _content(folder: Path, name: str = RESULT_NAME) -> dict[str, Any]:
    try:
        content = json.loads((folder / name).read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}
