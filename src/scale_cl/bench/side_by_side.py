"""Part `seeds`: steps a second of several seeds together, on one GPU or over processes of a CPU."""

from __future__ import annotations

import multiprocessing
import os
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Any

import torch

from scale_cl.bench.bench_data import Material, material
from scale_cl.bench.conditions import Conditions
from scale_cl.training.learner_run import LearnerRun
from scale_cl.training.loop import runners_of

_WARM_UP = 10  # steps in each of two tasks


def throughput(
    given: Material, learner: str, how: Conditions, *, counts: list[int], steps: int
) -> list[dict[str, Any]]:
    """A row for each number of seeds; `steps` are those of one seed, in the second task."""
    rows = []
    for count in counts:
        if how.clock.device.type == "cuda":
            seconds, processes = _together(given, learner, how, count, steps), 1
        else:
            seconds, processes = _over_processes(given, learner, how, count, steps)
        row = {"stream": given.name, "data": given.data, "learner": learner, "seeds": count, "processes": processes}
        rows.append(row | {"seconds": seconds, "steps_per_second": count * steps / seconds})
    return rows


def _together(given: Material, learner: str, how: Conditions, count: int, steps: int) -> float:
    """Wall seconds that so many seeds take for their steps, each by a crew's thread and on a CUDA stream of its own."""
    lanes = _lanes(given, learner, how, list(range(count)))
    with runners_of(lanes) as crew:
        # libraries keep state for each thread: it is made before the clock runs
        crew.each(lanes, partial(_take_steps, steps=2, batch_size=how.batch_size))
        how.clock.wait()
        began = time.perf_counter()
        crew.each(lanes, partial(_take_steps, steps=steps, batch_size=how.batch_size))
        how.clock.wait()
        return time.perf_counter() - began


def _over_processes(given: Material, learner: str, how: Conditions, count: int, steps: int) -> tuple[float, int]:
    """Wall seconds from the first step to the last, and over how many processes; their start does not count."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    processes = min(count, max(1, cores // how.threads))
    shares = [list(range(first, count, processes)) for first in range(processes)]
    spawn = multiprocessing.get_context("spawn")
    with spawn.Manager() as manager, ProcessPoolExecutor(processes, mp_context=spawn) as pool:
        ready = manager.Barrier(processes)
        name, synthetic = given.name, given.data == "synthetic"
        futures = [pool.submit(_share, name, synthetic, learner, how, seeds, steps, ready) for seeds in shares]
        spans = [future.result() for future in futures]
    return max(end for _, end in spans) - min(begin for begin, _ in spans), processes


def _share(
    name: str, synthetic: bool, learner: str, how: Conditions, seeds: list[int], steps: int, ready: Any
) -> tuple[float, float]:
    """In a process: the seeds of its share, one after another; when the first began and when the last was done."""
    torch.set_num_threads(how.threads)
    lanes = _lanes(material(name, how.root, synthetic=synthetic), learner, how, seeds)
    ready.wait(timeout=600)
    began = time.time()
    for lane in lanes:
        _take_steps(lane, steps, how.batch_size)
    return began, time.time()


def _lanes(given: Material, learner: str, how: Conditions, seeds: list[int]) -> list[LearnerRun]:
    """A lane for each seed, warmed up and in its second task."""
    lanes = []
    for seed in seeds:
        stream = given.stream(seed=seed, tasks=2)
        lanes.append(LearnerRun(how.learner(learner, stream, seed=seed), stream))
    for task in range(2):
        for lane in lanes:
            with lane.on_device():
                lane.x, lane.y = lane.stream.train_data(task)
                lane.learner.begin_task(lane.stream.tasks[task].info)
            _take_steps(lane, _WARM_UP, how.batch_size)
    return lanes


def _take_steps(lane: LearnerRun, steps: int, batch_size: int) -> None:
    whole = len(lane.x) // batch_size
    for step in range(steps):
        start = step % whole * batch_size
        with lane.on_device():
            lane.learner.observe(lane.x[start : start + batch_size], lane.y[start : start + batch_size])
