"""A whole run from its config: `run(config, out=DIR)`, with checkpoints, a note and the result in that directory.

On a GPU all seeds train side by side, with `run_side_by_side` those of several runs; on a CPU they are spread over
processes.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from scale_cl import results
from scale_cl.errors import ConfigError, DivergenceError, Interrupted, OutputInUseError, ResultError, ScaleClError
from scale_cl.learners import Learner
from scale_cl.results import RunResult, SeedResult
from scale_cl.streams import Stream
from scale_cl.training import machine
from scale_cl.training.checkpoint import UnusableCheckpointError, UnwrittenCheckpointError
from scale_cl.training.checkpointing import same_settings
from scale_cl.training.config import Config, streams_learnt
from scale_cl.training.events import Event, Listener, Loaded, ignore, to_all
from scale_cl.training.lanes import Job, process_count, remarks, train_lanes
from scale_cl.training.machine import choose_device
from scale_cl.training.memory_check import check_fits
from scale_cl.training.parallel import FewSteps, MergedEvents, train_over_processes
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

    On a CPU, several seeds train in processes of their own, unless `run.processes` is 1; as in every Python program
    that starts processes, a script then needs `if __name__ == "__main__":` around what it does.

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
    if not isinstance(config, Config):
        raise ConfigError(f"config is a {type(config).__name__}; make it by scale_cl.resolve(stream=..., learner=...)")
    job = Job(config, data, None, resume, stop, on_event or ignore, loss_every, on_trained)
    recorded = partial(_environment, config, arguments, environment or {})
    if out is None:
        return _trained(job, recorded)
    directory = out if isinstance(out, RunDirectory) else RunDirectory(out)
    _check_outside(directory, config)
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


def run_side_by_side(
    runs: Sequence[tuple[RunDirectory, RunRequest]],
    *,
    on_event: Listener | None = None,
    environment: Mapping[str, Any] | None = None,
) -> list[RunResult | ScaleClError]:
    """Train several runs at once in this process, as `run` on a GPU trains the seeds of one run.

    The runs have the same stream, learner, number of epochs and settings of the section `run`. They may differ in
    other settings of the learner, in the class order and in the seeds. Each has its checkpoints and its result in its
    own directory, as by `run(config, directory, resume=True, force=True)`, and all but the times is the same; so after
    a kill each goes on, alone or in any group. Its times are its share of what all took.

    Runs that cannot train together are trained in two halves, and these likewise, in the end each run alone: if they
    need more than half of the free memory, or if one of them has settings that are refused or a damaged checkpoint.

    Returns:
        The result of each run, or its error: a run that diverges does not end the others. An error that is no
        ScaleClError ends all.
    """
    if not runs:
        return []
    with contextlib.ExitStack() as claims:
        for directory, _ in runs:
            claims.enter_context(directory.claimed(force=True))
        try:
            if len(runs) > 1:
                return _run_together(runs, on_event or ignore, environment or {})
            ((directory, asked),) = runs
            how: dict[str, Any] = {"resume": True, "force": True, "on_event": on_event, "environment": environment}
            return [run(asked.config, directory, data=asked.data, arguments=asked.arguments, **how)]
        except ScaleClError as error:
            if len(runs) == 1:
                return [error]
            _log.debug("%d runs do not train together: %s", len(runs), error)
    halves = runs[: len(runs) // 2], runs[len(runs) // 2 :]
    return [one for half in halves for one in run_side_by_side(half, on_event=on_event, environment=environment)]


def _run_together(
    runs: Sequence[tuple[RunDirectory, RunRequest]], tell: Listener, environment: Mapping[str, Any]
) -> list[RunResult | ScaleClError]:
    """Train several runs into directories that are claimed; an error that is not of a single run is raised."""
    began, jobs, diverged = time.perf_counter(), list[Job](), dict[int, DivergenceError]()
    if any(asked.config.own_data for _, asked in runs):
        raise ConfigError("runs on images of your own do not train side by side")
    try:
        for directory, asked in runs:
            _check_noted(directory, force=True)
            jobs.append(Job(asked.config, asked.data, directory.path, directory.unfinished, tell=tell))
            directory.begin(asked, resume=jobs[-1].resume)
        earlier = [directory.seconds_spent(asked.config.seeds) for directory, asked in runs]
        lanes = [(job, seed) for job in jobs for seed in job.config.seeds]
        trained = train_lanes(lanes, diverged)
    except BaseException:
        for directory, _ in runs:
            directory.abandon()
        raise
    share, numbers = (time.perf_counter() - began) / len(lanes), iter(range(len(lanes)))
    of_lane = dict(zip((number for number in range(len(lanes)) if number not in diverged), trained, strict=True))
    outcomes = list[RunResult | ScaleClError]()
    for (directory, asked), before in zip(runs, earlier, strict=True):
        config, own = asked.config, list(islice(numbers, len(asked.config.seeds)))
        try:
            for number, error in diverged.items():  # the first one first
                if number in own:
                    raise error
            seeds = tuple(replace(of_lane[number], preset=config.preset) for number in own)
            made = RunResult(seeds, _environment(config, asked.arguments, environment), before + share * len(own))
            directory.finish(made, keep_state=config.keeps_state)
            outcomes.append(made)
        except DivergenceError as error:
            directory.abandon()
            outcomes.append(error)
        except ResultError as error:
            directory.abandon()
            outcomes.append(ResultError(f"{error}; {directory.prospect}"))
    return outcomes


def _check_outside(directory: RunDirectory, config: Config) -> None:
    """Raise OutputInUseError if a run writes among its images, where its folders would be taken for tasks."""
    own = config.own_data
    if own is not None and directory.path.resolve().is_relative_to(own.path.resolve()):
        raise OutputInUseError(
            f"{directory.path} lies in {own.path}, whose folders are tasks; choose an --out outside of it"
        )


def _check_noted(directory: RunDirectory, *, force: bool) -> None:
    try:
        directory.check_noted()
    except OutputInUseError as error:
        if not force:
            raise
        _log.warning("scale-cl: warning: %s; the run starts again", error)


def _trained_into(directory: RunDirectory, request: RunRequest, recorded: Recorded, job: Job) -> RunResult:
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


def _trained(job: Job, recorded: Recorded) -> RunResult:
    config, began, loaded = job.config, time.perf_counter(), list[float]()

    def note_loading(event: Event) -> None:
        if isinstance(event, Loaded):
            loaded.append(time.perf_counter() - began)

    job = replace(job, tell=to_all(note_loading, job.tell))
    processes = process_count(config)
    if choose_device(config.run.device).type == "cuda":
        seeds = train_lanes([(job, seed) for seed in config.seeds])
    elif processes > 1:
        seeds = _over_processes(job, processes)
    else:
        merged = MergedEvents(job.tell, config.seeds)
        each = [replace(job, tell=partial(merged.take, seed)) for seed in config.seeds]
        seeds = [train_lanes([lane])[0] for lane in zip(each, config.seeds, strict=True)]
    seeds = [replace(seed, preset=config.preset) for seed in seeds]
    return RunResult(tuple(seeds), recorded(), time.perf_counter() - began, min(loaded, default=0.0))


def _environment(config: Config, arguments: list[str] | None, more: Mapping[str, Any]) -> dict[str, Any]:
    return {**machine.describe(choose_device(config.run.device), config.run.threads, arguments), **more}


# ---- processes -------------------------------------------------------------------------------------------------------
def _over_processes(job: Job, processes: int) -> list[SeedResult]:
    """Train the seeds over several processes."""
    config = job.config
    first = job.stream(config.seeds[0])  # bad data fails here, once and clearly
    merged = MergedEvents(job.tell, config.seeds)
    merged.take(config.seeds[0], Loaded(remarks(first)))
    check_fits(config, first, choose_device(config.run.device), learners=processes, apart=True)
    train = partial(_train_in_process, replace(job, stop=None, tell=ignore))
    return train_over_processes(train, config.seeds, processes, tell=merged.take, stop=job.stop)


def _train_in_process(job: Job, seed: int, tell: Listener, stop: Callable[[], bool]) -> SeedResult:
    return train_lanes([(replace(job, stop=stop, tell=FewSteps(tell)), seed)])[0]
