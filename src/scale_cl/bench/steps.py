"""Part `steps`: the time of each learner's step beside its floor, measured in turns in the same process.

Parts `streams` and `seeds`: whole streams from start to end, and several seeds side by side, which share one GPU or are
spread over processes of a CPU.
"""

from __future__ import annotations

import copy
import math
import multiprocessing
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from scale_cl.bench.conditions import BenchData, Conditions, bench_data
from scale_cl.cuda_graphs import Outputs, RecordedFunction
from scale_cl.experiments.local import cores
from scale_cl.learners import Learner
from scale_cl.nets.backbones import unmodulated
from scale_cl.plugins import give_references, given_references
from scale_cl.streams import Stream
from scale_cl.training import train
from scale_cl.training.learner_run import LearnerRun
from scale_cl.training.parallel import runners_of

_TASKS = 4  # the last one is timed: replay has its full size by then
_WARM_UP = 10  # steps; a CUDA graph is recorded at the second
_WARM_UP_OF_EACH = 10  # steps in each of two tasks
_RATE = 1e-6


def step_times(data: BenchData, learners: list[str], how: Conditions) -> list[dict[str, Any]]:
    """One row per learner: its step beside its floor, with images per update and updates of the backbone per step."""
    stream, batch_size = data.stream(tasks=_TASKS).to(how.clock.device), how.batch_size
    rows = []
    for name in learners:
        learner = how.learner(name, stream)
        fill_memory(learner, stream, batch_size)
        x, y = (part[:batch_size] for part in stream.train_data(len(stream) - 1))
        samples, count = images(learner, batch_size), updates(learner)
        floor = Floor(learner, samples, classes=len(stream.tasks[-1].classes))
        calls: dict[str, Callable[[], object]] = {"step": partial(learner.observe, x, y), "floor": floor}
        for call in calls.values():
            for _ in range(_WARM_UP):
                call()
        seconds = how.clock.medians(calls, rounds=how.rounds, block=how.block)
        ratio = seconds["step"] / seconds["floor"]
        row = {"stream": stream.name, "data": data.data, "learner": name, "images": samples, "updates": count}
        row |= {f"{what}_ms": 1e3 * taken for what, taken in seconds.items()}
        rows.append(row | {"ratio": ratio, "ratio_updates": ratio / count})
    return rows


def fill_memory(learner: Learner, stream: Stream, batch_size: int) -> None:
    """Train on all tasks but the last, just long enough to fill the memory, and begin the last one."""
    slots = int(getattr(learner.config, "memory", batch_size))
    for number, task in enumerate(stream.tasks):
        learner.begin_task(task.info)
        if number == len(stream) - 1:
            return
        x, y = stream.train_data(number)
        for some_x, some_y in zip(x[:slots].split(batch_size), y[:slots].split(batch_size), strict=True):
            learner.observe(some_x, some_y)


class Floor:
    """The floor under a step: forward, backward and SGD update of a learner's plain backbone with a linear head.

    It trains on noise, without memory or tasks. The images are floats in the learner's memory format, and on a GPU the
    update is one recorded graph, as the learner's step is.
    """

    def __init__(self, learner: Learner, samples: int, *, classes: int) -> None:
        """Copy the backbone; the learner does not change."""
        device, width = learner.device, learner.net.backbone.feature_width
        self._backbone = copy.deepcopy(learner.net.backbone)
        self._head = nn.Linear(width, classes).to(device)
        self._parameters: list[Tensor] = [*self._backbone.parameters(), *self._head.parameters()]
        x = torch.rand(samples, *learner.spec.shape, device=device)
        if learner.compute.channels_last and x.dim() == 4:
            x = x.contiguous(memory_format=torch.channels_last)
        self._inputs = x, torch.randint(0, classes, (samples,), device=device)
        generator, enabled = torch.Generator(device), learner.compute.capture
        self._update = RecordedFunction(self._updated, device=device, generator=generator, enabled=enabled)

    def __call__(self) -> None:
        """One update."""
        self._update("floor", *self._inputs)

    def _updated(self, x: Tensor, y: Tensor) -> Outputs:
        features = self._backbone.top(self._backbone.stem(x), unmodulated)[0]
        loss = F.cross_entropy(self._head(features), y)
        gradients = torch.autograd.grad(loss, self._parameters)
        with torch.no_grad():
            torch._foreach_add_(self._parameters, list(gradients), alpha=-_RATE)
        return {"loss": loss.detach()}


def images(learner: Learner, batch_size: int) -> int:
    """Images per update of the learner: the batch and the samples replayed with it."""
    stored = sum(memory.available() for memory in learner.engine.owned.memories.values())
    return batch_size + min(int(getattr(learner.config, "replay", 0)), stored)


def updates(learner: Learner) -> int:
    """Updates of the backbone per step, from the settings that the method names."""
    return math.prod(int(getattr(learner.config, name, 1)) for name in learner.update_settings)


# ---- whole streams, and seeds side by side ---------------------------------------------------------------------------
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
        what = partial(_share, given_references(), name, synthetic, learner, how)
        futures = [pool.submit(what, seeds, steps, ready) for seeds in shares]
        spans = [future.result() for future in futures]
    return max(end for _, end in spans) - min(begin for begin, _ in spans), processes


def _share(
    references: dict[str, dict[str, str]],
    name: str,
    synthetic: bool,
    learner: str,
    how: Conditions,
    seeds: list[int],
    steps: int,
    ready: Any,
) -> tuple[float, float]:
    """In a process: run its seeds one after another; return the times of the first start and of the last end."""
    give_references(references)
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
            _take_steps(run, _WARM_UP_OF_EACH, how.batch_size)
    return runs


def _take_steps(run: LearnerRun, steps: int, batch_size: int) -> None:
    whole = len(run.samples) // batch_size
    for step in range(steps):
        start = step % whole * batch_size
        with run.on_device():
            run.learner.observe(*run.samples.take(start, start + batch_size))
