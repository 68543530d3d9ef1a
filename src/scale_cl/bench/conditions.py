"""The conditions that all parts of a benchmark share."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from scale_cl.bench.bench_data import new_learner
from scale_cl.bench.clock import Clock
from scale_cl.learners import Compute, Learner
from scale_cl.streams import Stream


@dataclass(frozen=True)
class Conditions:
    """Where and how steps are taken and timed."""

    clock: Clock
    compute: Compute
    batch_size: int
    rounds: int  # of which the median is taken
    block: int  # calls in a round
    root: Path | None  # of the data sets
    threads: int

    def learner(self, name: str, stream: Stream, *, seed: int = 0) -> Learner:
        """A new one on the device, with the paper's settings for the stream."""
        return new_learner(name, stream, seed=seed, device=self.clock.device, compute=self.compute)
