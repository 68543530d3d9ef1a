"""Folders of small images that are quick to learn, and a run on one of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from PIL import Image

import scale_cl
from scale_cl.results import RunResult

SETTINGS = ("backbone=mlp-8-8", "memory=6", "replay=4", "run.batch_size=4", "stream.channels=1", "run.device=cpu")


def draw_images(folder: Path, tasks: Mapping[str, Sequence[str]], *, count: int = 10, size: int = 6) -> str:
    """Draw images of each class of each task; returns the name of the stream."""
    for number, (task, classes) in enumerate(tasks.items()):
        for place, label in enumerate(classes):
            random = np.random.default_rng((number, place))
            for i in range(count):
                pixels = random.integers(0, 90, (size, size))
                pixels[place % size] += 150
                file = folder / task / label / f"{i}.png"
                file.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(pixels.astype(np.uint8)).save(file)
    return f"folder:{folder}"


def run_on(stream: str, out: Path, *more: str, learner: str = "er") -> RunResult:
    """A quick run on such a folder."""
    return scale_cl.run(scale_cl.resolve(stream=stream, learner=learner, assignments=(*SETTINGS, *more)), out=out)
