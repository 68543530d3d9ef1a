"""Parts `streams` and `seeds`: whole streams from start to end, and several seeds side by side.

Seeds share one GPU, or are spread over processes of a CPU.
"""

from __future__ import annotations

import multiprocessing
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Any

import torch

from scale_cl.bench.conditions import BenchData, Conditions, bench_data
from scale_cl.experiments.local import cores
from scale_cl.training import train
from scale_cl.training.learner_run import LearnerRun
from scale_cl.training.loop import runners_of

_WARM_UP = 10  # steps in each of two tasks


def stream_times(data: BenchData, learners: list[str], how: Conditions, *, tasks: int | None) -> list[dict[str, Any]]:
    """Part `streams`, one row per learner: wall seconds of the whole run, evaluation included, and peak memory."""
    clock = how.clock
    stream = data.stream(tasks=tasks).to(clock.device)
    rows = []
    for name in learners:
        clock.reset_peak()
        clock.wait()
        began = time.perf_counter()
        learner = how.learner(name, stream)
        result = train(learner, stream, batch_size=how.batch_size)
        clock.wait()
        rows.append(
            {
                "stream": stream.name,
                "data": data.data,
                "learner": name,
                "tasks": len(stream),
                "steps": learner.steps,
                "seconds": time.perf_counter() - began,
                "seconds_train": result.seconds_train,
                "seconds_eval": result.seconds_eval,
                "peak_bytes": clock.peak_bytes(),
            }
        )
    return rows


def throughput(
    data: BenchData, learner: str, how: Conditions, *, counts: list[int], steps: int
) -> list[dict[str, Any]]:
    """Part `seeds`, one row per number of seeds; `steps` is the number of steps per seed, in the second task."""
    rows = []
    for count in counts:
        if how.clock.device.type == "cuda":
            seconds, processes = _together(data, learner, how, count, steps), 1
        else:
            seconds, processes = _over_processes(data, learner, how, count, steps)
        row = {"stream": data.name, "data": data.data, "learner": learner, "seeds": count, "processes": processes}
        rows.append(row | {"seconds": seconds, "steps_per_second": count * steps / seconds})
    return rows


def _together(given: BenchData, learner: str, how: Conditions, count: int, steps: int) -> float:
    """Wall seconds for the steps of all seeds, each in its own thread and on its own CUDA stream."""
    runs = _learner_runs(given, learner, how, list(range(count)))
    with runners_of(runs) as runners:
        # libraries keep state per thread: create it before the clock runs
        runners.each(runs, partial(_take_steps, steps=2, batch_size=how.batch_size))
        how.clock.wait()
        began = time.perf_counter()
        runners.each(runs, partial(_take_steps, steps=steps, batch_size=how.batch_size))
        how.clock.wait()
        return time.perf_counter() - began


def _over_processes(given: BenchData, learner: str, how: Conditions, count: int, steps: int) -> tuple[float, int]:
    """Wall seconds from the first step to the last, and the number of processes; their start does not count."""
    processes = min(count, max(1, len(cores()) // how.threads))
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
    """In a process: run its seeds one after another; return the times of the first start and of the last end."""
    torch.set_num_threads(how.threads)
    runs = _learner_runs(bench_data(name, how.root, synthetic=synthetic), learner, how, seeds)
    ready.wait(timeout=600)
    began = time.time()
    for run in runs:
        _take_steps(run, steps, how.batch_size)
    return began, time.time()


def _learner_runs(given: BenchData, learner: str, how: Conditions, seeds: list[int]) -> list[LearnerRun]:
    """One run per seed, warmed up and in its second task."""
    runs = []
    for seed in seeds:
        stream = given.stream(seed=seed, tasks=2)
        runs.append(LearnerRun(how.learner(learner, stream, seed=seed), stream))
    for task in range(2):
        for run in runs:
            with run.on_device():
                run.samples = run.stream.arrival(task, run.learner.device)
                run.learner.begin_task(run.stream.tasks[task].info)
            _take_steps(run, _WARM_UP, how.batch_size)
    return runs


def _take_steps(run: LearnerRun, steps: int, batch_size: int) -> None:
    whole = len(run.samples) // batch_size
    for step in range(steps):
        start = step % whole * batch_size
        with run.on_device():
            run.learner.observe(*run.samples.take(start, start + batch_size))
