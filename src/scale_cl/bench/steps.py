"""Part `steps`: the time of each learner's step beside its floor, in the same process and in turns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from scale_cl.bench.bench_data import Material
from scale_cl.bench.conditions import Conditions
from scale_cl.bench.lower_bound import Floor, images, updates
from scale_cl.learners import Learner
from scale_cl.streams import Stream

_TASKS = 4  # the last one is timed: replay is at its full size by then
_WARM_UP = 10  # steps; a graph is recorded at the second


@dataclass(frozen=True)
class StepTime:
    """One learner on one stream."""

    stream: str
    data: str
    learner: str
    images: int  # of an update: batch and replay
    updates: int  # of the backbone in a step
    step_ms: float
    floor_ms: float
    ratio: float  # step to one floor
    ratio_updates: float  # step to as many floors as it makes updates


def step_times(material: Material, learners: list[str], how: Conditions) -> list[dict[str, Any]]:
    """A row for each learner."""
    stream, batch_size = material.stream(tasks=_TASKS).to(how.clock.device), how.batch_size
    rows = []
    for name in learners:
        learner = how.learner(name, stream)
        filled(learner, stream, batch_size)
        x, y = (part[:batch_size] for part in stream.train_data(len(stream) - 1))
        samples, many = images(learner, batch_size), updates(learner)
        floor = Floor(learner, samples, classes=len(stream.tasks[-1].classes))
        calls: dict[str, Callable[[], object]] = {"step": partial(learner.observe, x, y), "floor": floor}
        for call in calls.values():
            for _ in range(_WARM_UP):
                call()
        seconds = how.clock.medians(calls, rounds=how.rounds, block=how.block)
        ratio = seconds["step"] / seconds["floor"]
        step_ms, floor_ms = 1e3 * seconds["step"], 1e3 * seconds["floor"]
        row = StepTime(stream.name, material.data, name, samples, many, step_ms, floor_ms, ratio, ratio / many)
        rows.append(asdict(row))
    return rows


def filled(learner: Learner, stream: Stream, batch_size: int) -> None:
    """Run through all tasks but the last, just long enough to fill the memory, and open the last one."""
    slots = int(getattr(learner.config, "memory", batch_size))
    for number, task in enumerate(stream.tasks):
        learner.begin_task(task.info)
        if number == len(stream) - 1:
            return
        x, y = stream.train_data(number)
        for some_x, some_y in zip(x[:slots].split(batch_size), y[:slots].split(batch_size), strict=True):
            learner.observe(some_x, some_y)
