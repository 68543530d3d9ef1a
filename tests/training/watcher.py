"""An observer that notes all that it is told."""

from __future__ import annotations

from typing import Any


class Watcher:
    """Notes all that an observer is told."""

    def __init__(self) -> None:
        self.told: list[tuple[Any, ...]] = []

    def started(self, stream: str, learner: str, seeds: list[int], tasks: int, steps: int) -> None:
        self.told.append(("started", stream, learner, seeds, tasks, steps))

    def task_started(self, task: int, name: str, steps: int) -> None:
        self.told.append(("task_started", task, name, steps))

    def stepped(self, steps: int) -> None:
        self.told.append(("stepped", steps))

    def evaluated(self, seed: int, task: int, accuracies: list[float]) -> None:
        self.told.append(("evaluated", seed, task, accuracies))

    def finished(self) -> None:
        self.told.append(("finished",))
