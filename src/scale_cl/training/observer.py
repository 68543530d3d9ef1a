"""Who watches a training run: plain values, so that watching costs no device work.

A `Recorder` is told numbers as well: loss terms, which are gathered on the device for it, and what a seed that goes on
had reached before. Where nobody asks for losses, none are gathered.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable


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


@runtime_checkable
class Recorder(Observer, Protocol):
    """An observer that keeps numbers."""

    @property
    def loss_every(self) -> int:
        """Steps from one report of losses to the next; it may get them more often. 0: it wants none."""

    def losses(self, seed: int, step: int, terms: Mapping[str, float]) -> None:
        """Loss terms of one seed: the mean of each over the steps since the last report, the last of which is `step`.

        A report never spans two tasks; steps count from 1 over all of them.
        """

    def restored(self, seed: int, steps: int, matrix: list[list[float | None]]) -> None:
        """One seed goes on from a checkpoint: steps that it has done, and its accuracies so far. Comes after `started`.

        What was reported of later steps before is void: they are made again.
        """


def loss_interval(observer: Observer) -> int:
    """Steps from one report of losses to the next that `observer` asks for; 0 if it does not."""
    return observer.loss_every if isinstance(observer, Recorder) else 0


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


class Several:
    """Hands everything on to several observers, in their order; losses to those that ask for them."""

    def __init__(self, observers: Sequence[Observer]) -> None:
        self._observers = list(observers)
        self._recorders = [o for o in self._observers if isinstance(o, Recorder)]

    @property
    def loss_every(self) -> int:
        """The shortest interval that anyone asks for."""
        return min((interval for o in self._observers if (interval := loss_interval(o))), default=0)

    def started(self, stream: str, learner: str, seeds: list[int], tasks: int, steps: int) -> None:
        """To all."""
        for observer in self._observers:
            observer.started(stream, learner, seeds, tasks, steps)

    def task_started(self, task: int, name: str, steps: int) -> None:
        """To all."""
        for observer in self._observers:
            observer.task_started(task, name, steps)

    def stepped(self, steps: int) -> None:
        """To all."""
        for observer in self._observers:
            observer.stepped(steps)

    def evaluated(self, seed: int, task: int, accuracies: list[float]) -> None:
        """To all."""
        for observer in self._observers:
            observer.evaluated(seed, task, accuracies)

    def losses(self, seed: int, step: int, terms: Mapping[str, float]) -> None:
        """To those that ask."""
        for recorder in self._recorders:
            if recorder.loss_every:
                recorder.losses(seed, step, terms)

    def restored(self, seed: int, steps: int, matrix: list[list[float | None]]) -> None:
        """To all recorders."""
        for recorder in self._recorders:
            recorder.restored(seed, steps, matrix)

    def finished(self) -> None:
        """To all."""
        for observer in self._observers:
            observer.finished()
