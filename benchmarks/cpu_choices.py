"""What the CPU's defaults rest on: one thread against two, and the step as it is against `torch.compile`.

    python benchmarks/cpu_choices.py --stream pmnist --out benchmarks/cpu-choices-pmnist.json

Both take turns in one process, on noise of the stream's shapes, and a figure is the median over rounds. What is
compiled is the network (`learner.net`): forward and backward; the steps around it stay as they are.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch

from scale_cl import files
from scale_cl.bench.conditions import BenchData, bench_data, new_learner
from scale_cl.bench.steps import Floor, fill_memory, images
from scale_cl.bench.suite import SCHEMA
from scale_cl.learners import Compute, Learner
from scale_cl.training.machine import describe

CPU = torch.device("cpu")
TASKS, BATCH = 4, 10


def main() -> None:
    """Measure, and write one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stream", default="pmnist")
    parser.add_argument("--learner", default="scale")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--block", type=int, default=20, help="steps in a round")
    parser.add_argument("--skip-compile", action="store_true", help="threads only")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    data = bench_data(given.stream, None, synthetic=True)
    entry: dict[str, Any] = {
        "schema": SCHEMA,
        "when": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "environment": describe(CPU, 1) | {"command": " ".join(["python", *sys.argv])},
        "settings": {"batch_size": BATCH, "rounds": given.rounds, "block": given.block},
        "stream": given.stream,
        "learner": given.learner,
        "threads": threads(data, given.learner, given.rounds, given.block),
    }
    if not given.skip_compile:
        entry["compile"] = compiled(data, given.learner, given.rounds, given.block)
    files.write_text(given.out, json.dumps(entry, indent=1, sort_keys=True) + "\n")
    print(json.dumps({name: entry[name] for name in ("threads", "compile") if name in entry}))


def threads(data: BenchData, name: str, rounds: int, block: int) -> dict[str, Any]:
    """Wall time of a step with two threads against one."""
    _, step = ready(data, name)
    calls = {str(n): partial(with_threads, n, step) for n in (1, 2)}
    seconds = in_turns(calls, rounds, block, time.perf_counter)
    torch.set_num_threads(1)
    return {"step_ms": {n: 1e3 * s for n, s in seconds.items()}, "two_against_one": seconds["2"] / seconds["1"]}


def compiled(data: BenchData, name: str, rounds: int, block: int) -> dict[str, Any]:
    """CPU time of the step with the network compiled against the one as it is, and what compiling takes."""
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp()  # what was compiled before is compiled again
    torch.set_num_threads(1)
    learner, step = ready(data, name)
    floor = Floor(learner, images(learner, BATCH), classes=len(data.stream(tasks=TASKS).tasks[-1].classes))
    other, compiled_step = ready(data, name)
    other.net.forward = torch.compile(other.net.forward)  # type: ignore[method-assign]
    began = time.perf_counter()
    for _ in range(2):
        compiled_step()
    spent = time.perf_counter() - began
    seconds = in_turns({"as it is": step, "compiled": compiled_step, "floor": floor}, rounds, block, time.thread_time)
    saved = seconds["as it is"] - seconds["compiled"]
    return {
        "first_two_steps_seconds": spent,
        "floors": {n: s / seconds["floor"] for n, s in seconds.items()},
        "steps_until_it_pays": spent / saved if saved > 0 else None,
    }


def ready(data: BenchData, name: str) -> tuple[Learner, Callable[[], object]]:
    """A learner in its last task, and its step."""
    stream = data.stream(tasks=TASKS)
    learner = new_learner(name, stream, seed=0, device=CPU, compute=Compute(precision="fp32", capture=False))
    fill_memory(learner, stream, BATCH)
    x, y = (part[:BATCH] for part in stream.train_data(len(stream) - 1))
    return learner, partial(learner.observe, x, y)


def with_threads(n: int, step: Callable[[], object]) -> None:
    """One step with so many threads."""
    torch.set_num_threads(n)
    step()


def in_turns(
    calls: Mapping[str, Callable[[], object]], rounds: int, block: int, clock: Callable[[], float]
) -> dict[str, float]:
    """Seconds of each call: the median over rounds; a first round is not counted."""
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds + 1):
        for name, call in calls.items():
            began = clock()
            for _ in range(block):
                call()
            seconds[name].append((clock() - began) / block)
    return {name: median(each[1:]) for name, each in seconds.items()}


if __name__ == "__main__":
    main()
