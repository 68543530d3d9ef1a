"""Group results into sections and rows.

A section is one stream as it was run; a row is one learner with one set of settings on that stream, over all its seeds.
Results of the same run are pooled into one row, each seed once, and so are numbered class orders: a seed counts once
per order. Times come from runs that ran alone if there are any.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from scale_cl.errors import printable
from scale_cl.experiments.definitions import JOINT_TRAINING
from scale_cl.experiments.result_index import ALONE, OFF, RUN, STREAM, config_section, identities
from scale_cl.plugins import shown
from scale_cl.reports import paper
from scale_cl.reports.collection import OWN_IMAGES, Collection, Gap, Run, assignment, distinct, slug
from scale_cl.reports.seed_statistics import Summary, summarise
from scale_cl.results import SeedResult

_NUMBERED = "numbered"  # stands for all numbered class orders where these are pooled
_WEIGHTS = ("lambda1", "lambda2", "lambda3")


@dataclass(frozen=True)
class ResultRow:
    """One learner with one set of settings on one stream: all its seeds, from one run or several."""

    label: str
    learner: str
    differences: dict[str, Any]  # settings that differ from the default ones, or from the learner's other rows
    runs: tuple[Run, ...]
    seeds: tuple[SeedResult, ...]
    timed: tuple[tuple[Run, SeedResult], ...] = ()  # seeds that ran alone: their times count

    @property
    def anchor(self) -> str:
        """Anchor of this row's provenance in the report."""
        name = self.runs[0].name
        return f"source-{slug(name)}-{zlib.crc32(name.encode('utf-8', 'replace')):08x}"

    @property
    def is_bound(self) -> bool:
        """Whether the learner sees all data at once: an upper bound, not a competitor."""
        return self.learner in JOINT_TRAINING

    @property
    def is_timed_alone(self) -> bool:
        """Whether its times were measured with nothing running beside; if not, other runs may have slowed it down."""
        return bool(self.timed)

    def summary(self, measure: str) -> Summary | None:
        """acc, fm, la, bwt, seconds_train or seconds_eval over the seeds; None for times from several devices."""
        if measure.startswith("seconds"):
            values = [getattr(seed, measure) for seed in ([s for _, s in self.timed] or self.seeds)]
            return summarise(values) if len(self.timing_devices) == 1 and min(values) >= 0 else None
        return summarise([getattr(seed, measure) for seed in self.seeds])

    def by_lane(self, measure: str) -> dict[Lane, float]:
        """A measure by class order and seed, where it is defined."""
        values = {lane(seed): getattr(seed, measure) for seed in self.seeds}
        return {key: value for key, value in values.items() if value is not None}

    @property
    def orders(self) -> list[int]:
        """The numbered class orders of its seeds."""
        return sorted({order for order, _ in map(lane, self.seeds) if order >= 0})

    @property
    def devices(self) -> list[str]:
        """Devices of its runs."""
        return sorted({device(run) for run in self.runs})

    @property
    def timing_devices(self) -> list[str]:
        """Devices of its times."""
        return sorted({device(run) for run, _ in self.timed}) or self.devices

    @property
    def sources(self) -> tuple[Run, ...]:
        """All runs behind its numbers, each once."""
        return (*self.runs, *{run.name: run for run, _ in self.timed if run not in self.runs}.values())

    def setting(self, name: str) -> Any:
        """A setting of the learner; None if there is no such setting."""
        return config_section(self.seeds[0].config, "learner").get(name)


Lane = tuple[int, int]  # a numbered class order, or -1 for any other, and a seed


def lane(seed: SeedResult) -> Lane:
    """What a seed of a row is told apart by."""
    order = class_order(seed.config)
    return -1 if order is None else order, seed.seed


def class_order(config: Mapping[str, Any]) -> int | None:
    """The numbered class order of a config, if it has one."""
    order = config_section(config, "stream").get("class_order")
    return order if isinstance(order, int) else None


