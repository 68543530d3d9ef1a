"""A whole run from its config: all seeds side by side on a GPU, or over the processes that a CPU has cores for."""

from __future__ import annotations

import multiprocessing
import os
import threading
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from scale_cl import streams
from scale_cl.learners import Learner, catalog
from scale_cl.results import SeedResult
from scale_cl.training.config import Config
from scale_cl.training.loop import train, train_many
from scale_cl.training.machine import choose_device, compute, prepare
from scale_cl.training.observer import NoObserver, Observer


def run(config: Config, *, root: Path | None = None, observer: Observer | None = None) -> list[SeedResult]:
    """Build the streams and learners of every seed and train them; `root` is where the data lies."""
    device = choose_device(config.run.device)
    if device.type == "cuda":
        return _side_by_side(config, root, observer)
    processes = min(len(config.seeds), config.run.processes or max(1, _cores() // config.run.threads))
    if processes > 1:
        return _over_processes(config, root, observer or NoObserver(), processes)
    return _one_by_one(config, config.seeds, root, observer)


def build_stream(config: Config, seed: int, root: Path | None) -> streams.Stream:
    """The stream of one seed; the arrays behind it are read once a process."""
    c = config.stream
    return streams.load(c.name, seed=seed, root=root, class_order=c.class_order, part=c.part, tasks=c.tasks)


def build_learner(config: Config, stream: streams.Stream, seed: int, device: torch.device) -> Learner:
    """The learner of one seed, new."""
    how = compute(config.run, device)
    return catalog.make(config.learner_name, stream.spec, config.learner, seed=seed, device=device, compute=how)


def _side_by_side(config: Config, root: Path | None, observer: Observer | None) -> list[SeedResult]:
    device = prepare(config.run)
    tracks = [build_stream(config, seed, root) for seed in config.seeds]
    learners = [build_learner(config, track, seed, device) for track, seed in zip(tracks, config.seeds, strict=True)]
    batch = config.run.batch_size
    return train_many(learners, tracks, batch_size=batch, observer=observer, config=config.as_dict())


def _one_by_one(config: Config, seeds: list[int], root: Path | None, observer: Observer | None) -> list[SeedResult]:
    device = prepare(config.run)
    results = []
    watcher = _Together(observer or NoObserver(), config.seeds)
    for seed in seeds:
        stream = build_stream(config, seed, root)
        learner = build_learner(config, stream, seed, device)
        batch = config.run.batch_size
        results.append(train(learner, stream, batch_size=batch, observer=watcher.of(seed), config=config.as_dict()))
    watcher.close()
    return results


def _over_processes(config: Config, root: Path | None, observer: Observer, processes: int) -> list[SeedResult]:
    """Each seed in a process of its own turn; a thread passes on what they report."""
    build_stream(replace(config, stream=config.stream), config.seeds[0], root)  # bad data fails here, once and clearly
    spawn = multiprocessing.get_context("spawn")
    with spawn.Manager() as manager, ProcessPoolExecutor(processes, mp_context=spawn) as pool:
        events = manager.Queue()
        watcher = _Together(observer, config.seeds)
        listener = threading.Thread(target=watcher.listen, args=(events,), daemon=True)
        listener.start()
        try:
            futures = [pool.submit(_seed_in_process, config, seed, root, events) for seed in config.seeds]
            results = [future.result() for future in futures]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
        finally:
            events.put(None)
            listener.join(timeout=10)
        watcher.close()
    return results


def _seed_in_process(config: Config, seed: int, root: Path | None, events: Any) -> SeedResult:
    device = prepare(config.run)
    stream = build_stream(config, seed, root)
    learner = build_learner(config, stream, seed, device)
    watcher = _Sender(events, seed)
    batch = config.run.batch_size
    return train(learner, stream, batch_size=batch, observer=watcher, config=config.as_dict())


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class _Sender:
    """The observer of a seed in a process: passes on what happens, steps in groups."""

    _GROUP = 20

    def __init__(self, events: Any, seed: int) -> None:
        self._events, self._seed, self._all = events, seed, 0

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

    def close(self) -> None:
        """All seeds are done."""
        self._observer.finished()


class _Direct(_Sender):
    _GROUP = 1

    def __init__(self, together: _Together, seed: int) -> None:
        super().__init__(None, seed)
        self._together = together

    def _send(self, what: str, *values: object) -> None:
        self._together.take(self._seed, what, values)
