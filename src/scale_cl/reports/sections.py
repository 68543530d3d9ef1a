"""What belongs together: a section is a stream as it was run, a row the seeds of one learner with the same settings."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from scale_cl.reports import paper
from scale_cl.reports.collection import Collection, Gap, Run, printable
from scale_cl.reports.seed_statistics import Summary, summarise
from scale_cl.results import SeedResult

STREAM_ORDER = ("pmnist", "scifar10", "scifar100", "sminiimagenet")
LEARNER_ORDER = (
    *("finetune", "gem", "agem", "mer", "mir", "er", "der", "derpp"),
    *("acl", "ctn", "scale", "scale-ema", "joint"),
)
BOUNDS = ("joint",)  # what sees all data at once is no competitor
_SAME_NUMBERS = ("batch_size", "precision")  # settings of the section `run` that can change accuracies
_OFF: tuple[object, ...] = (False, None, 0, "none")


@dataclass(frozen=True)
class Row:
    """One learner with one set of settings on one stream: all its seeds, from one run or several."""

    label: str
    learner: str
    differences: dict[str, Any]  # what sets it apart from the paper's settings, or from its siblings
    runs: tuple[Run, ...]
    seeds: tuple[SeedResult, ...]

    @property
    def anchor(self) -> str:
        """Where the report says what made this row's numbers."""
        name = self.runs[0].name
        return f"source-{slug(name)}-{zlib.crc32(name.encode('utf-8', 'replace')):08x}"

    @property
    def is_bound(self) -> bool:
        """Whether it sees all data at once and so is no competitor."""
        return self.learner in BOUNDS

    def summary(self, measure: str) -> Summary | None:
        """One of acc, fm, la, bwt, seconds_train, seconds_eval over the seeds."""
        if measure.startswith("seconds"):
            values = [getattr(seed, measure) for seed in self.seeds]
            return summarise(values) if len(self.devices) == 1 and min(values) >= 0 else None
        return summarise([getattr(seed, measure) for seed in self.seeds])

    def by_seed(self, measure: str) -> dict[int, float]:
        """A measure of every seed for which it is defined."""
        values = {seed.seed: getattr(seed, measure) for seed in self.seeds}
        return {seed: value for seed, value in values.items() if value is not None}

    @property
    def devices(self) -> list[str]:
        """The devices that its runs were made on."""
        return sorted({device(run) for run in self.runs})

    def setting(self, name: str) -> Any:
        """A setting of the learner; None if it has none of that name."""
        return _part(self.seeds[0].config, "learner").get(name)


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


def device(run: Run) -> str:
    """The device a run was made on, in words."""
    environment = run.result.environment
    return printable(environment.get("device_name") or environment.get("device") or "unknown device")


def assignment(name: str, value: object) -> str:
    """`memory=100`, with JSON's words for values."""
    return printable(f"{name}={value if isinstance(value, str) else json.dumps(value)}")


def slug(text: str) -> str:
    """Letters, digits and dashes only, for names of files and anchors."""
    kept = "".join(c if c.isascii() and c.isalnum() else "-" for c in text.lower())
    return "-".join(part for part in kept.split("-") if part) or "x"


def distinct(texts: Iterable[str]) -> list[str]:
    """A slug for every text, numbered where two would be the same."""
    taken: list[str] = []
    for text in texts:
        wanted = candidate = slug(text)
        number = 1
        while candidate in taken:
            number += 1
            candidate = f"{wanted}-{number}"
        taken.append(candidate)
    return taken


def _section(runs: list[Run]) -> Section:
    first = runs[0]
    variant, tasks = _stream_of(first)
    gaps: list[Gap] = []
    pooled: list[tuple[list[Run], list[SeedResult]]] = []
    for same in _grouped(runs):
        pooled += _pooled(same, gaps)
    return Section(
        stream=first.result.stream,
        tasks=tuple(f"task {number}" for number in range(1, tasks + 1)),
        variant=variant,
        rows=tuple(_labelled(pooled, first.result.stream)),
        gaps=gaps,
    )


def _stream_of(run: Run) -> tuple[dict[str, Any], int]:
    """What is particular about the stream of a run, and its number of tasks."""
    settings = _part(run.result.seeds[0].config, "stream")
    usual = {"part": "continual", "class_order": "default"}
    variant = {k: v for k, v in settings.items() if k not in ("name", "tasks") and v != usual.get(k) and v is not None}
    return variant, len(run.result.seeds[0].tasks)