def device(run: Run) -> str:
    """Name of the device of a run."""
    environment = run.result.environment
    return printable(environment.get("device_name") or environment.get("device") or "unknown device")


def is_alone(run: Run) -> bool:
    """Whether nothing ran beside this run, so that its times count."""
    return run.result.environment.get(ALONE) is True


@dataclass
class Pool:
    """The seeds of a row and their runs."""

    runs: list[Run] = field(default_factory=list)
    seeds: list[SeedResult] = field(default_factory=list)
    timed: list[tuple[Run, SeedResult]] = field(default_factory=list)

    def agrees(self, run: Run) -> bool:
        """Whether seeds in both have equal accuracies; a timed run on a GPU need not repeat them exactly."""
        if is_alone(run) and str(run.result.environment.get("device")).startswith("cuda"):
            return True
        known = {lane(seed): seed for seed in self.seeds}
        twice = [(s, known[lane(s)]) for s in run.result.seeds if lane(s) in known]
        return all(s.matrix == other.matrix and s.tasks == other.tasks for s, other in twice)

    def add(self, run: Run, gaps: list[Gap]) -> None:
        """Add the seeds that are new; a repeated seed counts once and becomes a gap, unless the run is a timed one."""
        known = set(map(lane, self.seeds))
        twice = [s.seed for s in run.result.seeds if lane(s) in known]
        if twice and not is_alone(run):
            listed = ", ".join(map(str, twice))
            gaps.append(Gap(run.name, f"repeats seed {listed} of {self.runs[0].name}; counted once"))
        fresh = [s for s in run.result.seeds if lane(s) not in known]
        if fresh:
            self.runs.append(run)
            self.seeds.extend(fresh)
        if is_alone(run):
            timed = {(lane(seed), device(other)) for other, seed in self.timed}
            self.timed += [(run, s) for s in run.result.seeds if (lane(s), device(run)) not in timed]


def pools(runs: list[Run], gaps: list[Gap]) -> list[Pool]:
    """Pool the runs of one stream; a run that contradicts an equal one gets its own pool and becomes a gap."""
    made: list[Pool] = []
    for same in _grouped(runs):
        own: list[Pool] = []
        for run in sorted(same, key=is_alone):  # accuracies come from the others where there are any
            pool = next((pool for pool in own if pool.agrees(run)), None)
            if pool is None:
                if own:
                    first = own[0].runs[0].name
                    reason = f"has the settings and seeds of {first} but other accuracies; a row of its own"
                    gaps.append(Gap(run.name, reason))
                own.append(pool := Pool())
            pool.add(run, gaps)
        made += own
    return made


def _grouped(runs: list[Run]) -> Iterable[list[Run]]:
    """Results of the same run, in whatever numbered class order; all are of one stream with one number of tasks."""
    configs = [_any_order(run.result.seeds[0].config) for run in runs]
    groups: dict[tuple[str, str], list[Run]] = {}
    for run, key in zip(runs, identities(configs, len(runs[0].result.seeds[0].tasks)), strict=True):
        groups.setdefault((run.result.learner, key), []).append(run)
    return groups.values()


