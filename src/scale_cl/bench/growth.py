"""Part `growth`: the time of a step and the size of the state as tasks arrive, up to a thousand.

A task is tiny: as many samples as the memory keeps of it, in one batch. After certain numbers of tasks a copy of the
learner runs timed steps, in turns with the first such copy, so that a busy machine slows both. The growth of the state
is compared with what a task is expected to add.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from torch import Tensor

from scale_cl.bench.conditions import BenchData, Conditions
from scale_cl.learners import Learner
from scale_cl.streams import TaskInfo

_WARM_UP = 4  # steps
_MEASURED_AT = (3, 10, 30, 100, 300, 1000, 3000, 10000)
_FLOAT, _INT = 4, 8


def growth(data: BenchData, name: str, how: Conditions, *, tasks: int) -> list[dict[str, Any]]:
    """One row per number of tasks; `ratio` is relative to the first of them."""
    stream = data.stream(tasks=1).to(how.clock.device)
    x, y = stream.train_data(0)
    classes = len(stream.tasks[0].classes)
    learner = how.learner(name, stream)
    at = {number for number in _MEASURED_AT if number < tasks} | {tasks}
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
                "stream": data.name,
                "data": data.data,
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
    """The step of a copy of `learner` in a new task, warmed up."""
    copy.load_state_dict(learner.state_dict())
    copy.begin_task(TaskInfo("timed", classes))
    step = partial(copy.observe, *batch)
    for _ in range(_WARM_UP):
        step()
    return step


@dataclass(frozen=True)
class StateBytes:
    """Bytes of a learner's state by kind; only `rest` (shared networks, random generators) must not grow."""

    samples: int = 0  # pixels, labels, task numbers and flags of the memory slots
    logits: int = 0  # stored class and task logits, each with its own width, and their positions
    heads: int = 0
    embedding: int = 0
    discriminator: int = 0  # its output layer
    rest: int = 0

    @property
    def total(self) -> int:
        """All bytes."""
        return sum(asdict(self).values())

    def __sub__(self, other: StateBytes) -> StateBytes:
        mine, theirs = asdict(self), asdict(other)
        return StateBytes(**{kind: mine[kind] - theirs[kind] for kind in mine})

    def __add__(self, other: StateBytes) -> StateBytes:
        mine, theirs = asdict(self), asdict(other)
        return StateBytes(**{kind: mine[kind] + theirs[kind] for kind in mine})


_KINDS = {  # longest prefix first
    "memory.class.": "logits",
    "memory.task.": "logits",
    "memory.": "samples",
    "net.heads.": "heads",
    "average.heads.": "heads",
    "net.generator.embedding.": "embedding",
    "discriminator.weight.": "discriminator",
    "discriminator.bias.": "discriminator",
}


def state_bytes(learner: Learner) -> StateBytes:
    """The size of the state as it would be saved."""
    found = asdict(StateBytes())
    for name, tensor in learner.state_dict()["tensors"].items():
        kind = next((kind for prefix, kind in _KINDS.items() if name.startswith(prefix)), "rest")
        found[kind] += tensor.numel() * tensor.element_size()
    return StateBytes(**found)


def expected_growth(learner: Learner, task: int, classes: int) -> StateBytes:
    """By how much task number `task` may enlarge the state until it ends.

    A full block of stored samples, their logits over the classes of the task and over the tasks so far where the memory
    stores logits, a head, an embedding row and a discriminator row. For learners that consist of these parts only.
    """
    width = learner.net.backbone.feature_width
    head = 0 if learner.net.heads.shared and task > 0 else classes * (width + 1) * _FLOAT
    heads = head * (2 if learner.config.weight_average > 0 else 1)
    samples = logits = 0
    owned = learner.engine.owned
    for memory in owned.memories.values():
        sample = memory.x[0].numel() * memory.x.element_size() + 3 * _INT + 2  # label, task, rank; two flags
        samples += memory.slots * sample + _INT  # number of samples seen
        widths = {"class": classes, "task": task + 2}  # task logits: the fake task, the earlier tasks and this one
        stored = sum(widths.get(kind, width) for kind, kept in memory.logits.items() if kept.widths)
        logits += memory.slots * (stored * _FLOAT + len(memory.logits) * 2 * _INT)  # and start and width of each kind
    embedding = 0 if learner.net.generator is None else learner.net.generator.embedding_width * _FLOAT
    output = (width + 1) * _FLOAT if owned.parts.get("discriminator") else 0
    return StateBytes(samples, logits, heads, embedding, output)
