"""Part `growth`: the time of a step and the size of the state as tasks arrive, up to a thousand.

A task is tiny: as many samples as the memory keeps of it, in one batch. After some numbers of tasks a copy of the
learner takes timed steps, in turns with the first such copy: a busy machine slows both.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import Any

from torch import Tensor

from scale_cl.bench.bench_data import Material
from scale_cl.bench.conditions import Conditions
from scale_cl.bench.state_size import StateBytes, expected_growth, state_bytes
from scale_cl.learners import Learner
from scale_cl.streams import TaskInfo

_WARM_UP = 4  # steps
_AT = (3, 10, 30, 100, 300, 1000, 3000, 10000)


def growth(material: Material, name: str, how: Conditions, *, tasks: int) -> list[dict[str, Any]]:
    """A row for each number of tasks; `ratio` is to the step after the first of these numbers."""
    stream = material.stream(tasks=1).to(how.clock.device)
    x, y = stream.train_data(0)
    classes = len(stream.tasks[0].classes)
    learner = how.learner(name, stream)
    at = {number for number in _AT if number < tasks} | {tasks}
    slots = int(getattr(learner.config, "memory", how.batch_size))
    begin, allowed, rows = StateBytes(), StateBytes(), list[dict[str, Any]]()
    first: Callable[[], object] | None = None
    for number in range(tasks):
        learner.begin_task(TaskInfo(f"task {number}", classes))
        learner.observe(x[:slots], y[:slots])
        learner.end_task()
        if number == 0:
            begin = state_bytes(learner)
        else:
            allowed += expected_growth(learner, number, classes)
        if number + 1 not in at:
            continue
        step = _ready(how.learner(name, stream), learner, classes, (x[: how.batch_size], y[: how.batch_size]))
        first = first or step
        seconds = how.clock.medians({"first": first, "now": step}, rounds=how.rounds, block=how.block)
        grown = state_bytes(learner) - begin
        rows.append(
            {
                "stream": material.name,
                "data": material.data,
                "learner": name,
                "tasks": number + 1,
                "step_ms": 1e3 * seconds["now"],
                "ratio": seconds["now"] / seconds["first"],
                "state_bytes": (begin + grown).total,
                "bytes_per_task": grown.total / max(1, number),
                "grown": asdict(grown),
                "allowed": asdict(allowed),
                "unexplained_bytes": grown.total - allowed.total,
            }
        )
    return rows


def _ready(copy: Learner, learner: Learner, classes: int, batch: tuple[Tensor, Tensor]) -> Callable[[], object]:
    """The step of a copy of `learner` in a task of its own, warmed up."""
    copy.load_state_dict(learner.state_dict())
    copy.begin_task(TaskInfo("timed", classes))
    step = partial(copy.observe, *batch)
    for _ in range(_WARM_UP):
        step()
    return step
