"""The training loop: one pass over the tasks, with a test on all tasks so far after each.

Several learners train side by side, each on a stream of its own; on a GPU each has a thread (`parallel`).
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from threading import Lock
from typing import Any

import torch

from scale_cl import metrics
from scale_cl.errors import ConfigError, DivergenceError, StreamError
from scale_cl.learners import Learner
from scale_cl.learners.boundaries import Detection
from scale_cl.metrics import Evaluation
from scale_cl.results import FoundBoundaries, SeedResult
from scale_cl.settings import as_dict
from scale_cl.streams import Stream
from scale_cl.streams.reading import LazyRows
from scale_cl.training import events
from scale_cl.training.checkpointing import Checkpointer
from scale_cl.training.events import (
    AnytimeEvaluated,
    Evaluated,
    Finished,
    Listener,
    Losses,
    PrequentialCounted,
    Restored,
    Started,
    Stepped,
    TaskStarted,
)
from scale_cl.training.learner_run import LearnerRun, learner_run
from scale_cl.training.learnt_streams import stream_tasks
from scale_cl.training.monitoring import AnytimeTests, LossTerms, Prequential
from scale_cl.training.parallel import Runners, runners_of

_log = logging.getLogger("scale_cl")


def train(
    learner: Learner,
    stream: Stream,
    *,
    batch_size: int = 10,
    on_event: Listener | None = None,
    loss_every: int = 0,
    evaluate_every: int = 0,
    evaluate_samples: int = 125,
    prequential: bool = False,
    config: Mapping[str, Any] | None = None,
    checkpointer: Checkpointer | None = None,
    detection: Detection | None = None,
) -> SeedResult:
    """Train `learner` on `stream` once and test it after every task; for the arguments see `train_many`."""
    return train_many(
        [learner],
        [stream],
        batch_size=batch_size,
        on_event=on_event,
        loss_every=loss_every,
        evaluate_every=evaluate_every,
        evaluate_samples=evaluate_samples,
        prequential=prequential,
        config=config,
        checkpointer=checkpointer,
        detection=detection,
    )[0]


def train_many(
    learners: Sequence[Learner],
    streams: Sequence[Stream],
    *,
    batch_size: int = 10,
    on_event: Listener | None = None,
    loss_every: int = 0,
    evaluate_every: int = 0,
    evaluate_samples: int = 125,
    prequential: bool = False,
    config: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
    checkpointer: Checkpointer | None = None,
    detection: Detection | None = None,
    diverged: dict[int, DivergenceError] | None = None,
) -> list[SeedResult]:
    """Train each learner on its own stream, side by side: several seeds of one method, or several settings of it.

    Each learner gets the result that it has when trained alone. The seconds of a result are its share of the time that
    all took together; writing checkpoints is not counted.

    Args:
        learners: the learners to train.
        streams: one per learner, with tasks of the same lengths.
        batch_size: samples per step.
        on_event: called with every event of the training, see `scale_cl.training.events`.
        loss_every: steps from one `Losses` event to the next; 0: none, and no losses are gathered.
        evaluate_every: steps from one evaluation within tasks to the next; 0: none.
        evaluate_samples: test samples per task of such an evaluation, drawn once by the stream's seed.
        prequential: predict each batch before it is learnt, and count the correct predictions.
        config: what the results record as their config, one for all or one per learner; by default its settings.
        checkpointer: writes checkpoints, and restores each learner from its newest one if it is to resume.
        detection: how task boundaries are found, on streams whose `boundaries` are "detect".
        diverged: if given, a learner that diverges does not end the training of all: its error is entered here under
            its number, and it has no result.
    """
    wanted = _Monitors(loss_every, evaluate_every, evaluate_samples, prequential)
    _check(learners, streams, batch_size, wanted)
    tell = on_event or events.ignore
    epochs = learners[0].epochs
    runs = [learner_run(learner, stream, detection) for learner, stream in zip(learners, streams, strict=True)]
    configs = _configs(config, learners)
    first = runs[0].stream
    batches = [-(-stage.samples // batch_size) for stage in runs[0].stages]  # per epoch
    if checkpointer is not None:
        checkpointer.restore(runs, streams, configs)
    seeds = tuple(stream.seed for stream in streams)
    tell(Started(first.name, learners[0].name, seeds, len(first), epochs * sum(batches)))
    for run in runs:
        run.steps = epochs * sum(batches[: run.stage]) + run.done
    for run in runs:
        if run.steps:
            matrix = [list(row) for row in run.matrix]
            measured = tuple(run.evaluations), metrics.prequential(run.predictions)
            tell(Restored(run.stream.seed, run.steps, matrix, *measured))
    if min(run.steps for run in runs):
        tell(Stepped(min(run.steps for run in runs)))
    skipped = _SkippedSteps(runs)
    with (
        checkpointer or contextlib.nullcontext(),
        _monitored(runs, wanted, tell),
        runners_of(runs, diverged) as runners,
        _read_as_they_come(streams),
    ):
        _train_stages(runs, batch_size, batches, tell, checkpointer, runners)
    tell(Finished())
    skipped.warn()
    return [
        SeedResult(
            stream=run.stream.name,
            learner=run.learner.name,
            seed=run.stream.seed,
            config=dict(own),
            tasks=[task.name for task in run.stream.tasks],
            matrix=run.matrix,
            seconds_train=run.seconds_train,
            seconds_eval=run.seconds_eval,
            scenario=run.stream.scenario,
            after=run.learner.after or None,
            evaluations=tuple(run.evaluations),
            predictions=tuple(run.predictions),
            boundaries=_boundaries(run, batches),
            skipped_samples=run.skipped + sum(task.unread for task in run.stream.tasks),
            streams=stream_tasks(run.stream),
        )
        for number, (run, own) in enumerate(zip(runs, configs, strict=True))
        if number not in (diverged or ())
    ]


def _configs(
    given: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None, learners: Sequence[Learner]
) -> Sequence[Mapping[str, Any]]:
    """The config of each learner."""
    if isinstance(given, Sequence):
        return given
    return [given or {"learner": {"name": one.name, **as_dict(one.config)}} for one in learners]


def _boundaries(run: LearnerRun, batches: Sequence[int]) -> FoundBoundaries | None:
    """The boundaries that were found, and the first batch of each task but the first."""
    if run.finder is None:
        return None
    return FoundBoundaries(tuple(run.finder.found), tuple(1 + sum(batches[:k]) for k in range(1, len(batches))))


def _train_stages(
    runs: Sequence[LearnerRun],
    batch_size: int,
    batches: Sequence[int],
    tell: Listener,
    checkpointer: Checkpointer | None,
    runners: Runners,
) -> None:
    """All stages that are left; `batches` holds the number of batches per epoch of each stage.

    A run that was restored ahead of the others waits for them; one that diverged is left behind.
    """
    epochs, stages, clock = runs[0].learner.epochs, runs[0].stages, _Clock()
    for number in range(min(run.stage for run in runs), len(stages)):
        stage, active = stages[number], runners.sound([run for run in runs if run.stage == number])
        if not active:  # all have diverged, apart from those that are ahead
            continue
        clock.restart()
        tell(TaskStarted(number, stage.name, epochs * batches[number]))
        runners.in_turn(active, LearnerRun.begin)
        before, step = epochs * sum(batches[:number]), min(run.done for run in active)
        while active and step < epochs * batches[number]:
            stop = min(step + runners.block, epochs * batches[number])
            if checkpointer is not None:
                stop = min(stop, checkpointer.next_due(before + step) - before)
            began = time.perf_counter()
            steps = partial(_take_steps, stop=stop, batches=batches[number], batch_size=batch_size, tasks=stage.tested)
            runners.each(active, steps)
            runners.took(stop - step, time.perf_counter() - began)
            step, active = stop, runners.sound(active)
            tell(Stepped(before + step))
            if checkpointer is not None and checkpointer.due(before + step):
                _wait(runs)
                clock.trained(active)
                checkpointer.save([run for run in active if run.done == step], runners)
                clock.restart()
        runners.in_turn(active, LearnerRun.end)
        runners.each(active, partial(LearnerRun.evaluate, tasks=stage.tested))
        _wait(runs)
        active = runners.sound(active)
        for run in active:
            run.flush_counts()
        clock.trained(active)
        rows = runners.each(active, partial(LearnerRun.test, tasks=stage.tested))
        active = runners.sound(active)
        for run, row in zip(active, rows, strict=True):
            tell(Evaluated(run.stream.seed, stage.tested - 1, row))
            run.record(row)
        clock.tested(active)
        if checkpointer is not None:
            checkpointer.save(active, runners)


def _take_steps(run: LearnerRun, *, stop: int, batches: int, batch_size: int, tasks: int) -> None:
    """Train up to step `stop` of the stage; a run that was restored ahead of it has nothing to do.

    Evaluations within the task are made here; that at its end is made once the task has ended.
    """
    for step in range(run.done, stop):
        epoch, batch = divmod(step, batches)
        run.step(epoch, batch * batch_size, (batch + 1) * batch_size)
        if run.tests is not None and run.steps % run.tests.every == 0 and step + 1 < run.learner.epochs * batches:
            run.evaluate(tasks)


@dataclass(frozen=True)
class _Monitors:
    """What is measured while training goes on; see `train_many`."""

    loss_every: int
    evaluate_every: int
    evaluate_samples: int
    prequential: bool


@contextlib.contextmanager
def _monitored(runs: Sequence[LearnerRun], wanted: _Monitors, tell: Listener) -> Iterator[None]:
    """Within the context, what is wanted is measured and told; after an error, the loss terms gathered until then."""
    lock = Lock()  # runs may have threads of their own

    def tell_losses(seed: int, step: int, terms: Mapping[str, float]) -> None:
        with lock:
            tell(Losses(seed, step, terms))

    def tell_evaluation(run: LearnerRun, found: Evaluation) -> None:
        run.evaluations.append(found)
        with lock:
            tell(AnytimeEvaluated(run.stream.seed, *found))

    def tell_count(seed: int, *figures: Any) -> None:
        with lock:
            tell(PrequentialCounted(seed, *figures))

    for run in runs:
        if wanted.loss_every:
            report = partial(tell_losses, run.stream.seed)
            run.losses = LossTerms(wanted.loss_every, done=run.steps, report=report)
        if wanted.evaluate_every and all(len(task.test) for task in run.stream.tasks):
            run.tests = AnytimeTests(
                run.learner,
                run.stream,
                every=wanted.evaluate_every,
                samples=wanted.evaluate_samples,
                report=partial(tell_evaluation, run),
            )
        if wanted.prequential:
            run.prequential = Prequential(run.predictions, partial(tell_count, run.stream.seed))
    try:
        yield
    except BaseException:
        with contextlib.suppress(RuntimeError):  # the device may have failed
            for run in runs:
                run.flush_losses()
        raise
    for run in runs:
        run.flush_counts(end=True)


class _Clock:
    """Shares the time that runs take together evenly among them; evaluations within tasks count as testing."""

    def __init__(self) -> None:
        self._mark = time.perf_counter()

    def restart(self) -> None:
        """Start again; earlier time is not charged."""
        self._mark = time.perf_counter()

    def trained(self, runs: Sequence[LearnerRun]) -> None:
        share = self._share(runs)
        for run in runs:
            at_once = len(runs) if run.learner.device.type == "cuda" else 1
            testing = min(share, run.evaluating.taken() / at_once)
            run.seconds_train += share - testing
            run.seconds_eval += testing

    def tested(self, runs: Sequence[LearnerRun]) -> None:
        share = self._share(runs)
        for run in runs:
            run.seconds_eval += share

    def _share(self, runs: Sequence[LearnerRun]) -> float:
        passed, self._mark = time.perf_counter() - self._mark, time.perf_counter()
        return passed / max(1, len(runs))


def _check(learners: Sequence[Learner], streams: Sequence[Stream], batch_size: int, wanted: _Monitors) -> None:
    if not learners or len(learners) != len(streams):
        raise StreamError(f"{len(learners)} learners for {len(streams)} streams; each learner needs its own stream")
    if batch_size < 1:
        raise StreamError(f"batch_size is {batch_size}; it must be at least 1")
    lengths = {tuple(len(task.train) for task in stream.tasks) for stream in streams}
    if len(lengths) > 1:
        raise StreamError("streams that run side by side must have tasks of the same lengths")
    if len({learner.order for learner in learners}) > 1:
        raise ConfigError("joint training does not run side by side with learners that take one task after another")
    if len({learner.epochs for learner in learners}) > 1:
        raise ConfigError("learners that run side by side must have the same number of epochs")
    for learner, stream in zip(learners, streams, strict=True):
        if stream.boundaries == "detect" and stream.scenario == "task":
            raise StreamError(
                f"boundaries of {stream.name} cannot be found: the tasks use the same labels for different classes; "
                f"take scenario {stream.one_head_scenario}"
            )
        if stream.boundaries != "told" and learner.order != "tasks":
            raise ConfigError(
                f"{learner.name} trains on all tasks of {stream.name} shuffled together, where no boundary can be "
                f"{'found' if stream.boundaries == 'detect' else 'hidden'}; leave stream.boundaries at told"
            )
        if stream.boundaries == "detect" and learner.epochs > 1:
            raise ConfigError(
                f"boundaries are found in a single pass over the stream; {learner.name} makes {learner.epochs}, so set "
                "epochs=1"
            )
        if learner.spec != stream.spec:
            raise StreamError(f"the learner was made for {learner.spec}, but stream {stream.name!r} has {stream.spec}")
        if not stream.has_tests and (wanted.evaluate_every or not wanted.prequential):
            raise ConfigError(
                f"{stream.name} has no test samples, so only its prequential accuracy can be measured: set "
                "run.prequential=true (in Python prequential=True) and leave run.evaluate_every at 0"
            )
        if stream.boundaries == "told":
            learner.engine.check_room(len(stream), f"{stream.name} has {len(stream)} tasks")


def _wait(runs: Sequence[LearnerRun]) -> None:
    for device in {run.learner.device for run in runs if run.learner.device.type == "cuda"}:
        torch.cuda.synchronize(device)


# ---- skipped steps ---------------------------------------------------------------------------------------------------
class _SkippedSteps:
    """Counts the diverged steps that runs skip from now on; asks their devices only now and at the end."""

    def __init__(self, runs: Sequence[LearnerRun]) -> None:
        skipping = [run for run in runs if run.learner.compute.on_divergence == "skip"]
        self._from = [(run, run.learner.steps, _skipped(run)) for run in skipping]

    def warn(self) -> None:
        """Log a warning for each seed that skipped any."""
        for run, steps, count in self._from:
            skipped = _skipped(run) - count
            if skipped:
                text = skipped_line(skipped, run.learner.steps - steps, since=steps)
                _log.warning("scale-cl: warning: seed %d: %s", run.stream.seed, text)


def skipped_line(skipped: int, steps: int, *, since: int = 0) -> str:
    """The warning that so many of `steps` steps, made after step `since`, were skipped."""
    part = f"{steps} steps" + (f" since step {since}" if since else "")
    were = "was" if skipped == 1 else "were"
    text = f"{skipped} of {part} {were} skipped, because a loss or gradient was not finite"
    return f"{text}; the model is likely useless: lower the rate" if 2 * skipped > steps else text


@contextlib.contextmanager
def _read_as_they_come(streams: Sequence[Stream]) -> Iterator[None]:
    """After training, end the workers that read data and log how many samples could not be read and were left out."""
    inputs = [x for stream in streams for arrays in stream.sources() for x in (arrays.x_train, arrays.x_test)]
    readers = {id(x.readers): x.readers for x in inputs if isinstance(x, LazyRows)}
    try:
        yield
    finally:
        for one in readers.values():
            one.close()
    if count := sum(len(one.skipped) for one in readers.values()):
        _log.warning("scale-cl: warning: samples that could not be read and were left out: %d", count)


def _skipped(run: LearnerRun) -> int:
    with run.on_device():
        return run.learner.skipped_steps