def _grouped(runs: Iterable[Run]) -> list[list[Run]]:
    """Runs whose settings are the same in everything that can change an accuracy.

    A setting that is off is the same as one that an earlier version did not have.
    """
    groups: dict[str, list[Run]] = {}
    for run in runs:
        config = run.result.seeds[0].config
        matters = {k: v for k, v in _part(config, "run").items() if k in _SAME_NUMBERS}
        known = paper.settings(run.result.learner, run.result.stream)
        settings = {k: v for k, v in _part(config, "learner").items() if k in known or v not in _OFF}
        groups.setdefault(_stable([run.result.learner, settings, matters]), []).append(run)
    return list(groups.values())


def _pooled(runs: list[Run], gaps: list[Gap]) -> list[tuple[list[Run], list[SeedResult]]]:
    """Seeds of one row; a seed that is there twice counts once, or makes a row of its own if it disagrees."""
    pools: list[tuple[list[Run], list[SeedResult]]] = []
    for run in runs:
        for members, seeds in pools:
            known = {seed.seed: seed for seed in seeds}
            twice = [s for s in run.result.seeds if s.seed in known]
            if any(s.matrix != known[s.seed].matrix or s.tasks != known[s.seed].tasks for s in twice):
                continue
            if twice:
                listed = ", ".join(str(s.seed) for s in twice)
                gaps.append(Gap(run.name, f"repeats seed {listed} of {members[0].name}; counted once"))
            fresh = [s for s in run.result.seeds if s.seed not in known]
            if fresh:
                members.append(run)
                seeds.extend(fresh)
            break
        else:
            if pools:
                reason = f"has the settings and seeds of {pools[0][0][0].name} but other accuracies; a row of its own"
                gaps.append(Gap(run.name, reason))
            pools.append(([run], list(run.result.seeds)))
    return pools


def _labelled(pooled: list[tuple[list[Run], list[SeedResult]]], stream: str) -> list[Row]:
    rows: list[Row] = []
    for runs, seeds in pooled:
        learner = seeds[0].learner
        siblings = [other[0].config for _, other in pooled if other[0].learner == learner]
        differences = _differences(seeds[0].config, siblings, learner, stream)
        label = " ".join([printable(learner), *(assignment(*pair) for pair in differences.items())])
        rows.append(Row(label, learner, differences, tuple(runs), tuple(sorted(seeds, key=lambda s: s.seed))))
    labels = [row.label for row in rows]
    for at, row in enumerate(rows):
        if labels.count(row.label) > 1:  # same settings, other accuracies: the file tells them apart
            rows[at] = Row(
                f"{row.label} ({row.runs[0].name})",
                row.learner,
                {**row.differences, "file": row.runs[0].name},
                row.runs,
                row.seeds,
            )
    return sorted(rows, key=lambda row: (learner_rank(row.learner), _by_value(row.differences)))


def _differences(config: dict[str, Any], siblings: list[dict[str, Any]], learner: str, stream: str) -> dict[str, Any]:
    """What sets these settings apart: from the paper's where it has a value, else from the learner's other rows."""
    reference = paper.settings(learner, stream)
    found = {}
    for name, value in _part(config, "learner").items():
        if name == "name":
            continue
        if name in reference:
            differs = value != reference[name]
        elif learner in paper.LEARNERS and name not in paper.depends_on_stream(learner):
            differs = value not in _OFF
        else:
            differs = _varies(name, value, [_part(other, "learner") for other in siblings])
        if differs:
            found[name] = value
    run = _part(config, "run")
    if run.get("batch_size", paper.BATCH_SIZE) != paper.BATCH_SIZE:
        found["run.batch_size"] = run["batch_size"]
    if _varies("precision", run.get("precision"), [_part(other, "run") for other in siblings]):
        found["run.precision"] = run.get("precision")
    return found


def _varies(name: str, value: object, among: list[dict[str, Any]]) -> bool:
    return any(other[name] != value for other in among if name in other)


def _part(config: dict[str, Any], name: str) -> dict[str, Any]:
    part = config.get(name)
    return part if isinstance(part, dict) else {}


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
