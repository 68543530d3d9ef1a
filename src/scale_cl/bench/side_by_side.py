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
    """Wall seconds that so many seeds take for their steps, each with a thread and a CUDA stream of its own."""
    runs = _runs(given, learner, how, list(range(count)))
    with runners_of(runs) as runners:
        # libraries keep state for each thread: it is made before the clock runs
        runners.each(runs, partial(_take_steps, steps=2, batch_size=how.batch_size))
        how.clock.wait()
        began = time.perf_counter()
        runners.each(runs, partial(_take_steps, steps=steps, batch_size=how.batch_size))
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
    runs = _runs(material(name, how.root, synthetic=synthetic), learner, how, seeds)
    ready.wait(timeout=600)
    began = time.time()
    for run in runs:
        _take_steps(run, steps, how.batch_size)
    return began, time.time()


def _runs(given: Material, learner: str, how: Conditions, seeds: list[int]) -> list[LearnerRun]:
    """A run for each seed, warmed up and in its second task."""
    runs = []
    for seed in seeds:
        stream = given.stream(seed=seed, tasks=2)
        runs.append(LearnerRun(how.learner(learner, stream, seed=seed), stream))
    for task in range(2):
        for run in runs:
            with run.on_device():
                run.x, run.y = run.stream.train_data(task)
                run.learner.begin_task(run.stream.tasks[task].info)
            _take_steps(run, _WARM_UP, how.batch_size)
    return runs


def _take_steps(run: LearnerRun, steps: int, batch_size: int) -> None:
    whole = len(run.x) // batch_size
    for step in range(steps):
        start = step % whole * batch_size
        with run.on_device():
            run.learner.observe(run.x[start : start + batch_size], run.y[start : start + batch_size])
