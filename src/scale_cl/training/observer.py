"""Who watches a training run: plain values, so that watching costs no device work."""

from __future__ import annotations

from typing import Protocol


class Observer(Protocol):
    """Is told what happens; all calls are cheap for the caller."""

    def started(self, stream: str, learner: str, seeds: list[int], tasks: int, steps: int) -> None:
        """Training begins; `steps` are those of one seed."""

    def task_started(self, task: int, name: str, steps: int) -> None:
        """A task of so many steps begins."""

    def stepped(self, steps: int) -> None:
        """So many steps of one seed are done (seeds run side by side count once)."""

    def evaluated(self, seed: int, task: int, accuracies: list[float]) -> None:
        """After `task`, one seed was tested on tasks 0 to `task`: percent each."""

    def finished(self) -> None:
        """Training is over."""


class NoObserver:
    """Watches nothing."""

    def started(self, stream: str, learner: str, seeds: list[int], tasks: int, steps: int) -> None:
        """Nothing."""

    def task_started(self, task: int, name: str, steps: int) -> None:
        """Nothing."""

    def stepped(self, steps: int) -> None:
        """Nothing."""

    def evaluated(self, seed: int, task: int, accuracies: list[float]) -> None:
        """Nothing."""

    def finished(self) -> None:
        """Nothing."""
