"""Short trainings that are tracked, and what a tracker ought to hold of them, worked out by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from scale_cl.learners import Er, Learner, StepStats
from scale_cl.results import SeedResult
from scale_cl.streams import Stream
from scale_cl.trackers.backend import About, Axis, Ending
from scale_cl.training import train_many
from scale_cl.training.events import Listener
from tests.training.small_streams import few_digits

STEPS = 6  # of a task
Points = dict[int, float]


class NotingEr(Er):
    """ER that notes the loss of every step."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.noted: list[float] = []

    def observe(self, x: Tensor, y: Tensor, task: Tensor | None = None) -> StepStats:
        stats = super().observe(x, y, task)
        self.noted.append(float(stats["loss"]))
        return stats


def trained(
    listener: Listener | None, seeds: Sequence[int] = (0,), tasks: int = 3, every: int = 1
) -> tuple[list[SeedResult], Any]:
    """Results of ER on a few digits, and the losses it noted, by seed."""
    streams: list[Stream] = [few_digits(seed, tasks=tasks) for seed in seeds]
    learners = [NotingEr(stream.spec, seed=stream.seed) for stream in streams]
    given: list[Learner] = list(learners)
    results = train_many(given, streams, on_event=listener, loss_every=every)
    return results, {learner.seed: learner.noted for learner in learners}


def losses(noted: Sequence[float]) -> Points:
    """The curve with a point a step."""
    return dict(enumerate(noted, start=1))


def accuracies(result: SeedResult, task: int) -> Points:
    """The curve of one task, over tasks learned."""
    rows = enumerate(result.matrix, start=1)
    return {learned: value for learned, row in rows if (value := row[task]) is not None}


def acc_so_far(result: SeedResult) -> Points:
    """Mean over the tasks learned by then."""
    rows = ([v for v in row if v is not None] for row in result.matrix)
    return {learned: sum(row) / len(row) for learned, row in enumerate(rows, start=1)}


def forgotten(result: SeedResult) -> float:
    """FM of three tasks: the best before the end less what is left."""
    (a,), (b, c), (d, e, _) = ([v for v in row if v is not None] for row in result.matrix)
    return ((max(a, b) - d) + (c - e)) / 2


class Pages:
    """A tracker in memory."""

    name = "pages"

    def __init__(self) -> None:
        self.curves: dict[tuple[int, str], Points] = {}
        self.axes: dict[str, set[Axis]] = {}
        self.pictures: list[tuple[int | None, int]] = []
        self.results: dict[int | None, dict[str, float]] = {}
        self.documents: list[Mapping[str, Any]] = []
        self.events: list[tuple[Any, ...]] = []

    def start(self, about: About, before: Mapping[str, Any] | None) -> str:
        self.events.append(("start", about.title, before))
        return "memory"

    def open(self, seeds: Sequence[int]) -> None:
        self.events.append(("open", list(seeds)))

    def memory(self) -> dict[str, Any]:
        return {"page": 7}

    def restored(self, seed: int, steps: int) -> None:
        self.events.append(("restored", seed, steps))

    def scalars(self, seed: int, axis: Axis, at: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self.axes.setdefault(name.partition("/")[0], set()).add(axis)
            self.curves.setdefault((seed, name), {})[at] = value

    def picture(self, seed: int | None, png: bytes, at: int) -> None:
        assert png.startswith(b"\x89PNG")
        self.pictures.append((seed, at))

    def result(self, seed: int | None, measures: Mapping[str, float]) -> None:
        self.results[seed] = dict(measures)

    def document(self, content: Mapping[str, Any]) -> None:
        self.documents.append(content)

    def flush(self) -> None:
        pass

    def end(self, how: Ending) -> None:
        self.events.append(("end", how))

    def drop(self) -> None:
        self.events.append(("drop",))
