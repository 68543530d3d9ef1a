"""A whole run from its config: `run(config, out=DIR)`, with checkpoints, a note and the result in that directory.

On a GPU all seeds train side by side; on a CPU they are spread over processes.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from scale_cl import results, streams
from scale_cl.errors import Interrupted, OutputInUseError, ResultError
from scale_cl.learners import Learner, registry
from scale_cl.results import RunResult, SeedResult
from scale_cl.streams import Stream, catalog
from scale_cl.streams.keeping import room
from scale_cl.streams.sources.source import Progress
from scale_cl.streams.user_streams import load_own
from scale_cl.training import machine
from scale_cl.training.checkpoint import UnusableCheckpointError, UnwrittenCheckpointError
from scale_cl.training.checkpointing import Checkpointer, same_settings
from scale_cl.training.config import Config, StreamSettings, streams_learnt
from scale_cl.training.events import Event, Finished, Listener, Loaded, Started, Stepped, TaskStarted, ignore, to_all
from scale_cl.training.learnt_streams import after_earlier
from scale_cl.training.loop import train_many
from scale_cl.training.machine import choose_device, compute, prepare
from scale_cl.training.memory_check import check_fits
from scale_cl.training.processes import train_over_processes
from scale_cl.training.run_directory import RunDirectory, RunRequest

_log = logging.getLogger("scale_cl")
Recorded = Callable[[], dict[str, Any]]  # makes the environment of a result


def run(
    config: Config,
    out: str | os.PathLike[str] | RunDirectory | None = None,
    *,
    data: Path | None = None,
    resume: bool = False,
    force: bool = False,
    on_event: Listener | None = None,
    loss_every: int = 0,
    stop: Callable[[], bool] | None = None,
    on_trained: Callable[[Learner, Stream], object] | None = None,
    arguments: list[str] | None = None,
    environment: Mapping[str, Any] | None = None,
) -> RunResult:
    """Train all seeds of a config and write the result to a directory.

        config = scale_cl.resolve(stream="digits", learner="er", options={"run.seeds": 3})
        result = scale_cl.run(config, out="runs/er")

    Args:
        config: made by `resolve`.
        out: the run's directory; None: nothing is written.
        data: where the data sets are; by default the environment variable SCALE_CL_DATA, or the user's cache.
        resume: continue the run that was interrupted in `out`, to the result that it would have had; start it if there
            is none; return the result if it is finished.
        force: replace a result or an unfinished run in `out`; with `resume`, only what cannot be continued.
        on_event: called with every event, see `scale_cl.training.events`.
        loss_every: steps from one `Losses` event to the next; 0: none.
        stop: called after every step or block of steps; once it returns true, the state is saved, if there is an
            `out`, and `Interrupted` raised.
        on_trained: called with each trained learner and its stream, in the process that trained it.
        arguments: of the command line, to be recorded.
        environment: further entries of the result's `environment`.
    """
    job = _Job(config, data, None, resume, stop, on_event or ignore, loss_every, on_trained)
    recorded = partial(_environment, config, arguments, environment or {})
    if out is None:
        return _trained(job, recorded)
    directory = out if isinstance(out, RunDirectory) else RunDirectory(out)
    with directory.claimed(force=force or resume):
        taught = False  # a finished run is taught one more stream
        if resume and directory.finished:
            done = results.read(directory.path)
            same = same_settings(done.seeds[0].config, config.as_dict())
            if same and [seed.seed for seed in done.seeds] == config.seeds:
                return done
            taught = bool(config.before) and streams_learnt(done.seeds[0].config) == config.before
            if not force and not taught:
                raise OutputInUseError(f"{directory.path} holds the result of another run; choose another directory")
        if resume:
            _check_noted(directory, force=force)
        job = replace(job, directory=directory.path, resume=resume and (directory.unfinished or taught))
        train_into = partial(_trained_into, directory, RunRequest(config, data, arguments), recorded)
        try:
            return train_into(job)
        except UnusableCheckpointError as error:
            if not (job.resume and force):
                raise
            _log.warning("scale-cl: warning: %s; the run starts again", error)
            return train_into(replace(job, resume=False))


def _check_noted(directory: RunDirectory, *, force: bool) -> None:
    try:
        directory.check_noted()
    except OutputInUseError as error:
        if not force:
            raise
        _log.warning("scale-cl: warning: %s; the run starts again", error)


def build_stream(config: Config, seed: int, root: Path | None, progress: Progress | None = None) -> Stream:
    """The stream of one seed; the arrays behind it are read once per process, or as they come.

    `progress` is called while images are read, and may raise an error to break off.
    """
    c, own = config.stream, config.own_data
    if own is not None:
        device = choose_device(config.run.device)
        copies = 1 if device.type == "cuda" else _processes(config)
        made = load_own(own, seed=seed, tasks=c.tasks, room=room(device, copies=copies), progress=progress)
    else:
        made = streams.load(
            c.name,
            seed=seed,
            root=root,
            scenario=c.scenario,
            class_order=c.class_order,
            part=c.part,
            tasks=c.tasks,
            size=c.size,
            progress=progress,
        )
    if c.train_share < 1:
        made = streams.thinned(made, c.train_share)
    if c.blur or c.schedule == "gaussian":
        made = streams.blurred(made, share=c.blur, schedule=c.schedule, width=c.width)
    return made if c.boundaries == "told" else replace(made, boundaries=c.boundaries)


def build_learner(config: Config, stream: Stream, seed: int, device: torch.device) -> Learner:
    """A new learner for one seed."""
    how = compute(config.run, device)
    learner = registry.make(config.learner_name, stream.spec, config.learner, seed=seed, device=device, compute=how)
    learner.engine.advice = ", or let such steps be skipped"  # the command line adds the option
    return learner


@dataclass(frozen=True)
class _Job:
    """What the training of every seed needs."""

    config: Config
    data: Path | None
    directory: Path | None  # None: no checkpoints
    resume: bool
    stop: Callable[[], bool] | None
    tell: Listener
    loss_every: int
    on_trained: Callable[[Learner, Stream], object] | None

    def check_stop(self, done: int, total: int) -> None:
        """Raise Interrupted if the run is to stop; called while data is read, when there is nothing to save."""
        if self.stop is not None and self.stop():
            raise Interrupted("stopped as asked while the data was read")

    def checkpointer(self) -> Checkpointer | None:
        """Writes checkpoints as the config says, if there is a directory for them."""
        c = self.config.run
        if self.directory is None:
            return None
        return Checkpointer(
            self.directory,
            every=c.checkpoint_every,
            seconds=c.checkpoint_seconds,
            kept=c.checkpoints_kept,
            resume=self.resume,
            stop=self.stop,
            here=os.path.relpath(self.config.base or Path.cwd(), self.directory) if self.config.own_data else None,
        )

    def stream(self, seed: int) -> Stream:
        """The stream of one seed, after those that were learnt before it."""
        config, made = self.config, build_stream(self.config, seed, self.data, self.check_stop)
        if not config.before:
            return made
        folder = None if self.directory is None else RunDirectory(self.directory).checkpoints_of(seed)
        known = folder if self.resume else None

        def build(settings: StreamSettings, base: Path | None) -> Stream:
            earlier = replace(config, stream=settings, before=(), base=base)
            return build_stream(earlier, seed, self.data, self.check_stop)

        return after_earlier(made, config.before, build, known, warn=seed == config.seeds[0])


def _trained_into(directory: RunDirectory, request: RunRequest, recorded: Recorded, job: _Job) -> RunResult:
    """Train into a claimed directory."""
    begun = job.resume and directory.unfinished
    directory.begin(request, resume=job.resume)
    earlier = directory.seconds_spent(job.config.seeds) if job.resume else 0.0
    try:
        result = _trained(job, recorded)
        result = replace(result, seconds_wall=result.seconds_wall + earlier)
        directory.finish(result, keep_state=job.config.keeps_state)
    except BaseException as error:  # all processes of the run have ended
        if not begun:
            directory.abandon(taught=job.resume)
        if isinstance(error, Interrupted):
            raise Interrupted(f"stopped as asked; {directory.prospect}") from None
        if isinstance(error, UnwrittenCheckpointError | ResultError):
            raise type(error)(f"{error}; {directory.prospect}") from error
        raise
    return result


def _trained(job: _Job, recorded: Recorded) -> RunResult:
    config, began, loaded = job.config, time.perf_counter(), list[float]()

    def note_loading(event: Event) -> None:
        if isinstance(event, Loaded):
            loaded.append(time.perf_counter() - began)

    job = replace(job, tell=to_all(note_loading, job.tell))
    processes = _processes(config)
    if choose_device(config.run.device).type == "cuda":
        seeds = _side_by_side(job, config.seeds)
    elif processes > 1:
        seeds = _over_processes(job, processes)
    else:
        merged = _MergedEvents(job.tell, config.seeds)
        each = [replace(job, tell=partial(merged.take, seed)) for seed in config.seeds]
        seeds = [_side_by_side(one, [seed])[0] for one, seed in zip(each, config.seeds, strict=True)]
    seeds = [replace(seed, preset=config.preset) for seed in seeds]
    return RunResult(tuple(seeds), recorded(), time.perf_counter() - began, min(loaded, default=0.0))


def _processes(config: Config) -> int:
    """Number of processes over which seeds are spread on a CPU."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(len(config.seeds), config.run.processes or max(1, cores // config.run.threads))


