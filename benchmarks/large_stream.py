"""Images that are read as they come: how fast, in how much memory, and what it costs a learner.

Makes a folder of JPEG files (a few hundred pictures, each written to many files of its own), then measures

* `listing`: seconds until the stream is there,
* `pass`: images per second of a full pass with a learner without a network, and the memory of the process tree,
* `memory`: seconds to read the first images into memory, and the most memory taken per byte of them,
* `steps`: steps per second of ER on the ResNet, from memory and as they come, in turns.

    python benchmarks/large_stream.py --images 300000 --folder FOLDER --out FILE
"""

from __future__ import annotations

import argparse
import io
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from scale_cl import Stream, streams
from scale_cl.learners import Compute, Learner, StepStats
from scale_cl.streams import TaskInfo
from scale_cl.training import train
from scale_cl.training.config import resolve
from scale_cl.training.lanes import build_learner
from scale_cl.training.learner_run import LearnerRun
from scale_cl.training.machine import choose_device, describe, prepare

TASKS, CLASSES, PICTURES, SIDE = 10, 10, 300, 64


def make_images(folder: Path, count: int) -> None:
    """`count` JPEG files of 64 x 64 in TASK/CLASS/; nothing if they are there already."""
    if sum(len(files) for _, _, files in os.walk(folder)) == count:
        return
    draw, pictures = np.random.default_rng(0), []
    for number in range(PICTURES):  # smooth pictures with some noise, as photographs are
        coarse = draw.integers(0, 256, (8, 8, 3), dtype=np.uint8)
        smooth = Image.fromarray(coarse).resize((SIDE, SIDE), Image.Resampling.BICUBIC)
        noisy = np.asarray(smooth) * 0.9 + draw.normal(12, 8, (SIDE, SIDE, 3)) + 40 * (number % CLASSES == 0)
        file = io.BytesIO()
        Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(file, "JPEG", quality=90)
        pictures.append(file.getvalue())
    for number in range(count):
        label, task = number % CLASSES, number * TASKS // count
        place = folder / f"task{task}" / f"class{label}"
        if number % (count // TASKS) < CLASSES:
            place.mkdir(parents=True, exist_ok=True)
        (place / f"{number:07}.jpg").write_bytes(pictures[number % PICTURES])


class ClassMeans:
    """A learner without a network: the class whose mean of small pictures is nearest."""

    name, order, epochs, after = "class-means", "tasks", 1, ""
    device, compute = torch.device("cpu"), Compute()

    def __init__(self, stream: Stream) -> None:
        """For the classes of a domain-incremental stream."""
        self.spec = stream.spec
        self.sums = torch.zeros(len(stream.arrays.class_names), 3 * 8 * 8)
        self.counts = torch.zeros(len(stream.arrays.class_names), 1)

    def begin_task(self, task: TaskInfo) -> None:
        """All tasks have the same classes."""

    def observe(self, x: Tensor, y: Tensor) -> StepStats:
        """Add the batch to the means."""
        self.sums.index_add_(0, y, self._small(x))
        self.counts.index_add_(0, y, torch.ones(len(y), 1))
        return {}

    def predict(self, x: Tensor, task: str | None = None) -> Tensor:
        """Minus the distance to each class."""
        return -torch.cdist(self._small(x), self.sums / self.counts.clamp(min=1))

    @staticmethod
    def _small(x: Tensor) -> Tensor:
        return F.avg_pool2d(x.float(), x.shape[-1] // 8).flatten(1)


class TreeMemory:
    """The memory of this process and its descendants, sampled while the context is open."""

    def __enter__(self) -> TreeMemory:
        """Start to sample."""
        self.samples: list[tuple[int, int]] = []  # resident bytes of all, and shared pages counted once
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._sample)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop."""
        self._end.set()
        self._thread.join()

    def _sample(self) -> None:
        while True:
            sizes = [_sizes(process) for process in _tree(os.getpid())]
            self.samples.append((sum(rss for rss, _ in sizes), sum(pss for _, pss in sizes)))
            if self._end.wait(0.25):
                return

    def summary(self) -> dict[str, Any]:
        """In MB: the most, and medians of the four quarters of the time, which show whether it grows."""
        parts = [part for part in np.array_split(np.array(self.samples), 4) if len(part)]
        return {
            "most_resident": round(max(rss for rss, _ in self.samples) / 1e6),
            "most_shared_once": round(max(pss for _, pss in self.samples) / 1e6),
            "quarters_resident": [round(float(np.median(part[:, 0])) / 1e6) for part in parts],
            "quarters_shared_once": [round(float(np.median(part[:, 1])) / 1e6) for part in parts],
        }


def _tree(root: int) -> list[int]:
    """A process and all its descendants."""
    found, index = [root], 0
    while index < len(found):
        for children in Path(f"/proc/{found[index]}/task").glob("*/children"):
            try:
                found += [int(word) for word in children.read_text().split()]
            except OSError:
                continue
        index += 1
    return found


def _sizes(process: int) -> tuple[int, int]:
    """Resident bytes, and bytes with each shared page divided among those who share it."""
    try:
        words = [line.split() for line in Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()]
    except OSError:  # it has ended
        return 0, 0
    sizes = {word[0]: int(word[1]) * 1024 for word in words if len(word) == 3}
    return sizes.get("Rss:", 0), sizes.get("Pss:", 0)


def full_pass(folder: Path, *, workers: int | None = None) -> dict[str, Any]:
    """List the folder and train and test a learner without a network on all of it."""
    began = time.perf_counter()
    made = streams.from_folder(folder, scenario="domain", held_out=0.02, keep="disk", workers=workers)
    stream = replace(made, boundaries="hidden")
    listed = time.perf_counter() - began
    count = sum(len(task.train) for task in stream.tasks)
    with TreeMemory() as memory:
        result = train(cast(Learner, ClassMeans(stream)), stream, config={"learner": "class-means"})
    return {
        "images": len(stream.arrays.x_train) + len(stream.arrays.x_test),
        "listing_seconds": round(listed, 2),
        "images_per_second": round(count / result.seconds_train),
        "seconds_train": round(result.seconds_train, 1),
        "seconds_test": round(result.seconds_eval, 1),
        "accuracy": result.acc,
        "tree_megabytes": memory.summary(),
    }


def into_memory(folder: Path) -> dict[str, Any]:
    """Read a folder into memory in a process of its own: how fast, and the most memory per byte of decoded images."""
    code = (
        "import resource, sys, time; from scale_cl import streams\n"
        "peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024\n"
        "before, began = peak(), time.perf_counter()\n"
        "stream = streams.from_folder(sys.argv[1], scenario='domain', keep='memory')\n"
        "took = time.perf_counter() - began; x, y = stream.train_data(0)\n"
        "print(took, (peak() - before) / stream.arrays.nbytes, len(stream.arrays.y_train) + len(stream.arrays.y_test))"
    )
    done = subprocess.run([sys.executable, "-c", code, str(folder)], capture_output=True, text=True, check=True)
    seconds, ratio, count = (float(word) for word in done.stdout.split())
    return {"images_per_second": round(count / seconds), "peak_per_decoded_byte": round(ratio, 2)}


def step_rates(folder: Path, device: str, steps: int, *, workers: int | None = None) -> dict[str, Any]:
    """Steps per second of ER on the ResNet from memory and as they come, in turns of 50 steps; the median turn."""
    config = resolve(learner="er", options={"run.device": device, "learner.backbone": "resnet18"})
    prepared, runs, rates = prepare(config.run), {}, dict[str, list[float]](memory=[], disk=[])
    for keep in ("memory", "disk"):
        made = streams.from_folder(folder, scenario="domain", keep=cast(Any, keep), workers=workers)
        runs[keep] = LearnerRun(build_learner(config, made, 0, prepared), made)
        runs[keep].begin()
    for block in range(steps // 50 + 1):  # the first turn warms up
        for keep, run in runs.items():
            began = time.perf_counter()
            for step in range(50 * block, 50 * block + 50):
                run.step(0, 10 * step, 10 * step + 10)
            if prepared.type == "cuda":
                torch.cuda.synchronize()
            rates[keep].append(50 / (time.perf_counter() - began))
    found = {keep: round(median(values[1:]), 1) for keep, values in rates.items()}
    return {**found, "share": round(found["disk"] / found["memory"], 3), "steps": steps}


def main() -> None:
    """Measure, and write what was found."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=300_000)
    parser.add_argument("--folder", type=Path, help="where the images are made, and stay; by default they are removed")
    parser.add_argument("--device", default="auto", help="of the learner with a network")
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--workers", type=int)
    parser.add_argument("--parts", default="pass,memory,steps")
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as temporary:
        folder = asked.folder or Path(temporary) / "images"
        make_images(folder / "all", asked.images)
        make_images(folder / "few", 12_000 + 12 * asked.steps * TASKS)
        found: dict[str, Any] = {}
        for part in asked.parts.split(","):
            if part == "pass":
                found[part] = full_pass(folder / "all", workers=asked.workers)
            elif part == "memory":
                found[part] = into_memory(folder / "few")
            else:
                found[part] = step_rates(folder / "few", asked.device, asked.steps, workers=asked.workers)
            print(part, json.dumps(found[part]), flush=True)
    found["environment"] = {**describe(choose_device(asked.device), 1), "cores": len(os.sched_getaffinity(0))}
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    asked.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
