"""What SCALE's parameter generator costs in time on an MLP: in no hidden layer, in the last, in all; and ER beside it.

All train on the same stream in one process, in turns of ten steps, so that a busy machine slows all alike. Seconds are
of the CPU, of one thread, over the whole stream without tests.

    python benchmarks/generator_layers.py --seeds 5 --out results/claims/pmnist-layers.json
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from scale_cl import Stream, files, streams
from scale_cl.bench.conditions import Clock
from scale_cl.experiments.scale_variants import ScaleLastLayer
from scale_cl.learners import Learner, Scale, ScaleConfig, registry
from scale_cl.settings import build
from scale_cl.training.machine import describe

STREAM, BATCH, TURN = "pmnist", 10, 10
CLOCK = Clock(torch.device("cpu"), threads=1)


def learners(stream: Stream, seed: int) -> dict[str, Learner]:
    """By the layers that have a generator; ER has none."""
    config = build(ScaleConfig, registry.preset_settings("scale", stream.name))
    return {
        "none": Scale(stream.spec, replace(config, generator=False), seed=seed),
        "last": ScaleLastLayer(stream.spec, config, seed=seed),
        "all": Scale(stream.spec, config, seed=seed),
        "er": registry.make("er", stream.spec, seed=seed),
    }


def timed(stream: Stream, seed: int) -> dict[str, float]:
    """CPU seconds of each over the stream."""
    made = learners(stream, seed)
    seconds = dict.fromkeys(made, 0.0)
    for k, task in enumerate(stream.tasks):
        x, y = stream.train_data(k)
        turns = list(zip(x.split(BATCH * TURN), y.split(BATCH * TURN), strict=True))
        for turn, (some_x, some_y) in enumerate(turns):
            for name, learner in made.items():
                began = CLOCK.now()
                if turn == 0:
                    learner.begin_task(task.info)
                for batch in zip(some_x.split(BATCH), some_y.split(BATCH), strict=True):
                    learner.observe(*batch)
                if turn == len(turns) - 1:
                    learner.end_task()
                seconds[name] += CLOCK.now() - began
    return seconds


def main() -> None:
    """Measure, and write what was found."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tasks", type=int)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--data", help="where the data sets are")
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    torch.set_num_threads(CLOCK.threads)
    found: dict[str, list[float]] = {}
    for seed in range(asked.seeds):
        stream = streams.load(STREAM, seed=seed, root=asked.data, tasks=asked.tasks)
        for name, seconds in timed(stream, seed).items():
            found.setdefault(name, []).append(seconds)
        print(f"seed {seed}: " + ", ".join(f"{name} {each[-1]:.2f} s" for name, each in found.items()), flush=True)
    more = {name: 100 * (fmean(each) / fmean(found["none"]) - 1) for name, each in found.items()}
    environment = describe(CLOCK.device, CLOCK.threads) | {"command": " ".join(["python", *sys.argv])}
    content: dict[str, Any] = {"schema": 1, "kind": "generator-layers", "stream": STREAM, "seconds": found}
    files.write_json(asked.out, content | {"percent_more_than_none": more, "environment": environment})


if __name__ == "__main__":
    main()
