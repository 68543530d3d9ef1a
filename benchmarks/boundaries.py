"""Boundaries found against boundaries told: permuted digits, the task of test samples inferred in both arms.

    python benchmarks/boundaries.py --learners scale,er,ctn,gem --seeds 5 --out results/class/boundaries.json

One row per learner and signal: mean accuracies of both arms at the end, and recall and precision of the boundaries, of
which one counts as found in the first ten batches of a task. With `--out`, the values of every seed are written; rows
that the file has of other learners, detectors or seeds stay.
"""

from __future__ import annotations

import argparse
import json
import shlex
import statistics
import sys
from dataclasses import replace
from pathlib import Path

import torch

from scale_cl import metrics, streams
from scale_cl.learners import registry
from scale_cl.learners.boundaries import Detection
from scale_cl.settings import build
from scale_cl.streams import Stream
from scale_cl.training.learner_run import accuracies
from scale_cl.training.loop import train


def told(name: str, stream: Stream) -> float:
    """Accuracy at the end when the learner is told the boundaries, but not the task of test samples."""
    config = build(registry.config_class(name), registry.preset_settings(name, stream.name), section="learner")
    learner = registry.make(name, stream.spec, config, seed=stream.seed)
    train(learner, stream)
    return statistics.fmean(accuracies(learner, replace(stream, boundaries="detect"), len(stream)))


def found(name: str, stream: Stream, detection: Detection) -> tuple[float, float | None, float | None]:
    """Accuracy at the end, recall and precision when the boundaries are to be found."""
    config = build(registry.config_class(name), registry.preset_settings(name, stream.name), section="learner")
    hidden = replace(stream, boundaries="detect")
    result = train(registry.make(name, stream.spec, config, seed=stream.seed), hidden, detection=detection)
    assert result.acc is not None
    assert result.boundaries is not None
    return result.acc, *result.boundaries.scores


def write(path: Path, row: dict[str, object], values: dict[str, object]) -> None:
    """Add a row with its values to the file, in place of an earlier one of the same learner, detector and seeds."""
    rows = json.loads(path.read_text())["rows"] if path.exists() else []
    rows = [other for other in rows if any(other[key] != value for key, value in row.items())]
    path.write_text(json.dumps({"rows": [*rows, row | values]}, indent=1) + "\n")


def main() -> None:
    """Print the table, and perhaps write its values."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--learners", default="scale,er,ctn,gem")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--detectors", default="page-hinkley/loss,page-hinkley/features")
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    made = [streams.load("digits", seed=seed) for seed in range(chosen.first, chosen.first + chosen.seeds)]
    for name in chosen.learners.split(","):
        base = [told(name, stream) for stream in made]
        for kind in chosen.detectors.split(","):
            detector, _, signal = kind.partition("/")
            detection = build(Detection, {"detector": detector, "signal": signal or "loss"}, section="detection")
            arms = [found(name, stream, detection) for stream in made]
            worst = min(acc - other for (acc, _, _), other in zip(arms, base, strict=True))
            acc, recall, precision = (metrics.mean_and_deviation(column)[0] for column in zip(*arms, strict=True))
            scores = f"recall {recall or 0:.3f}  precision {precision or 0:.3f}"
            if chosen.out is not None:
                row = {"learner": name, "detector": detector, "signal": detection.signal, "first_seed": chosen.first}
                columns = dict(zip(("found", "recall", "precision"), map(list, zip(*arms, strict=True)), strict=True))
                write(chosen.out, row, {"command": shlex.join(["python", *sys.argv]), "told": base, **columns})
            print(f"{name:8}{kind:24}told {statistics.fmean(base):.2f}  found {acc:.2f}  worst {worst:+.2f}  {scores}")


if __name__ == "__main__":
    main()
