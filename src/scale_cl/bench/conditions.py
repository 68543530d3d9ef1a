"""The conditions that all parts of a benchmark share: the data, the clock, and how learners are made.

The time of a step does not depend on what the images show, so noise of the same shapes replaces a data set that is not
installed; results record which was used.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Mapping
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

_PEAK = Path("/proc/self/clear_refs")
_SHAPES = {  # per data set: shape of a sample, number of classes
    "digits": ((1, 8, 8), 10),
    "mnist": ((1, 28, 28), 10),
    "cifar10": ((3, 32, 32), 10),
    "cifar100": ((3, 32, 32), 100),
    "mini-imagenet": ((3, 84, 84), 100),
    "tiny-imagenet": ((3, 64, 64), 200),
    "cub-200": ((3, 84, 84), 200),
    "core50": ((3, 64, 64), 50),
    "core50-10": ((3, 64, 64), 10),
}


@dataclass(frozen=True)
class BenchData:
    """A named stream and the arrays that it is built from."""

    name: str
    arrays: Arrays
    data: str  # "read" or "synthetic"

    def stream(self, *, seed: int = 0, tasks: int | None = None) -> Stream:
        """The stream for a seed: its first `tasks` tasks, at most as many as it has."""
        if tasks is not None:
            tasks = min(tasks, streams.entry(self.name).continual)
        return streams.build(self.name, self.arrays, seed=seed, tasks=tasks)


@lru_cache(maxsize=1)  # one data set at a time: mini-ImageNet takes more than a gigabyte
def bench_data(name: str, root: Path | None, *, synthetic: bool = False) -> BenchData:
    """The data set of stream `name` under `root`; noise if it is missing, or with `synthetic`."""
    streams.entry(name)
    if not synthetic:
        try:
            return BenchData(name, streams.load_arrays(name, root), "read")
        except DataError:
            pass
    return BenchData(name, _noise(name), "synthetic")


def shape_of(name: str) -> tuple[tuple[int, ...], int]:
    """The shape of a sample of a stream of the catalog, and the number of its classes."""
    return _SHAPES[streams.source_of(name).name]


def _noise(name: str) -> Arrays:
    entry = streams.entry(name)
    shape, classes = shape_of(name)
    of_task = entry.classes_per_task or classes
    sizes = (entry.tasks * entry.train if entry.by_domain else entry.train, entry.test)
    train, test = (_noise_of_classes(shape, classes, -(-samples // of_task)) for samples in sizes)
    domains = torch.arange(len(train[0])) % entry.tasks if entry.by_domain else None
    return Arrays(*train, *test, class_names=tuple(map(str, range(classes))), pixel_max=255.0, domains=domains)


def _noise_of_classes(shape: tuple[int, ...], classes: int, each: int) -> tuple[Tensor, Tensor]:
    of_class = torch.randint(0, 256, (each, *shape), dtype=torch.uint8, generator=torch.Generator().manual_seed(each))
    return of_class.repeat(classes, *[1] * len(shape)), torch.arange(classes).repeat_interleave(each)


def new_learner(name: str, stream: Stream, *, seed: int, device: torch.device, compute: Compute) -> Learner:
    """A learner with the paper's settings for the stream."""
    config = build(learners.config_class(name), learners.preset_settings(name, stream.name))
    return learners.make(name, stream.spec, config, seed=seed, device=device, compute=compute)


@dataclass(frozen=True)
class Clock:
    """Measures time and memory on a device: CPU time where one thread does all the work, wall time elsewhere."""

    device: torch.device
    threads: int

    @property
    def kind(self) -> str:
        """`cpu` or `wall`."""
        return "cpu" if self.device.type == "cpu" and self.threads == 1 else "wall"

    def now(self) -> float:
        """Seconds, after waiting for the device."""
        self.wait()
        return time.thread_time() if self.kind == "cpu" else time.perf_counter()

    def wait(self) -> None:
        """Wait until the device has finished its work."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def medians(self, calls: Mapping[str, Callable[[], object]], *, rounds: int, block: int) -> dict[str, float]:
        """Seconds per call: the median over rounds of the mean in a block of calls; the first round does not count.

        The blocks of the calls take turns, so that a busy machine slows all of them alike.
        """
        seconds: dict[str, list[float]] = {name: [] for name in calls}
        for counted in [False] + [True] * rounds:
            for name, call in calls.items():
                began = self.now()
                for _ in range(block):
                    call()
                taken = (self.now() - began) / block
                if counted:
                    seconds[name].append(taken)
        return {name: statistics.median(each) for name, each in seconds.items()}

    def reset_peak(self) -> None:
        """Reset the peak of the memory in use."""
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(self.device)
            return
        with contextlib.suppress(OSError):  # not Linux, or not permitted: the peak then covers the whole process
            _PEAK.write_text("5")

    def peak_bytes(self) -> int | None:
        """Peak memory since `reset_peak`: of the GPU's allocator, or of the process; None if unknown."""
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device)
        try:
            lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
        except OSError:
            return None
        return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")), None)


@dataclass(frozen=True)
class Conditions:
    """Where and how steps are run and timed."""

    clock: Clock
    compute: Compute
    batch_size: int
    rounds: int  # their median is the result
    block: int  # calls per round
    root: Path | None  # data directory
    threads: int

    def learner(self, name: str, stream: Stream, *, seed: int = 0) -> Learner:
        """A new learner on the device, with the paper's settings for the stream."""
        return new_learner(name, stream, seed=seed, device=self.clock.device, compute=self.compute)
