"""Digits that arrive two classes at a time, without a task: accuracy over all ten classes, by learner.

Each learner is an estimator with 200 memory slots in all that is fed by `partial_fit(X, y)`. Beside it stands a
nearest-neighbour classifier on what its memory holds at the end.

    python benchmarks/without_tasks.py --seeds 10 --out results/class/digits-without-tasks.json
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from sklearn.neighbors import KNeighborsClassifier

from scale_cl import ContinualClassifier
from scale_cl.learners import registry
from scale_cl.settings import field_names
from scale_cl.training.machine import describe

LEARNERS = ("finetune", "er", "er-ace", "mir", "derpp", "scale", "scale-ema", "icarl", "slda")
SLOTS = 200


def accuracies(learner: str, seed: int) -> tuple[float, float | None]:
    """Accuracy in percent of the learner, and of the nearest stored sample if it stores any."""
    inputs, labels = load_digits(return_X_y=True)
    x, x_test, y, y_test = train_test_split(inputs, labels, test_size=500, random_state=seed, stratify=labels)
    keeps = "memory" in field_names(registry.config_class(learner))
    model = ContinualClassifier(learner, random_state=seed)
    if keeps:
        model.set_params(memory=SLOTS)
    for first in range(0, 10, 2):
        rows = (y == first) | (y == first + 1)
        model.partial_fit(x[rows], y[rows])
    memory: Any = getattr(model.learner_, "memory", None)
    if memory is None:
        return 100 * model.score(x_test, y_test), None
    stored = memory.stored.nonzero().flatten()
    origin = model.input_format_.origin
    kept = memory.x[stored].numpy() + (0 if origin is None else origin)
    names = model.classes_[model.labels_.all_columns()][memory.y[stored].numpy()]
    nearest = KNeighborsClassifier(1).fit(kept, names)
    return 100 * model.score(x_test, y_test), 100 * float(nearest.score(x_test, y_test))


def main() -> None:
    """Print a line per learner and write all figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    torch.set_num_threads(1)
    found = []
    for learner in LEARNERS:
        pairs = [accuracies(learner, seed) for seed in range(given.seeds)]
        own, near = [a for a, _ in pairs], [b for _, b in pairs if b is not None]
        row = {"learner": learner, "slots": SLOTS if near else 0, "accuracies": own, "nearest_stored": near}
        found.append(row)
        beside = f", nearest stored sample {statistics.fmean(near):.1f}" if near else ""
        print(f"{learner:10} mean {statistics.fmean(own):.1f}  worst {min(own):.1f}{beside}", flush=True)
    command = f"python benchmarks/without_tasks.py --seeds {given.seeds} --out {given.out.as_posix()}"
    environment = describe(torch.device("cpu"), 1) | {"command": command}
    given.out.write_text(json.dumps({"environment": environment, "rows": found}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
