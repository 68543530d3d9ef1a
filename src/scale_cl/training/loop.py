"""The one training loop: one pass over the tasks, with evaluation on all tasks so far after each.

Several learners go side by side, each with a stream of its own; on a GPU each has a CUDA stream too, so that their small
kernels share the device. `train` is the case of one.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from scale_cl.errors import ConfigError, StreamError
from scale_cl.learners import Learner
from scale_cl.results import SeedResult
from scale_cl.settings import as_dict
from scale_cl.streams import Stream
from scale_cl.training.evaluation import hits, percentages
from scale_cl.training.observer import NoObserver, Observer


class _Lane:
    """One learner on its way through one stream."""

    def __init__(self, learner: Learner, stream: Stream) -> None:
        self.learner, self.stream = learner, stream.to(learner.device)
        self.matrix: list[list[float | None]] = []
        self.x = self.y = torch.empty(0)
        self._cuda = torch.cuda.Stream(learner.device) if learner.device.type == "cuda" else None
        if self._cuda is not None:
            self._cuda.wait_stream(torch.cuda.current_stream(learner.device))

    def on_device(self) -> AbstractContextManager[Any]:
        return nullcontext() if self._cuda is None else torch.cuda.stream(self._cuda)

    def begin(self, task: int) -> None:
        with self.on_device():
            self.x, self.y = self.stream.train_data(task)
            self.learner.begin_task(self.stream.tasks[task].info)

    def step(self, start: int, stop: int) -> None:
        with self.on_device():
            self.learner.observe(self.x[start:stop], self.y[start:stop])

    def end(self) -> None:
        with self.on_device():
            self.learner.end_task()

    def test(self, tasks: int) -> Tensor:
        with self.on_device():
            return torch.stack([hits(self.learner, self.stream, task) for task in range(tasks)])


def train(
    learner: Learner,
    stream: Stream,
    *,
    batch_size: int = 10,
    observer: Observer | None = None,
    config: Mapping[str, Any] | None = None,
) -> SeedResult:
    """Train `learner` through `stream` once and test it after every task."""
    return train_many([learner], [stream], batch_size=batch_size, observer=observer, config=config)[0]


def train_many(
    learners: Sequence[Learner],
    streams: Sequence[Stream],
    *,
    batch_size: int = 10,
    observer: Observer | None = None,
    config: Mapping[str, Any] | None = None,
) -> list[SeedResult]:
    """Train each learner through its own stream, side by side: seeds of one method, or settings of it.

    Each gets the result it has alone. `config` is what the results record as their config; without it, the learner's
    settings are recorded. The seconds of a result are its share of the time that all took together.
    """
    _check_lanes(learners, streams, batch_size)
    epochs = learners[0].epochs
    observer = NoObserver() if observer is None else observer
    lanes = [_Lane(learner, stream) for learner, stream in zip(learners, streams, strict=True)]
    first = lanes[0].stream
    observer.started(
        first.name,
        learners[0].name,
        [stream.seed for stream in streams],
        len(first),
        epochs * sum(-(-len(task.train) // batch_size) for task in first.tasks),
    )
    done, seconds_train, seconds_eval = 0, 0.0, 0.0
    for number, task in enumerate(first.tasks):
        began = time.perf_counter()
        observer.task_started(number, task.name, epochs * -(-len(task.train) // batch_size))
        for lane in lanes:
            lane.begin(number)
        for start in [*range(0, len(task.train), batch_size)] * epochs:
            for lane in lanes:
                lane.step(start, start + batch_size)
            done += 1
            observer.stepped(done)
        for lane in lanes:
            lane.end()
        _wait(lanes)
        trained = time.perf_counter()
        tested = [lane.test(number + 1) for lane in lanes]
        for lane, right in zip(lanes, tested, strict=True):
            with lane.on_device():
                row = percentages(right, lane.stream)
            observer.evaluated(lane.stream.seed, number, row)
            lane.matrix.append([*row, *[None] * (len(first) - len(row))])
        seconds_train += trained - began
        seconds_eval += time.perf_counter() - trained
    observer.finished()
    return [
        SeedResult(
            stream=lane.stream.name,
            learner=lane.learner.name,
            seed=lane.stream.seed,
            config=dict(config) if config else {"learner": {"name": lane.learner.name, **as_dict(lane.learner.config)}},
            tasks=[task.name for task in lane.stream.tasks],
            matrix=lane.matrix,
            seconds_train=seconds_train / len(lanes),
            seconds_eval=seconds_eval / len(lanes),
        )
        for lane in lanes
    ]


def _check_lanes(learners: Sequence[Learner], streams: Sequence[Stream], batch_size: int) -> None:
    if not learners or len(learners) != len(streams):
        raise StreamError(
            f"{len(learners)} learners for {len(streams)} streams; each learner needs a stream of its own"
        )
    if batch_size < 1:
        raise StreamError(f"batch_size is {batch_size}; it must be at least 1")
    lengths = {tuple(len(task.train) for task in stream.tasks) for stream in streams}
    if len(lengths) > 1:
        raise StreamError("streams that run side by side must have tasks of the same lengths")
    if len({learner.epochs for learner in learners}) > 1:
        raise ConfigError("learners that run side by side must have the same number of epochs")
    for learner, stream in zip(learners, streams, strict=True):
        if learner.spec != stream.spec:
            raise StreamError(f"the learner was made for {learner.spec}, but stream {stream.name!r} has {stream.spec}")


def _wait(lanes: Sequence[_Lane]) -> None:
    for device in {lane.learner.device for lane in lanes if lane.learner.device.type == "cuda"}:
        torch.cuda.synchronize(device)
