"""What a tracker is to the rest: places for curves, pictures and results, one for each seed and one for the whole."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

Axis = Literal["step", "task"]  # what a curve runs over: steps of training, or tasks learned
Ending = Literal["finished", "stopped", "failed"]


@dataclass(frozen=True)
class About:
    """What is known of a run before it begins."""

    directory: Path  # of the run
    title: str
    config: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, Any] = field(default_factory=dict)
    seeds: Sequence[int] = ()  # if they are known


class Backend(Protocol):
    """One tracking program.

    `start` is called before training and says in one line, by a TrackerError, what hinders it. Everything after it is
    called from one thread beside the training; what it raises ends this tracking and nothing else.
    Where a seed is asked for, None is the whole run; if that has one seed only, both may be the same place.
    """

    @property
    def name(self) -> str:
        """As the command line knows it."""

    def start(self, about: About, before: Mapping[str, Any] | None) -> str:
        """Make ready, going on with what `memory` was `before` the run was stopped; says where to look."""

    def open(self, seeds: Sequence[int]) -> None:
        """Training begins, of these seeds."""

    def memory(self) -> dict[str, Any]:
        """What `start` needs to go on with this run later, as JSON values."""

    def restored(self, seed: int, steps: int) -> None:
        """A seed goes on from so many steps: points of later steps are void."""

    def scalars(self, seed: int, axis: Axis, at: int, values: Mapping[str, float]) -> None:
        """Points of curves, all at the same place."""

    def picture(self, seed: int | None, png: bytes, at: int) -> None:
        """The matrix of accuracies after so many tasks; over the seeds, if there is none."""

    def result(self, seed: int | None, measures: Mapping[str, float]) -> None:
        """The measures at the end; over the seeds, if there is none."""

    def document(self, content: Mapping[str, Any]) -> None:
        """The whole result: measures of every seed, matrices, names of tasks."""

    def flush(self) -> None:
        """Pass on what was held back."""

    def end(self, how: Ending) -> None:
        """The run is over."""

    def drop(self) -> None:
        """After a failure: let go of what is held, without waiting for anyone."""


def flat(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Nested settings with dotted names."""
    for key, value in config.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
