"""When two results are of the same run: the same stream, learner and settings, on whatever machine, seeds aside.

The one definition: experiments skip by it what is done, reports pool by it what belongs together. A setting that a
result does not name, because it came later, has its default, or what it amounted to until then.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

# Defaults, written down so that reports need not import torch; a test compares them with the settings themselves.
STREAM: dict[str, Any] = {
    "class_order": "default",
    "part": "continual",
    "scenario": "task",
    "size": None,
    "channels": 3,
    "held_out": 0.2,
}
# Settings of the section `run` that can change an accuracy. The others say where and how it is computed.
RUN: dict[str, Any] = {
    "batch_size": 10,
    "threads": 1,
    "precision": "tf32",
    "channels_last": True,
    "deterministic": False,
}
# What results of before a setting was there had, where that is not its default today.
_BEFORE: dict[str, dict[str, Any]] = {"learner": {"norm_on_memory": False}}
OFF: tuple[object, ...] = (False, None, 0, "none")  # an unknown setting with such a value is as good as not there

Config = Mapping[str, Any]  # its three sections


def identity(config: Config, tasks: int) -> str:
    """A text that is the same for configs of the same run; `tasks` is how many its stream has, named or not."""
    name, settings = _learner(config)
    return _text(config, tasks, name, _completed(name, settings))


def identities(configs: Sequence[Config], tasks: int) -> list[str]:
    """Texts that are the same where the identities of these configs are.

    What is not named makes no difference while nobody names it: only then are the learners asked for their defaults,
    which takes the time to import torch.
    """
    learners = [_learner(config) for config in configs]
    named = {(name, frozenset(settings)) for name, settings in learners}
    if len(named) > len({name for name, _ in named}):
        return [identity(config, tasks) for config in configs]
    pairs = zip(configs, learners, strict=True)
    return [_text(config, tasks, name, settings) for config, (name, settings) in pairs]


def section(config: Config, name: str) -> dict[str, Any]:
    """A section of a config, with what it had before there was a setting for it; empty if it has none."""
    found = config.get(name)
    return {**_BEFORE.get(name, {}), **found} if isinstance(found, Mapping) else {}


def _learner(config: Config) -> tuple[str, dict[str, Any]]:
    settings = section(config, "learner")
    return str(settings.pop("name", None)), settings


def _text(config: Config, tasks: int, learner: str, settings: dict[str, Any]) -> str:
    stream = STREAM | section(config, "stream") | {"tasks": tasks}
    run = RUN | section(config, "run")
    return json.dumps([stream, learner, settings, {name: run[name] for name in RUN}], sort_keys=True)


def _completed(learner: str, settings: dict[str, Any]) -> dict[str, Any]:
    """With the defaults of what is not said, and without what is unknown here and off."""
    from scale_cl.errors import ConfigError
    from scale_cl.learners import registry
    from scale_cl.settings import as_dict, build, field_names

    kind = registry.config_class(learner) if learner in registry.names() else None
    fields = field_names(kind) if kind is not None else ()
    known = {name: value for name, value in settings.items() if name in fields}
    unknown = {name: value for name, value in settings.items() if name not in fields and value not in OFF}
    if kind is not None:
        with contextlib.suppress(ConfigError):  # values that are none today are compared as they are
            known = as_dict(build(kind, known))
    return known | unknown