def _side_by_side(job: _Job, seeds: Sequence[int]) -> list[SeedResult]:
    """Train some seeds in this process, side by side."""
    config, device = job.config, prepare(job.config.run)
    if device.type == "cuda" and _uses_convolutions(config):
        machine.compile_kernels(config.run, device)  # while the data is read
    tracks = [job.stream(seed) for seed in seeds]
    job.tell(Loaded(_remarks(tracks[0])))
    check_fits(config, tracks[0], device, learners=len(tracks))
    learners = [build_learner(config, track, seed, device) for track, seed in zip(tracks, seeds, strict=True)]
    checkpointer = job.checkpointer()
    stop = job.stop if checkpointer is None else None  # a checkpointer heeds it by itself
    trained = train_many(
        learners,
        tracks,
        batch_size=config.run.batch_size,
        on_event=job.tell if stop is None else to_all(job.tell, partial(_stop_if_asked, stop)),
        loss_every=job.loss_every,
        evaluate_every=config.run.evaluate_every,
        evaluate_samples=config.run.evaluate_samples,
        prequential=config.run.prequential,
        config=config.as_dict(),
        checkpointer=checkpointer,
        detection=config.stream,
    )
    if job.on_trained is not None:
        for learner, track in zip(learners, tracks, strict=True):
            job.on_trained(learner, track)
    return trained