def _any_order(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config with one text for all numbered class orders."""
    if class_order(config) is None:
        return dict(config)
    return {**config, "stream": {**config["stream"], "class_order": _NUMBERED}}


@dataclass(frozen=True)
class Section:
    """A stream as it was run, and every row on it."""

    stream: str
    tasks: tuple[str, ...]
    variant: dict[str, Any]  # settings of the stream that are not its defaults
    rows: tuple[ResultRow, ...]
    gaps: list[Gap] = field(default_factory=list)
    key: str = ""  # for anchors and file names

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
        """Whether the paper has numbers for this stream at this length (it does not state its class order)."""
        return paper.TASKS.get(self.stream) == len(self.tasks) and self.variant.keys() <= {"class_order"}

    def find(self, learner: str, **differences: object) -> ResultRow | None:
        """The row of `learner` with exactly these differences."""
        return next((r for r in self.rows if r.learner == learner and r.differences == differences), None)


def sections(collection: Collection) -> list[Section]:
    """Group a collection into sections; repeated results count once and are listed as gaps."""
    groups: dict[str, list[Run]] = {}
    for run in collection.runs:
        key = json.dumps([run.result.stream, *_stream_of(run)], sort_keys=True)
        groups.setdefault(key, []).append(run)
    made = [_section(runs) for runs in groups.values()]
    made.sort(key=lambda s: (_rank(s.stream, paper.STREAM_ORDER), s.stream, len(s.variant), s.title))
    keys = distinct(section.title for section in made)
    return [replace(section, key=key) for section, key in zip(made, keys, strict=True)]


def _section(runs: list[Run]) -> Section:
    first = runs[0]
    variant, tasks = _stream_of(first)
    orders = sorted({order for run in runs if (order := class_order(run.result.seeds[0].config)) is not None})
    if orders:
        variant["class_order"] = orders[0] if len(orders) == 1 else orders
    gaps: list[Gap] = []
    return Section(
        stream=first.result.stream,
        tasks=tuple(f"task {number}" for number in range(1, tasks + 1)),
        variant=variant,
        rows=tuple(_labelled(pools(runs, gaps), first.result.stream)),
        gaps=gaps,
    )


def _stream_of(run: Run) -> tuple[dict[str, Any], int]:
    """The stream settings of a run that are not defaults, in whatever numbered order, and its number of tasks."""
    settings = config_section(_any_order(run.result.seeds[0].config), "stream")
    variant = {k: v for k, v in settings.items() if k not in ("name", "tasks") and v != STREAM.get(k) and v is not None}
    return variant, len(run.result.seeds[0].tasks)


def _labelled(pooled: list[Pool], stream: str) -> list[ResultRow]:
    rows: list[ResultRow] = []
    for pool in pooled:
        learner = pool.seeds[0].learner
        siblings = [other.seeds[0].config for other in pooled if other.seeds[0].learner == learner]
        differences = _differences(pool.seeds[0].config, siblings, learner, stream)
        label = " ".join([printable(shown(learner)), *(assignment(*pair) for pair in differences.items())])
        seeds = tuple(sorted(pool.seeds, key=lane))
        rows.append(ResultRow(label, learner, differences, tuple(pool.runs), seeds, tuple(pool.timed)))
    labels = [row.label for row in rows]
    for at, row in enumerate(rows):
        if labels.count(row.label) > 1:  # same settings, other accuracies: told apart by file
            file = row.runs[0].name
            rows[at] = replace(row, label=f"{row.label} ({file})", differences={**row.differences, "file": file})
    return sorted(rows, key=lambda row: (learner_rank(row), _by_value(row.differences)))


def _differences(config: dict[str, Any], siblings: list[dict[str, Any]], learner: str, stream: str) -> dict[str, Any]:
    """Settings that differ: from the usual value where there is one, else from the learner's other rows."""
    reference = {**paper.usual_settings(learner, stream), **_beside_the_paper(config, learner)}
    found = {}
    for name, value in config_section(config, "learner").items():
        if name == "name":
            continue
        if name in reference:
            differs = value != reference[name]
        elif learner in paper.LEARNERS and name not in paper.depends_on_stream(learner):
            differs = value not in OFF
        else:
            differs = _varies(name, value, [config_section(other, "learner") for other in siblings])
        if differs:
            found[name] = value
    run, others = RUN | config_section(config, "run"), [RUN | config_section(other, "run") for other in siblings]
    for name, usual in RUN.items():
        if run[name] != usual and (name == "batch_size" or _varies(name, run[name], others)):
            found[f"run.{name}"] = run[name]
    return found


def _beside_the_paper(config: dict[str, Any], learner: str) -> Mapping[str, Any]:
    """The recommended settings on streams of which the paper says nothing: own images, and hidden boundaries."""
    stream = config_section(config, "stream")
    own_images, hidden = str(stream.get("name")).startswith(OWN_IMAGES), stream.get("boundaries") == "hidden"
    if not own_images and not hidden:
        return {}
    from scale_cl.learners.presets import (  # loads torch, which other reports do not need
        DEFAULT_PRESET,
        PRESETS,
        WITHOUT_BOUNDARIES,
        Preset,
    )

    on_images = PRESETS[DEFAULT_PRESET].get(learner, Preset()).user_images if own_images else {}
    return {**on_images, **(WITHOUT_BOUNDARIES if hidden else {})}


def _varies(name: str, value: object, among: list[dict[str, Any]]) -> bool:
    return any(other[name] != value for other in among if name in other)


def learner_rank(row: ResultRow) -> tuple[float, str]:
    """Sort key: ours in the order of `paper.LEARNER_ORDER`, others after the one that they name, else at the end."""
    order, after = paper.LEARNER_ORDER, row.seeds[0].after
    known = _rank(row.learner, order)
    return (_rank(after, order) + 0.5 if known == len(order) and after is not None else known), row.learner


def _rank(name: str, order: tuple[str, ...]) -> int:
    return order.index(name) if name in order else len(order)


def _by_value(differences: dict[str, Any]) -> tuple[int, list[tuple[str, float, str]]]:
    """Sort key: fewest differences first, then by name, then by value (numerically where possible)."""
    pairs = [(k, float(v) if isinstance(v, int | float) else 0.0, str(v)) for k, v in differences.items()]
    return len(pairs), pairs


def main_rows(section: Section) -> list[ResultRow]:
    """Rows of the main table: all except those of a memory, ablation or sensitivity experiment."""
    apart = [*ablation_rows(section).values()]
    apart += [row for row in sensitivity_rows(section).values() if row.differences]
    apart += [row for by_memory in memory_rows(section).values() for row in by_memory.values() if row.differences]
    kept = [row for row in section.rows if not any(row is other for other in apart)]
    return kept or list(section.rows)


def memory_rows(section: Section) -> dict[str, dict[int, ResultRow]]:
    """Rows of learners run with several sizes of memory per task and no other change, by learner and size."""
    found: dict[str, dict[int, ResultRow]] = {}
    for row in section.rows:
        size, in_all = row.setting("memory"), row.setting("memory_budget") == "total"
        if isinstance(size, int) and not in_all and row.differences.keys() <= {"memory"}:
            found.setdefault(row.learner, {})[size] = row
    return {learner: dict(sorted(rows.items())) for learner, rows in found.items() if len(rows) > 1}


def ablation_rows(section: Section) -> dict[str, ResultRow]:
    """Rows of SCALE with one component off, by the letter of the paper."""
    found = {letter: section.find(paper.METHOD, **{field: False}) for letter, (field, _) in paper.ABLATIONS.items()}
    return {letter: row for letter, row in found.items() if row is not None}


def sensitivity_rows(section: Section) -> dict[tuple[float, float], ResultRow]:
    """Rows of SCALE by (lambda1 = lambda2, lambda3), nothing else changed; empty if there are fewer than two."""
    found = {}
    for row in section.rows:
        values = [row.setting(name) for name in _WEIGHTS]
        plain = row.learner == paper.METHOD and row.differences.keys() <= set(_WEIGHTS)
        if plain and all(isinstance(v, int | float) for v in values) and values[0] == values[1]:
            found[float(values[0]), float(values[2])] = row
    return dict(sorted(found.items())) if len(found) > 1 else {}


def our_row(section: Section) -> ResultRow | None:
    """SCALE with its default settings, or else its only row."""
    rows = [row for row in main_rows(section) if row.learner == paper.METHOD]
    return section.find(paper.METHOD) or (rows[0] if len(rows) == 1 else None)
