"""Tracking programs: the interface that each of them implements, and the known ones by name."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from scale_cl.errors import ConfigError, TrackerError
from scale_cl.settings import suggest

NAMES = ("tensorboard", "mlflow", "wandb")  # each is also the name of the extra and of the package it installs
Axis = Literal["step", "task"]  # the x axis of a curve: training steps, or tasks learned
Ending = Literal["finished", "stopped", "failed"]
_USER = re.compile(r"://[^\s/@:]*(:(?!\d+/)\S*)?@")  # and a password, which may contain anything; no port with a path
_SECRET = re.compile(r"([?&][^\s=&]*(?:pass|pwd|secret|token|key)[^\s=&]*=)[^\s&#]*", re.IGNORECASE)


@dataclass(frozen=True)
class About:
    """What is known about a run before it begins."""

    directory: Path
    title: str
    config: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, Any] = field(default_factory=dict)
    seeds: Sequence[int] = ()  # empty if not known yet


class Backend(Protocol):
    """A tracking program, with a place for each seed and one for the whole run.

    `start` is called before training and raises a TrackerError of one line if tracking is not possible. All other
    methods are called from one thread beside the training; an error that they raise ends this tracking only.
    Where a method takes a seed, None means the whole run; with one seed, both may be the same place.
    """

    @property
    def name(self) -> str:
        """Its name on the command line."""

    def start(self, about: About, before: Mapping[str, Any] | None) -> str:
        """Get ready and return where to look; `before` is what `memory` returned before the run was stopped."""

    def open(self, seeds: Sequence[int]) -> None:
        """Training of these seeds begins."""

    def memory(self) -> dict[str, Any]:
        """The JSON values that `start` needs to continue this run later."""

    def restored(self, seed: int, steps: int) -> None:
        """A seed continues after this many steps: points of later steps are void."""

    def scalars(self, seed: int, axis: Axis, at: int, values: Mapping[str, float]) -> None:
        """Add a point to each of several curves, all at the same position on their axis."""

    def picture(self, seed: int | None, png: bytes, at: int) -> None:
        """The accuracy matrix after so many tasks; of all seeds together if the seed is None."""

    def result(self, seed: int | None, measures: Mapping[str, float]) -> None:
        """The final measures; of all seeds together if the seed is None."""

    def document(self, content: Mapping[str, Any]) -> None:
        """The whole result: measures of every seed, matrices, names of tasks."""

    def flush(self) -> None:
        """Send what is buffered."""

    def end(self, how: Ending) -> None:
        """The run is over."""

    def drop(self) -> None:
        """After a failure: release everything without waiting for anyone."""


def parse(texts: Iterable[str]) -> list[str]:
    """Tracker names, given one by one or separated by commas, without repetitions; ConfigError for an unknown one."""
    names = [name.strip() for text in texts for name in text.split(",") if name.strip()]
    for name in names:
        if name not in NAMES:
            raise ConfigError(f"unknown tracker {name!r}; {suggest(name, NAMES)}")
    return list(dict.fromkeys(names))


def without_passwords(text: str) -> str:
    """The text with its addresses as they may be shown and recorded: without user and password."""
    return _SECRET.sub(r"\1***", _USER.sub("://", text))


def make(name: str, *, project: str | None = None, address: str | None = None) -> Backend:
    """A tracker that is not started yet; TrackerError if its extra is not installed."""
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


def flat(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Nested settings as pairs of a dotted name and a value."""
    for key, value in config.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
