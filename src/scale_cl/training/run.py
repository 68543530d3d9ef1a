"""A whole run from its config: all seeds side by side on a GPU, or over the processes that a CPU has cores for."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from scale_cl import streams
from scale_cl.errors import Interrupted, ScaleClError
from scale_cl.learners import Learner, registry
from scale_cl.results import SeedResult
from scale_cl.streams.user_streams import load_own
from scale_cl.training import interruption
from scale_cl.training.checkpointing import Checkpointer
from scale_cl.training.config import Config
from scale_cl.training.loop import train, train_many
from scale_cl.training.machine import choose_device, compile_kernels, compute, prepare
from scale_cl.training.memory_check import check_fits
from scale_cl.training.observer import NoObserver, Observer, Recorder, loss_interval


@dataclass(frozen=True)
class Saving:
    """Where a run keeps its checkpoints, and whether it goes on from those that are there."""

    directory: Path
    resume: bool = False

    def keeper(self, config: Config, stop: Callable[[], bool] | None) -> Checkpointer:
        """What writes them, as the config says."""
        c = config.run
        return Checkpointer(
            self.directory,
            every=c.checkpoint_every,
            seconds=c.checkpoint_seconds,
            kept=c.checkpoints_kept,
            resume=self.resume,
            stop=stop,
        )


@dataclass(frozen=True)
class _Around:
    """What surrounds the training of every seed."""

    root: Path | None
    saving: Saving | None
    stop: Callable[[], bool] | None
    loaded: Callable[[], object]

    def keeper(self, config: Config) -> Checkpointer | None:
        """What writes checkpoints, if any are to be written."""
        return None if self.saving is None else self.saving.keeper(config, self.stop)


def run(
    config: Config,
    *,
    root: Path | None = None,
    observer: Observer | None = None,
    saving: Saving | None = None,
    stop: Callable[[], bool] | None = None,
    loaded: Callable[[], object] | None = None,
) -> list[SeedResult]:
    """Build the streams and learners of every seed and train them; `root` is where the data lies.

    With `saving`, checkpoints are written; `stop` is asked after every step or block of them and ends the run with
    `Interrupted`. `loaded` is called when the data are read (of the first seed, where seeds go one after another).
    """
    around = _Around(root, saving, stop, loaded or _nothing)
    device = choose_device(config.run.device)
    if device.type == "cuda":
        return _side_by_side(config, around, observer)
    processes = min(len(config.seeds), config.run.processes or max(1, _cores() // config.run.threads))
    if processes > 1:
        return _over_processes(config, around, observer or NoObserver(), processes)
    return _one_by_one(config, around, observer)


def build_stream(config: Config, seed: int, root: Path | None) -> streams.Stream:
    """The stream of one seed; the arrays behind it are read once a process."""
    c, own = config.stream, config.own_data
    if own is not None:
        return load_own(own, seed=seed, tasks=c.tasks)
    return streams.load(c.name, seed=seed, root=root, class_order=c.class_order, part=c.part, tasks=c.tasks)


def build_learner(config: Config, stream: streams.Stream, seed: int, device: torch.device) -> Learner:
    """The learner of one seed, new."""
    how = compute(config.run, device)
    learner = registry.make(config.learner_name, stream.spec, config.learner, seed=seed, device=device, compute=how)
    learner.advice = "lower the rate, or let such steps be skipped"  # the command adds by which option
    return learner


def _side_by_side(config: Config, around: _Around, observer: Observer | None) -> list[SeedResult]:
    device = prepare(config.run)
    if config.stream.name not in ("digits", "pmnist"):
        compile_kernels(config.run, device)
    tracks = [build_stream(config, seed, around.root) for seed in config.seeds]
    around.loaded()
    check_fits(config, tracks[0], device, learners=len(tracks))
    learners = [build_learner(config, track, seed, device) for track, seed in zip(tracks, config.seeds, strict=True)]
    batch, keeper = config.run.batch_size, around.keeper(config)
    return train_many(learners, tracks, batch_size=batch, observer=observer, config=config.as_dict(), keeper=keeper)


def _one_by_one(config: Config, around: _Around, observer: Observer | None) -> list[SeedResult]:
    watcher = _Together(observer or NoObserver(), config.seeds)
    results = [_one(config, seed, around, watcher.of(seed)) for seed in config.seeds]
    watcher.close()
    return results


def _one(config: Config, seed: int, around: _Around, observer: Observer) -> SeedResult:
    device = prepare(config.run)
    stream = build_stream(config, seed, around.root)
    around.loaded()
    check_fits(config, stream, device, learners=1)
    learner = build_learner(config, stream, seed, device)
    batch, keeper = config.run.batch_size, around.keeper(config)
    return train(learner, stream, batch_size=batch, observer=observer, config=config.as_dict(), keeper=keeper)


def _over_processes(config: Config, around: _Around, observer: Observer, processes: int) -> list[SeedResult]:
    """Each seed in a process of its own turn; a thread passes on what they report."""
    first = build_stream(config, config.seeds[0], around.root)  # bad data fails here, once and clearly
    around.loaded()
    check_fits(config, first, choose_device(config.run.device), learners=processes, apart=True)
    spawn = multiprocessing.get_context("spawn")
    events, stopping = spawn.SimpleQueue(), spawn.Event()
    watcher = _Together(observer, config.seeds)
    listener = threading.Thread(target=watcher.listen, args=(events,), daemon=True)
    listener.start()

    def hear_out() -> None:  # all that was sent is passed on: the queue is read in order, and this is its last
        events.put(None)
        listener.join(timeout=10)

    try:
        with ProcessPoolExecutor(processes, spawn, initializer=_enter_process, initargs=(events, stopping)) as pool:
            with interruption.blocked():
                given = around.root, around.saving, loss_interval(observer)
                futures = [pool.submit(_seed_in_process, config, seed, *given) for seed in config.seeds]
            try:
                while wait(futures, timeout=_PATIENCE, return_when=FIRST_EXCEPTION).not_done:
                    if around.stop is not None and around.stop():
                        break
                    if any(future.done() and future.exception() for future in futures):
                        break
                else:
                    results = [future.result() for future in futures]
                    hear_out()
                    watcher.close()
                    return results
            finally:  # an error, or the wish to stop: whoever still runs saves and ends
                stopping.set()
                pool.shutdown(wait=True, cancel_futures=True)
    except BrokenProcessPool:
        raise ScaleClError(_KILLED) from None
    finally:
        hear_out()
    raise _reason(futures)


def _reason(futures: Sequence[Future[SeedResult]]) -> BaseException:
    """Why seeds did not finish: what went wrong with any, else that they were asked to stop."""
    ended = [future.exception() for future in futures if not future.cancelled()]
    errors = sorted((e for e in ended if e is not None), key=lambda e: isinstance(e, Interrupted))
    broken = any(isinstance(e, BrokenProcessPool) for e in errors)
    if broken:
        return ScaleClError(_KILLED)
    return errors[0] if errors else Interrupted("stopped as asked before training began")


_KILLED = "a process of this run was killed, perhaps for want of memory; try fewer processes"
_PATIENCE = 0.1  # seconds between looks at whether the run is to stop
_events: Any = None
_stopping: Any = None


def _enter_process(events: Any, stopping: Any) -> None:
    global _events, _stopping
    _events, _stopping = events, stopping
    interruption.die_with_parent()


def _seed_in_process(config: Config, seed: int, root: Path | None, saving: Saving | None, every: int) -> SeedResult:
    around = _Around(root, saving, _stopping.is_set, _nothing)
    return _one(config, seed, around, _Sender(_events, seed, every))


def _nothing() -> None:
    pass


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class _Sender:
    """The observer of a seed in a process: passes on what happens, steps in groups."""

    _GROUP = 20

    def __init__(self, events: Any, seed: int, loss_every: int) -> None:
        self._events, self._seed, self._all = events, seed, 0
        self.loss_every = loss_every

    def started(self, stream: str, learner: str, seeds: list[int], tasks: int, steps: int) -> None:
        self._all = steps
        self._send("started", stream, learner, seeds, tasks, steps)

    def task_started(self, task: int, name: str, steps: int) -> None:
        self._send("task_started", task, name, steps)

    def stepped(self, steps: int) -> None:
        if steps % self._GROUP == 0 or steps == self._all:
            self._send("stepped", steps)

    def evaluated(self, seed: int, task: int, accuracies: list[float]) -> None:
        self._send("evaluated", seed, task, accuracies)

    def losses(self, seed: int, step: int, terms: Mapping[str, float]) -> None:
        self._send("losses", seed, step, dict(terms))

    def restored(self, seed: int, steps: int, matrix: list[list[float | None]]) -> None:
        self._send("restored", seed, steps, matrix)

    def finished(self) -> None:
        self._send("finished")

    def _send(self, what: str, *values: object) -> None:
        self._events.put((self._seed, what, values))


class _Together:
    """Makes one run of several seeds that do not keep step: counts are means over the seeds."""

    def __init__(self, observer: Observer, seeds: list[int]) -> None:
        self._observer, self._seeds = observer, seeds
        self._steps = dict.fromkeys(seeds, 0)
        self._began = False
        self._task = -1
        self.loss_every = loss_interval(observer)

    def of(self, seed: int) -> Observer:
        """What one seed reports to, in the same process."""
        return _Direct(self, seed)

    def listen(self, events: Any) -> None:
        """Pass on what processes send, until None."""
        while (event := events.get()) is not None:
            self.take(*event)

    def take(self, seed: int, what: str, values: tuple[Any, ...]) -> None:
        """One report of one seed."""
        if what == "started" and not self._began:
            self._began = True
            stream, learner, _, tasks, steps = values
            self._observer.started(stream, learner, self._seeds, tasks, steps)
        elif what == "task_started" and values[0] > self._task:
            self._task = values[0]
            self._observer.task_started(*values)
        elif what == "stepped":
            self._steps[seed] = values[0]
            self._observer.stepped(sum(self._steps.values()) // len(self._steps))
        elif what == "evaluated":
            self._observer.evaluated(*values)
        elif what in ("losses", "restored") and isinstance(self._observer, Recorder):
            getattr(self._observer, what)(*values)

    def close(self) -> None:
        """All seeds are done."""
        self._observer.finished()


class _Direct(_Sender):
    _GROUP = 1

    def __init__(self, together: _Together, seed: int) -> None:
        super().__init__(None, seed, together.loss_every)
        self._together = together

    def _send(self, what: str, *values: object) -> None:
        self._together.take(self._seed, what, values)
