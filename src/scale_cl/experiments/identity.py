"""When two configs ask for the same numbers: the same stream, learner and settings, on whatever machine."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from scale_cl.errors import ConfigError
from scale_cl.learners import catalog as learners
from scale_cl.settings import Settings, as_dict, build
from scale_cl.training.config import RunSettings, StreamSettings

# Settings of the section `run` that can change an accuracy. The others say where and how it is computed.
COUNTING = ("batch_size", "threads", "precision", "channels_last", "deterministic")


def identity(config: Mapping[str, Any]) -> str:
    """A text that is the same for configs that differ in seeds and in machine settings only.

    A setting that a result does not name, because it came later, has its default.
    """
    stream, learner, run = (dict(config.get(section) or {}) for section in ("stream", "learner", "run"))
    name = learner.pop("name", None)
    if name in learners.names():
        learner = _completed(learners.config_class(name), learner)
    stream, run = _completed(StreamSettings, stream), _completed(RunSettings, run)
    return json.dumps([stream, name, learner, {field: run.get(field) for field in COUNTING}], sort_keys=True)


def _completed(kind: type[Settings], values: dict[str, Any]) -> dict[str, Any]:
    """With the defaults of what is not said; as it is if it has settings that are not known here."""
    try:
        return as_dict(build(kind, values))
    except ConfigError:
        return values
