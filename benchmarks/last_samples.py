"""How well SCALE fits the samples it has just seen: why it matters which samples of a task its memory keeps.

When a task ends: the cross-entropy of its predictions on the last samples that came, which a ring would keep with these
logits, on ten times as many of those that came before, and on test samples.

    python benchmarks/last_samples.py --stream pmnist --seeds 5 --out FILE
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from scale_cl import Stream, streams
from scale_cl.learners import Scale, ScaleConfig, registry

BATCH = 10


def measured(learner: Scale, stream: Stream, seed: int) -> dict[str, list[float]]:
    """Cross-entropy a task, right after it."""
    found: dict[str, list[float]] = {"last": [], "earlier": [], "test": []}
    chosen = torch.Generator().manual_seed(seed)
    for k, task in enumerate(stream.tasks):
        learner.begin_task(task.info)
        x, y = stream.train_data(k)
        for start in range(0, len(y), BATCH):
            learner.observe(x[start : start + BATCH], y[start : start + BATCH])
        learner.end_task()
        slots = learner.config.memory
        earlier = torch.randperm(len(y) - slots, generator=chosen)[: 10 * slots]
        for name, inputs, labels in (
            ("last", x[-slots:], y[-slots:]),
            ("earlier", x[earlier], y[earlier]),
            ("test", *stream.test_data(k)),
        ):
            found[name].append(entropy(learner, inputs, labels, task.name))
        print(f"seed {seed}, task {k + 1}: " + ", ".join(f"{n} {v[-1]:.3f}" for n, v in found.items()), flush=True)
    return found


def entropy(learner: Scale, x: Tensor, y: Tensor, task: str) -> float:
    """Mean cross-entropy of the predictions."""
    logits = torch.cat([learner.predict(part, task=task) for part in x.split(500)])
    return float(F.cross_entropy(logits, y))


def main() -> None:
    """Measure, and write what was found."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--stream", default="pmnist")
    parser.add_argument("--tasks", type=int)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--data", help="where the data sets are")
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    settings: dict[str, Any] = registry.preset_settings("scale", asked.stream)
    config = ScaleConfig(**settings)
    found = []
    for seed in range(asked.seeds):
        stream = streams.load(asked.stream, seed=seed, root=asked.data, tasks=asked.tasks)
        found.append(measured(Scale(stream.spec, config, seed=seed), stream, seed))
    mean = {name: fmean(v for one in found for v in one[name]) for name in found[0]}
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    asked.out.write_text(
        json.dumps(
            {"stream": asked.stream, "memory_policy": config.memory_policy, "seeds": found, "mean": mean}, indent=1
        )
        + "\n"
    )
    print(f"{asked.stream}: " + ", ".join(f"{name} {value:.3f}" for name, value in mean.items()))


if __name__ == "__main__":
    main()
