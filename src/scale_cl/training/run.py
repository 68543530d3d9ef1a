"""A whole run from its config: all seeds side by side on a GPU, or over the processes that a CPU has cores for."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from scale_cl import streams
from scale_cl.errors import Interrupted, ScaleClError
from scale_cl.learners import Learner, registry
from scale_cl.results import SeedResult
from scale_cl.streams import catalog
from scale_cl.streams.user_streams import load_own
from scale_cl.training import interruption
from scale_cl.training.checkpointing import Checkpointer
from scale_cl.training.config import Config
from scale_cl.training.events import Event, Finished, Listener, Loaded, Started, Stepped, TaskStarted
from scale_cl.training.loop import train, train_many
from scale_cl.training.machine import choose_device, compile_kernels, compute, prepare
from scale_cl.training.memory_check import check_fits


@dataclass(frozen=True)
class Saving:
    """Where a run keeps its checkpoints, and whether it goes on from those that are there."""

    directory: Path
    resume: bool = False

    def checkpointer(self, config: Config, stop: Callable[[], bool] | None) -> Checkpointer:
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
    tell: Listener
    loss_every: int

    def checkpointer(self, config: Config) -> Checkpointer | None:
        """What writes checkpoints, if any are to be written."""
        return None if self.saving is None else self.saving.checkpointer(config, self.stop)


def run(
    config: Config,
    *,
    root: Path | None = None,
    on_event: Listener | None = None,
    loss_every: int = 0,
    saving: Saving | None = None,
    stop: Callable[[], bool] | None = None,
) -> list[SeedResult]:
    """Build the streams and learners of every seed and train them; `root` is where the data lies.

    With `saving`, checkpoints are written; `stop` is asked after every step or block of steps and ends the run with
    `Interrupted`. `on_event` and `loss_every` are as for `train`.
    """
    around = _Around(root, saving, stop, on_event or _ignore, loss_every)
    device = choose_device(config.run.device)
    if device.type == "cuda":
        return _side_by_side(config, around)
    processes = min(len(config.seeds), config.run.processes or max(1, _cores() // config.run.threads))
    return _over_processes(config, around, processes) if processes > 1 else _one_by_one(config, around)


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


def _side_by_side(config: Config, around: _Around) -> list[SeedResult]:
    device = prepare(config.run)
    if _uses_convolutions(config):
        compile_kernels(config.run, device)
    tracks = [build_stream(config, seed, around.root) for seed in config.seeds]
    around.tell(Loaded())
    check_fits(config, tracks[0], device, learners=len(tracks))
    learners = [build_learner(config, track, seed, device) for track, seed in zip(tracks, config.seeds, strict=True)]
    return train_many(
        learners,
        tracks,
        batch_size=config.run.batch_size,
        on_event=around.tell,
        loss_every=around.loss_every,
        config=config.as_dict(),
        checkpointer=around.checkpointer(config),
    )


def _uses_convolutions(config: Config) -> bool:
    """Whether the learner's network is a ResNet, as far as the config tells before the data is read."""
    own = config.own_data
    channels = catalog.entry(config.stream.name).channels if own is None else own.channels
    return config.learner.backbone == "resnet18" or (config.learner.backbone == "auto" and channels == 3)


def _one_by_one(config: Config, around: _Around) -> list[SeedResult]:
    merged = _MergedEvents(around.tell, config.seeds)
    return [_one(config, seed, replace(around, tell=partial(merged.take, seed))) for seed in config.seeds]


def _one(config: Config, seed: int, around: _Around) -> SeedResult:
    device = prepare(config.run)
    stream = build_stream(config, seed, around.root)
    around.tell(Loaded())
    check_fits(config, stream, device, learners=1)
    return train(
        build_learner(config, stream, seed, device),
        stream,
        batch_size=config.run.batch_size,
        on_event=around.tell,
        loss_every=around.loss_every,
        config=config.as_dict(),
        checkpointer=around.checkpointer(config),
    )


def _over_processes(config: Config, around: _Around, processes: int) -> list[SeedResult]:
    """Each seed in a process; a thread passes their events on."""
    first = build_stream(config, config.seeds[0], around.root)  # bad data fails here, once and clearly
    merged = _MergedEvents(around.tell, config.seeds)
    merged.take(config.seeds[0], Loaded())
    check_fits(config, first, choose_device(config.run.device), learners=processes, apart=True)
    spawn = multiprocessing.get_context("spawn")
    events, stopping = spawn.SimpleQueue(), spawn.Event()
    listener = threading.Thread(target=merged.listen, args=(events,), daemon=True)
    listener.start()
    try:
        with ProcessPoolExecutor(processes, spawn, initializer=_enter_process, initargs=(events, stopping)) as pool:
            with interruption.blocked():
                given = around.root, around.saving, around.loss_every
                futures = [pool.submit(_seed_in_process, config, seed, *given) for seed in config.seeds]
            try:
                while wait(futures, timeout=_PATIENCE, return_when=FIRST_EXCEPTION).not_done:
                    if around.stop is not None and around.stop():
                        break
                    if any(future.done() and future.exception() for future in futures):
                        break
                else:
                    return [future.result() for future in futures]
            finally:  # an error, or the wish to stop: seeds that still run save and end
                stopping.set()
                pool.shutdown(wait=True, cancel_futures=True)
    except BrokenProcessPool:
        raise ScaleClError(_KILLED) from None
    finally:
        events.put(None)  # the queue is read in order: everything that was sent before is passed on
        listener.join(timeout=10)
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


def _seed_in_process(
    config: Config, seed: int, root: Path | None, saving: Saving | None, loss_every: int
) -> SeedResult:
    return _one(config, seed, _Around(root, saving, _stopping.is_set, _Sender(_events, seed), loss_every))


def _ignore(event: Event) -> None:
    pass


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class _Sender:
    """Sends the events of one seed from its process to the parent; of its steps only every twentieth."""

    _EVERY = 20

    def __init__(self, events: Any, seed: int) -> None:
        self._events, self._seed, self._all = events, seed, 0

    def __call__(self, event: Event) -> None:
        if isinstance(event, Started):
            self._all = event.steps
        if isinstance(event, Stepped) and event.steps % self._EVERY and event.steps != self._all:
            return
        self._events.put((self._seed, event))


class _MergedEvents:
    """Passes on the events of seeds that train independently as those of one run."""

    def __init__(self, tell: Listener, seeds: list[int]) -> None:
        self._tell = tell
        self._steps = dict.fromkeys(seeds, 0)
        self._loaded = self._started = False
        self._task = -1
        self._training = set(seeds)

    def listen(self, events: Any) -> None:
        """Pass on what processes send, until None."""
        while (sent := events.get()) is not None:
            self.take(*sent)

    def take(self, seed: int, event: Event) -> None:
        """Pass on an event of one seed, if it is one of the whole run as well."""
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
                new, event = True, Stepped(sum(self._steps.values()) // len(self._steps))
            case Finished():
                self._training.discard(seed)
                new = not self._training
            case _:
                new = True
        if new:
            self._tell(event)
