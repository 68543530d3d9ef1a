"""What is learned in a benchmark: a named stream over its data set, or over noise of the same shapes.

A step's time does not depend on what the pixels show, so noise serves where the data set is not there; results say
which it was.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

from scale_cl.errors import DataError
from scale_cl.learners import Compute, Learner
from scale_cl.learners import registry as learners
from scale_cl.settings import build
from scale_cl.streams import Arrays, Stream
from scale_cl.streams import catalog as streams

_SHAPES = {  # of the data sets: shape of a sample, classes
    "digits": ((1, 8, 8), 10),
    "mnist": ((1, 28, 28), 10),
    "cifar10": ((3, 32, 32), 10),
    "cifar100": ((3, 32, 32), 100),
    "mini-imagenet": ((3, 84, 84), 100),
}


@dataclass(frozen=True)
class Material:
    """A stream's name and the arrays it is built over."""

    name: str
    arrays: Arrays
    data: str  # "read" or "synthetic"

    def stream(self, *, seed: int = 0, tasks: int | None = None) -> Stream:
        """The stream of a seed: its first `tasks` tasks, at most as many as it has."""
        if tasks is not None:
            tasks = min(tasks, streams.entry(self.name).continual)
        return streams.build(self.name, self.arrays, seed=seed, tasks=tasks)


@lru_cache(maxsize=1)  # one data set at a time: mini-ImageNet takes more than a gigabyte
def material(name: str, root: Path | None, *, synthetic: bool = False) -> Material:
    """The data set of stream `name` under `root`; noise if it is not there, or asked for."""
    streams.entry(name)
    if not synthetic:
        try:
            return Material(name, streams.load_arrays(name, root), "read")
        except DataError:
            pass
    return Material(name, _noise(name), "synthetic")


def _noise(name: str) -> Arrays:
    entry = streams.entry(name)
    shape, classes = _SHAPES[entry.source]
    of_task = entry.classes_per_task or classes
    train, test = (_noise_of_classes(shape, classes, -(-samples // of_task)) for samples in (entry.train, entry.test))
    return Arrays(*train, *test, class_names=tuple(map(str, range(classes))), pixel_max=255.0)


def _noise_of_classes(shape: tuple[int, ...], classes: int, each: int) -> tuple[Tensor, Tensor]:
    of_class = torch.randint(0, 256, (each, *shape), dtype=torch.uint8, generator=torch.Generator().manual_seed(each))
    return of_class.repeat(classes, *[1] * len(shape)), torch.arange(classes).repeat_interleave(each)


def new_learner(name: str, stream: Stream, *, seed: int, device: torch.device, compute: Compute) -> Learner:
    """A learner with the paper's settings for the stream."""
    config = build(learners.config_class(name), learners.paper_settings(name, stream.name))
    return learners.make(name, stream.spec, config, seed=seed, device=device, compute=compute)
