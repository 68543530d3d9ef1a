"""The one training loop: one pass over the tasks, with evaluation on all tasks so far after each.

Several learners go side by side, each in a lane with a stream of its own. `train` is the case of one.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from scale_cl.errors import ConfigError, StreamError
from scale_cl.learners import Joint, Learner
from scale_cl.results import SeedResult
from scale_cl.settings import as_dict
from scale_cl.streams import Stream
from scale_cl.training.evaluation import percentages
from scale_cl.training.joint import JointLane
from scale_cl.training.lanes import Lane
from scale_cl.training.observer import NoObserver, Observer


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
    lanes = [_lane(learner, stream) for learner, stream in zip(learners, streams, strict=True)]
    first, stages = lanes[0].stream, lanes[0].stages
    observer.started(
        first.name,
        learners[0].name,
        [stream.seed for stream in streams],
        len(first),
        epochs * sum(-(-stage.samples // batch_size) for stage in stages),
    )
    done, seconds_train, seconds_eval = 0, 0.0, 0.0
    for number, stage in enumerate(stages):
        began = time.perf_counter()
        observer.task_started(number, stage.name, epochs * -(-stage.samples // batch_size))
        for lane in lanes:
            lane.begin(number)
        for start in [*range(0, stage.samples, batch_size)] * epochs:
            for lane in lanes:
                lane.step(start, start + batch_size)
            done += 1
            observer.stepped(done)
        for lane in lanes:
            lane.end()
        _wait(lanes)
        trained = time.perf_counter()
        tested = [lane.test(stage.tested) for lane in lanes]
        for lane, right in zip(lanes, tested, strict=True):
            with lane.on_device():
                row = percentages(right, lane.stream)
            observer.evaluated(lane.stream.seed, stage.tested - 1, row)
            lane.record(row)
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


def _lane(learner: Learner, stream: Stream) -> Lane:
    return JointLane(learner, stream) if isinstance(learner, Joint) else Lane(learner, stream)


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
    if len({isinstance(learner, Joint) for learner in learners}) > 1:
        raise ConfigError("joint training does not run side by side with learners that take one task after another")
    if len({learner.epochs for learner in learners}) > 1:
        raise ConfigError("learners that run side by side must have the same number of epochs")
    for learner, stream in zip(learners, streams, strict=True):
        if learner.spec != stream.spec:
            raise StreamError(f"the learner was made for {learner.spec}, but stream {stream.name!r} has {stream.spec}")


def _wait(lanes: Sequence[Lane]) -> None:
    for device in {lane.learner.device for lane in lanes if lane.learner.device.type == "cuda"}:
        torch.cuda.synchronize(device)
