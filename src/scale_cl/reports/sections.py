"""What belongs together: a section is a stream as it was run, a row the seeds of one learner with the same settings."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import Any

from scale_cl.experiments.identity import OFF, RUN, STREAM
from scale_cl.experiments.identity import section as part
from scale_cl.reports import paper
from scale_cl.reports.collection import Collection, Gap, Run, printable
from scale_cl.reports.naming import assignment, distinct
from scale_cl.reports.pooling import Pool, pools
from scale_cl.reports.rows import Row

STREAM_ORDER = ("pmnist", "scifar10", "scifar100", "sminiimagenet")
LEARNER_ORDER = (
    *("finetune", "gem", "agem", "mer", "mir", "er", "der", "derpp"),
    *("acl", "ctn", "scale", "scale-ema", "joint"),
)


@dataclass(frozen=True)
class Section:
    """A stream as it was run, and everything that was run on it."""

    stream: str
    tasks: tuple[str, ...]
    variant: dict[str, Any]  # settings of the stream other than its own
    rows: tuple[Row, ...]
    gaps: list[Gap] = field(default_factory=list)
    key: str = ""  # a name for anchors and files

    @property
    def title(self) -> str:
        """`scifar100, 17 tasks, class_order=natural`."""
        many = f"{len(self.tasks)} task{'s' if len(self.tasks) > 1 else ''}"
        return ", ".join([printable(self.stream), many, *(assignment(*pair) for pair in self.variant.items())])

    @property
    def short_title(self) -> str:
        """`scifar100 class_order=natural`."""
        return " ".join([printable(self.stream), *(assignment(*pair) for pair in self.variant.items())])

    @property
    def is_the_papers(self) -> bool:
        """Whether the paper reports numbers for this stream at this length (its class order is not known)."""
        return paper.TASKS.get(self.stream) == len(self.tasks) and self.variant.keys() <= {"class_order"}

    def find(self, learner: str, **differences: object) -> Row | None:
        """The row of a learner that has exactly these differences."""
        return next((r for r in self.rows if r.learner == learner and r.differences == differences), None)


def sections(collection: Collection) -> list[Section]:
    """Sort what was collected into streams and rows; doubles are counted once and named as gaps."""
    groups: dict[str, list[Run]] = {}
    for run in collection.runs:
        groups.setdefault(_stable([run.result.stream, *_stream_of(run)]), []).append(run)
    made = [_section(runs) for runs in groups.values()]
    made.sort(key=lambda s: (_rank(s.stream, STREAM_ORDER), s.stream, len(s.variant), s.title))
    keys = distinct(section.title for section in made)
    return [replace(section, key=key) for section, key in zip(made, keys, strict=True)]


def _section(runs: list[Run]) -> Section:
    first = runs[0]
    variant, tasks = _stream_of(first)
    gaps: list[Gap] = []
    return Section(
        stream=first.result.stream,
        tasks=tuple(f"task {number}" for number in range(1, tasks + 1)),
        variant=variant,
        rows=tuple(_labelled(pools(runs, gaps), first.result.stream)),
        gaps=gaps,
    )


def _stream_of(run: Run) -> tuple[dict[str, Any], int]:
    """What is particular about the stream of a run, and its number of tasks."""
    settings = part(run.result.seeds[0].config, "stream")
    variant = {k: v for k, v in settings.items() if k not in ("name", "tasks") and v != STREAM.get(k) and v is not None}
    return variant, len(run.result.seeds[0].tasks)


def _labelled(pooled: list[Pool], stream: str) -> list[Row]:
    rows: list[Row] = []
    for pool in pooled:
        learner = pool.seeds[0].learner
        siblings = [other.seeds[0].config for other in pooled if other.seeds[0].learner == learner]
        differences = _differences(pool.seeds[0].config, siblings, learner, stream)
        label = " ".join([printable(learner), *(assignment(*pair) for pair in differences.items())])
        seeds = tuple(sorted(pool.seeds, key=lambda s: s.seed))
        rows.append(Row(label, learner, differences, tuple(pool.runs), seeds, tuple(pool.timed)))
    labels = [row.label for row in rows]
    for at, row in enumerate(rows):
        if labels.count(row.label) > 1:  # same settings, other accuracies: the file tells them apart
            file = row.runs[0].name
            rows[at] = replace(row, label=f"{row.label} ({file})", differences={**row.differences, "file": file})
    return sorted(rows, key=lambda row: (learner_rank(row.learner), _by_value(row.differences)))


def _differences(config: dict[str, Any], siblings: list[dict[str, Any]], learner: str, stream: str) -> dict[str, Any]:
    """What sets these settings apart: from the paper's where it has a value, else from the learner's other rows."""
    reference = paper.settings(learner, stream)
    found = {}
    for name, value in part(config, "learner").items():
        if name == "name":
            continue
        if name in reference:
            differs = value != reference[name]
        elif learner in paper.LEARNERS and name not in paper.depends_on_stream(learner):
            differs = value not in OFF
        else:
            differs = _varies(name, value, [part(other, "learner") for other in siblings])
        if differs:
            found[name] = value
    run, others = RUN | part(config, "run"), [RUN | part(other, "run") for other in siblings]
    for name, usual in RUN.items():
        if run[name] != usual and (name == "batch_size" or _varies(name, run[name], others)):
            found[f"run.{name}"] = run[name]
    return found


def _varies(name: str, value: object, among: list[dict[str, Any]]) -> bool:
    return any(other[name] != value for other in among if name in other)


def _stable(value: object) -> str:
    return json.dumps(value, sort_keys=True)


def learner_rank(name: str) -> tuple[int, str]:
    """A sort key: the order of the paper's table, then the alphabet."""
    return _rank(name, LEARNER_ORDER), name


def _rank(name: str, order: tuple[str, ...]) -> int:
    return order.index(name) if name in order else len(order)


def _by_value(differences: dict[str, Any]) -> tuple[int, list[tuple[str, float, str]]]:
    """A sort key: fewest differences first, then by name, then by value as a number if it is one."""
    pairs = [(k, float(v) if isinstance(v, int | float) else 0.0, str(v)) for k, v in differences.items()]
    return len(pairs), pairs
