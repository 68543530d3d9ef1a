"""The trackers by name, each with the extra that it needs; nothing of theirs is imported before it is used."""

from __future__ import annotations

import importlib
from collections.abc import Iterable

from scale_cl.errors import ConfigError, TrackerError
from scale_cl.settings import suggest
from scale_cl.trackers.backend import Backend

NAMES = ("tensorboard", "mlflow", "wandb")  # that of the extra and of the package it brings as well


def parse(texts: Iterable[str]) -> list[str]:
    """Names given one by one or in lists with commas, each once; ConfigError for one that is unknown."""
    names = [name.strip() for text in texts for name in text.split(",") if name.strip()]
    for name in names:
        if name not in NAMES:
            raise ConfigError(f"unknown tracker {name!r}; {suggest(name, NAMES)}")
    return list(dict.fromkeys(names))


def make(name: str, *, project: str | None = None, address: str | None = None) -> Backend:
    """A tracker that is still to be started; TrackerError if its extra is not installed."""
    parse([name])
    try:
        importlib.import_module(name)
    except ImportError:
        raise TrackerError(f"tracking with {name} needs the extra: pip install 'scale-cl[{name}]'") from None
    if name == "tensorboard":
        from scale_cl.trackers.tensorboard_logs import TensorBoard

        return TensorBoard()
    if name == "mlflow":
        from scale_cl.trackers.mlflow_runs import MLflow

        return MLflow(address, project)
    from scale_cl.trackers.wandb_runs import WandB

    return WandB(project)
