"""What an engine is: something that carries out planned runs somewhere and says how each ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from scale_cl.experiments.planning import PlannedRun


@dataclass(frozen=True)
class Outcome:
    """How a run ended: with a result in its folder, or with an error in a line."""

    run: PlannedRun
    seconds: float
    error: str | None = None


class Listener(Protocol):
    """Who is told how runs go."""

    def progressed(self, run: PlannedRun, fraction: float) -> None:
        """A run has done this much of its steps, from 0 to 1; told about once a second."""
        ...

    def retried(self, run: PlannedRun, reason: str) -> None:
        """What carried out a run has died, which is no fault of the run; it begins again."""
        ...

    def ended(self, outcome: Outcome) -> None:
        """A run has ended."""
        ...


class Engine(Protocol):
    """Carries out runs. A run that fails, or whose process dies too often, is an outcome like any other."""

    def execute(self, runs: Sequence[PlannedRun], *, slots: int, listener: Listener) -> None:
        """Do all runs, at most `slots` at once; returns when all have ended."""
        ...
