"""What happens during training, as plain values: `train(learner, stream, on_event=print)`.

A listener is any callable that takes an event. Events hold no tensors, so listening costs no device work, and they can
be pickled, so a process sends its events to its parent as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from scale_cl.metrics import Evaluation


@dataclass(frozen=True)
class Loaded:
    """The data is in memory. Only `run`, which loads it, sends this event."""

    remarks: tuple[str, ...] = ()  # what is odd about the data, but no error: one line each


@dataclass(frozen=True)
class Started:
    """Training begins."""

    stream: str
    learner: str
    seeds: tuple[int, ...]
    tasks: int
    steps: int  # per seed


@dataclass(frozen=True)
class Restored:
    """A seed continues from a checkpoint; comes after `Started`. Earlier reports of later steps are void."""

    seed: int
    steps: int  # done so far
    matrix: list[list[float | None]]  # accuracies so far
    evaluations: tuple[Evaluation, ...] = ()  # within tasks, so far
    prequential: float | None = None  # accuracy so far on batches before they were learnt, if it is measured


@dataclass(frozen=True)
class TaskStarted:
    """A task begins."""

    task: int
    name: str
    steps: int


@dataclass(frozen=True)
class Stepped:
    """Each seed has done this many steps in all; the mean, if the seeds train independently."""

    steps: int
    of_each: tuple[int, ...] = field(default=(), compare=False)  # steps of each seed, if they train independently


@dataclass(frozen=True)
class Losses:
    """The mean of each loss term of a seed since its last report.

    Sent every `loss_every` steps, if that is not 0, and at the end of each task. Steps count from 1 over all tasks.
    """

    seed: int
    step: int  # the last one that the means include
    terms: Mapping[str, float]


@dataclass(frozen=True)
class Evaluated:
    """After learning `task`, a seed was tested on tasks 0 to `task`."""

    seed: int
    task: int
    accuracies: Sequence[float | None]  # percent; None: the data of an earlier stream is gone


@dataclass(frozen=True)
class AnytimeEvaluated:
    """A seed was tested on a sample of each task begun so far, within a task or at its end.

    Sent every `evaluate_every` steps, if that is not 0, and at the end of each task. Steps count from 1 over all tasks.
    """

    seed: int
    step: int
    accuracies: tuple[float, ...]  # percent


@dataclass(frozen=True)
class PrequentialCounted:
    """How many samples a seed predicted correctly before it learnt them; sent every few steps if asked for."""

    seed: int
    step: int  # the last one that is counted
    accuracy: float  # percent of all samples so far
    recent: float  # percent of the samples of the last steps, a sliding window


@dataclass(frozen=True)
class Finished:
    """Training is over."""


Event = (
    Loaded
    | Started
    | Restored
    | TaskStarted
    | Stepped
    | Losses
    | Evaluated
    | AnytimeEvaluated
    | PrequentialCounted
    | Finished
)
Listener = Callable[[Event], None]


def ignore(event: Event) -> None:
    """A listener that does nothing."""


def to_all(*listeners: Listener) -> Listener:
    """A listener that passes every event on to several, in this order."""

    def pass_on(event: Event) -> None:
        for listener in listeners:
            listener(event)

    return pass_on
