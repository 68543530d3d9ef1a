"""The one training loop: one pass over the tasks, with evaluation on all tasks so far after each.

Several learners go side by side, each in a lane with a stream of its own. `train` is the case of one.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from threading import Lock
from typing import Any

import torch

from scale_cl.errors import ConfigError, StreamError
from scale_cl.learners import Joint, Learner
from scale_cl.results import SeedResult
from scale_cl.settings import as_dict
from scale_cl.streams import Stream
from scale_cl.training.checkpointing import Checkpointer
from scale_cl.training.evaluation import percentages
from scale_cl.training.joint import JointRun
from scale_cl.training.learner_run import LearnerRun
from scale_cl.training.loss_terms import LossTerms
from scale_cl.training.observer import NoObserver, Observer, Recorder, loss_interval
from scale_cl.training.parallel import Runners, runners_of
from scale_cl.training.skipped import SkippedSteps


def train(
    learner: Learner,
    stream: Stream,
    *,
    batch_size: int = 10,
    observer: Observer | None = None,
    config: Mapping[str, Any] | None = None,
    keeper: Checkpointer | None = None,
) -> SeedResult:
    """Train `learner` through `stream` once and test it after every task; with a `keeper`, checkpoints are written."""
    return train_many([learner], [stream], batch_size=batch_size, observer=observer, config=config, keeper=keeper)[0]


def train_many(
    learners: Sequence[Learner],
    streams: Sequence[Stream],
    *,
    batch_size: int = 10,
    observer: Observer | None = None,
    config: Mapping[str, Any] | None = None,
    keeper: Checkpointer | None = None,
) -> list[SeedResult]:
    """Train each learner through its own stream, side by side: seeds of one method, or settings of it.

    Each gets the result it has alone. `config` is what the results record as their config; without it, the learner's
    settings are recorded. The seconds of a result are its share of the time that all took together, without the writing
    of checkpoints. A `keeper` writes these and, if it is to resume, sets each lane to where it was: those ahead wait.
    """
    _check_lanes(learners, streams, batch_size)
    epochs = learners[0].epochs
    observer = NoObserver() if observer is None else observer
    lanes = [learner_run(learner, stream) for learner, stream in zip(learners, streams, strict=True)]
    first = lanes[0].stream
    batches = [-(-stage.samples // batch_size) for stage in lanes[0].stages]  # of one epoch
    if keeper is not None:
        keeper.restore(lanes, streams, config or _settings_of(learners[0]))
    seeds = [stream.seed for stream in streams]
    observer.started(first.name, learners[0].name, seeds, len(first), epochs * sum(batches))
    restored = [epochs * sum(batches[: lane.stage]) + lane.done for lane in lanes]
    if min(restored):
        observer.stepped(min(restored))
    skipped = SkippedSteps(lanes)
    with keeper or contextlib.nullcontext(), _recorded(observer, lanes, restored), runners_of(lanes) as runners:
        _go_through(lanes, batch_size, batches, observer, keeper, runners)
    observer.finished()
    skipped.warn()
    return [
        SeedResult(
            stream=lane.stream.name,
            learner=lane.learner.name,
            seed=lane.stream.seed,
            config=dict(config or _settings_of(lane.learner)),
            tasks=[task.name for task in lane.stream.tasks],
            matrix=lane.matrix,
            seconds_train=lane.seconds_train,
            seconds_eval=lane.seconds_eval,
        )
        for lane in lanes
    ]


def _go_through(
    lanes: Sequence[LearnerRun],
    batch_size: int,
    batches: Sequence[int],
    observer: Observer,
    keeper: Checkpointer | None,
    runners: Runners,
) -> None:
    """All stages from where the lanes are; `batches` are those of one epoch of each stage."""
    epochs, stages, clock = lanes[0].learner.epochs, lanes[0].stages, _Clock()
    for number in range(min(lane.stage for lane in lanes), len(stages)):
        stage, going = stages[number], [lane for lane in lanes if lane.stage == number]
        clock.start()
        observer.task_started(number, stage.name, epochs * batches[number])
        runners.in_turn(going, LearnerRun.begin)
        before, step = epochs * sum(batches[:number]), min(lane.done for lane in going)
        while step < epochs * batches[number]:
            stop = min(step + runners.block, epochs * batches[number])
            if keeper is not None:
                stop = min(stop, keeper.next_due(before + step) - before)
            began = time.perf_counter()
            runners.each(going, partial(_take_steps, stop=stop, batches=batches[number], batch_size=batch_size))
            runners.took(stop - step, time.perf_counter() - began)
            step = stop
            observer.stepped(before + step)
            if keeper is not None and keeper.due(before + step):
                _wait(lanes)
                clock.trained(going)
                keeper.save([lane for lane in going if lane.done == step], runners)
                clock.start()
        runners.in_turn(going, LearnerRun.end)
        _wait(lanes)
        clock.trained(going)
        rows = runners.each(going, partial(_tested, tasks=stage.tested))
        for lane, row in zip(going, rows, strict=True):
            observer.evaluated(lane.stream.seed, stage.tested - 1, row)
            lane.record(row)
        clock.tested(going)
        if keeper is not None:
            keeper.save(going, runners)


def _take_steps(lane: LearnerRun, *, stop: int, batches: int, batch_size: int) -> None:
    """The lane's steps of its stage up to `stop`; one that is ahead has made them already."""
    for step in range(lane.done, stop):
        epoch, batch = divmod(step, batches)
        lane.step(epoch, batch * batch_size, (batch + 1) * batch_size)