def _stop_if_asked(stop: Callable[[], bool], event: Event) -> None:
    if isinstance(event, Stepped) and stop():
        raise Interrupted("stopped as asked; nothing was kept")


def _remarks(stream: Stream) -> tuple[str, ...]:
    """What is odd about a stream, but no error."""
    single = [task.name for task in stream.tasks if len(task.classes) == 1]
    if stream.scenario != "task" or not single:
        return ()
    others = f" (as in {len(single) - 1} more)" if len(single) > 1 else ""
    return (
        f"task {single[0]} has a single class{others}, which its head always predicts: 100 % there says nothing; "
        "stream.scenario=class has one head for the classes of all tasks",
    )


def _uses_convolutions(config: Config) -> bool:
    """Whether the learner's network is a ResNet, as far as the config tells before the data is read."""
    own = config.own_data
    channels = catalog.entry(config.stream.name).channels if own is None else own.channels
    return config.learner.backbone == "resnet18" or (config.learner.backbone == "auto" and channels == 3)


def _environment(config: Config, arguments: list[str] | None, more: Mapping[str, Any]) -> dict[str, Any]:
    return {**machine.describe(choose_device(config.run.device), config.run.threads, arguments), **more}


# ---- processes -------------------------------------------------------------------------------------------------------
def _over_processes(job: _Job, processes: int) -> list[SeedResult]:
    """Train the seeds over several processes."""
    config = job.config
    first = job.stream(config.seeds[0])  # bad data fails here, once and clearly
    merged = _MergedEvents(job.tell, config.seeds)
    merged.take(config.seeds[0], Loaded(_remarks(first)))
    check_fits(config, first, choose_device(config.run.device), learners=processes, apart=True)
    train = partial(_train_in_process, replace(job, stop=None, tell=ignore))
    return train_over_processes(train, config.seeds, processes, tell=merged.take, stop=job.stop)


def _train_in_process(job: _Job, seed: int, tell: Listener, stop: Callable[[], bool]) -> SeedResult:
    return _side_by_side(replace(job, stop=stop, tell=_FewSteps(tell)), [seed])[0]


class _FewSteps:
    """Passes on the events of one seed; of its steps only every twentieth."""

    _EVERY = 20

    def __init__(self, tell: Listener) -> None:
        self._tell, self._all = tell, 0

    def __call__(self, event: Event) -> None:
        if isinstance(event, Started):
            self._all = event.steps
        if isinstance(event, Stepped) and event.steps % self._EVERY and event.steps != self._all:
            return
        self._tell(event)


class _MergedEvents:
    """Passes on the events of seeds that train independently as those of one run."""

    def __init__(self, tell: Listener, seeds: list[int]) -> None:
        self._tell = tell
        self._steps = dict.fromkeys(seeds, 0)
        self._loaded = self._started = False
        self._task = -1
        self._training = set(seeds)

    def take(self, seed: int, event: Event) -> None:
        """Pass on an event of one seed, if it is an event of the whole run as well."""
        match event:
            case Loaded():
                new, self._loaded = not self._loaded, True
            case Started():
                new, self._started = not self._started, True
                event = replace(event, seeds=tuple(self._steps))
            case TaskStarted(task=task):
                new, self._task = task > self._task, max(task, self._task)
            case Stepped(steps=steps):
                self._steps[seed] = steps
                of_each = tuple(self._steps.values())
                new, event = True, Stepped(sum(of_each) // len(of_each), of_each)
            case Finished():
                self._training.discard(seed)
                new = not self._training
            case _:
                new = True
        if new:
            self._tell(event)