def _tested(lane: LearnerRun, *, tasks: int) -> list[float]:
    right = lane.test(tasks)
    with lane.on_device():
        return percentages(right, lane.stream)


@contextlib.contextmanager
def _recorded(observer: Observer, lanes: Sequence[LearnerRun], done: Sequence[int]) -> Iterator[None]:
    """While inside, lanes gather their losses if the observer asks for them; it gets them all, also after an error."""
    if not isinstance(observer, Recorder):
        yield
        return
    every, one_at_a_time = loss_interval(observer), Lock()

    def report(seed: int, step: int, terms: Mapping[str, float]) -> None:
        with one_at_a_time:  # lanes may have threads of their own
            observer.losses(seed, step, terms)

    for lane, steps in zip(lanes, done, strict=True):
        seed = lane.stream.seed
        if steps:
            observer.restored(seed, steps, [list(row) for row in lane.matrix])
        if every:
            lane.losses = LossTerms(every, done=steps, report=partial(report, seed))
    try:
        yield
    except BaseException:
        with contextlib.suppress(RuntimeError):  # of a device that is no more
            for lane in lanes:
                lane.flush_losses()
        raise


class _Clock:
    """Shares the time that lanes take together evenly among them."""

    def __init__(self) -> None:
        self._mark = time.perf_counter()

    def start(self) -> None:
        """What has passed until now is nobody's."""
        self._mark = time.perf_counter()

    def trained(self, lanes: Sequence[LearnerRun]) -> None:
        share = self._share(lanes)
        for lane in lanes:
            lane.seconds_train += share

    def tested(self, lanes: Sequence[LearnerRun]) -> None:
        share = self._share(lanes)
        for lane in lanes:
            lane.seconds_eval += share

    def _share(self, lanes: Sequence[LearnerRun]) -> float:
        passed, self._mark = time.perf_counter() - self._mark, time.perf_counter()
        return passed / len(lanes)


def _settings_of(learner: Learner) -> dict[str, Any]:
    return {"learner": {"name": learner.name, **as_dict(learner.config)}}


def learner_run(learner: Learner, stream: Stream) -> LearnerRun:
    """The run of a learner over a stream, with the stages that its kind of training has."""
    return JointRun(learner, stream) if isinstance(learner, Joint) else LearnerRun(learner, stream)


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


def _wait(lanes: Sequence[LearnerRun]) -> None:
    for device in {lane.learner.device for lane in lanes if lane.learner.device.type == "cuda"}:
        torch.cuda.synchronize(device)
