"""The result of a run and its form on disk: `DIR/result.json`, and one file per seed under `DIR/seeds/`.

Everything but `seconds_*` and `environment` is a function of the config and the seed.

Schema 2 adds `preset`, `scenario`, `after` and `streams`; in results of schema 1, which are read, the first three are
None. Runs with evaluations within tasks have `anytime`, and those with predictions before learning `prequential`, each
with the measures that are computed from them. `skipped_samples` is there if samples could not be read.
"""

from __future__ import annotations

import math
import reprlib
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from scale_cl import files, metrics
from scale_cl.errors import ResultError
from scale_cl.json_format import Format, accuracy_matrix, percentage, reporting_damage, typed
from scale_cl.metrics import Evaluation, Predictions

SCHEMA = 2
RESULT_NAME = "result.json"
SEEDS_FOLDER = "seeds"
MEASURES = ("acc", "fm", "la", "bwt")
ANYTIME_MEASURES = ("aaa", "wc_acc", "min_acc", "stability_gap")  # of evaluations within tasks
OPTIONAL_MEASURES = (*ANYTIME_MEASURES, "prequential_acc")  # a run has them if it was asked for them
MEASURE_NAMES = {  # as people write them
    **{measure: measure.upper() for measure in (*MEASURES, "aaa")},
    "wc_acc": "WC-ACC",
    "min_acc": "min-ACC",
    "stability_gap": "Stability gap",
    "prequential_acc": "Prequential",
}
_LARGEST = 1 << 30  # bytes


@dataclass(frozen=True)
class StreamTasks:
    """A stream that a learner was trained on, and how many of the result's tasks are its."""

    name: str
    tasks: int


class FoundBoundary(NamedTuple):
    """A task boundary that was found in a stream that does not tell them."""

    step: int  # number of the batch at which it was found, from 1 on
    task: str  # name of the task that began there
    new: bool  # whether that task is new, or an earlier one recalled


@dataclass(frozen=True)
class FoundBoundaries:
    """The boundaries that were found, next to the true ones."""

    found: tuple[FoundBoundary, ...]
    true: tuple[int, ...]  # number of the first batch of each task but the first

    @property
    def scores(self) -> tuple[float | None, float | None]:
        """Recall and precision; see `metrics.boundary_scores`."""
        return metrics.boundary_scores([boundary.step for boundary in self.found], self.true)

    def as_dict(self) -> dict[str, Any]:
        """JSON values."""
        recall, precision = self.scores
        found = [boundary._asdict() for boundary in self.found]
        return {"found": found, "true": list(self.true), "recall": recall, "precision": precision}

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> FoundBoundaries:
        """The boundaries whose `as_dict` is `content`; KeyError, TypeError or ValueError if it is damaged."""
        found = [
            FoundBoundary(typed(one, "step", int), typed(one, "task", str), typed(one, "new", bool))
            for one in typed(content, "found", list)
        ]
        return cls(tuple(found), tuple(int(step) for step in typed(content, "true", list)))


@dataclass(frozen=True)
class SeedResult:
    """One learner, trained once on one stream (or on several, one after another)."""

    stream: str
    learner: str
    seed: int
    config: dict[str, Any]
    tasks: list[str]
    matrix: list[list[float | None]]  # [T][T] percent, unrounded: row = after learning that task, column = tested task
    seconds_train: float
    seconds_eval: float
    preset: str | None = None  # name of the preset that the settings began with; None: unknown
    scenario: str | None = None  # "task", "domain" or "class"; None: unknown
    after: str | None = None  # the learner after which this one stands in tables, as its class declares
    streams: tuple[StreamTasks, ...] = ()  # in order of training; by default `stream` alone
    evaluations: tuple[Evaluation, ...] = ()  # within tasks and at their ends, in order, if asked for
    predictions: tuple[Predictions, ...] = ()  # of batches before they were learnt, if asked for
    boundaries: FoundBoundaries | None = None  # of a stream whose boundaries were to be found
    skipped_samples: int = 0  # training samples that could not be read and were left out, as asked (on_error=skip)

    def __post_init__(self) -> None:
        """By default, all tasks are those of the one stream."""
        if not self.streams:
            object.__setattr__(self, "streams", (StreamTasks(self.stream, len(self.tasks)),))

    @property
    def acc(self) -> float | None:
        """Mean accuracy at the end."""
        return metrics.acc(self.matrix)

    @property
    def fm(self) -> float | None:
        """Mean drop from the best accuracy; None for a single task."""
        return metrics.fm(self.matrix)

    @property
    def la(self) -> float | None:
        """Mean accuracy right after learning each task."""
        return metrics.la(self.matrix)

    @property
    def bwt(self) -> float | None:
        """Mean change since learning each task; None for a single task."""
        return metrics.bwt(self.matrix)

    @property
    def aaa(self) -> float | None:
        """Average anytime accuracy; None without evaluations within tasks."""
        return metrics.aaa(self.evaluations)

    @property
    def wc_acc(self) -> float | None:
        """Worst-case accuracy; None without evaluations within tasks."""
        return metrics.wc_acc(self.evaluations)

    @property
    def min_acc(self) -> float | None:
        """Mean of the lowest accuracies after learning; None for a single task or without evaluations within tasks."""
        return metrics.min_acc(self.evaluations)

    @property
    def stability_gap(self) -> float | None:
        """Mean drop of earlier tasks in each task; None for a single task or without evaluations within tasks."""
        return metrics.stability_gap(self.evaluations)

    @property
    def prequential_acc(self) -> float | None:
        """Accuracy on batches before they were learnt; None if it was not asked for."""
        return metrics.prequential(self.predictions)

    @property
    def optional_measures(self) -> tuple[str, ...]:
        """The optional measures that this seed was measured for."""
        anytime, prequential = bool(self.evaluations), bool(self.predictions)
        return tuple(m for m in OPTIONAL_MEASURES if (anytime if m in ANYTIME_MEASURES else prequential))


@dataclass(frozen=True)
class RunResult:
    """The seeds of one run, and the environment they were made in."""

    seeds: tuple[SeedResult, ...]
    environment: dict[str, Any] = field(default_factory=dict)
    seconds_wall: float = 0.0  # of all seeds together, including the loading of data
    seconds_load: float = 0.0  # of these, until the data was loaded (0: unknown)

    def __post_init__(self) -> None:
        """Refuse seeds that are not of one run."""
        if not self.seeds:
            raise ResultError("a result needs at least one seed")
        first = self.seeds[0]
        for other in self.seeds[1:]:
            if (other.stream, other.learner, len(other.tasks)) != (first.stream, first.learner, len(first.tasks)):
                raise ResultError(
                    f"seeds {first.seed} and {other.seed} differ in stream, learner or number of tasks; "
                    "a result holds seeds of one run"
                )
        if len({s.seed for s in self.seeds}) < len(self.seeds):
            raise ResultError(f"a seed appears twice among {[s.seed for s in self.seeds]}; each may appear once")

    @property
    def stream(self) -> str:
        """Name of the stream."""
        return self.seeds[0].stream

    @property
    def learner(self) -> str:
        """Name of the learner."""
        return self.seeds[0].learner

    def values(self, measure: str) -> list[float | None]:
        """The values of a measure such as acc, one per seed."""
        return [getattr(seed, measure) for seed in self.seeds]

    def as_dict(self) -> dict[str, Any]:
        """The content of `result.json`."""
        optional = self.seeds[0].optional_measures
        measured = [measured_as_dict(s.evaluations, s.predictions) for s in self.seeds]
        boundaries = [None if s.boundaries is None else s.boundaries.as_dict() for s in self.seeds]
        skipped = [s.skipped_samples for s in self.seeds]
        return {
            **_head("run", self.seeds[0]),
            "seeds": [s.seed for s in self.seeds],
            **{measure: self.values(measure) for measure in (*MEASURES, *optional)},
            "seconds_train": [s.seconds_train for s in self.seeds],
            "seconds_eval": [s.seconds_eval for s in self.seeds],
            "seconds_wall": self.seconds_wall,
            "seconds_load": self.seconds_load,
            "tasks": [s.tasks for s in self.seeds],
            "matrix": [s.matrix for s in self.seeds],
            **{key: [one.get(key) for one in measured] for key in measured[0]},
            **({"boundaries": boundaries} if any(boundaries) else {}),
            **({"skipped_samples": skipped} if any(skipped) else {}),
            "environment": self.environment,
        }

    def line(self) -> str:
        """The closing line: `scale on pmnist: ACC 80.6 ± 0.4  FM 2.5 ± 0.3  LA 81.2 (5 seeds, 61 s)`.

        Prequential accuracy follows LA if it was measured.
        """
        count, before = len(self.seeds), self.values("prequential_acc")
        prequential = "" if before[0] is None else f"  prequential {percent(before)}"
        la_mean, _ = metrics.mean_and_deviation(self.values("la"))
        return (
            f"{self.learner} on {self.stream}: ACC {percent(self.values('acc'))}  FM {percent(self.values('fm'))}  "
            f"LA {percent([la_mean])}{prequential} ({count} seed{'s' if count > 1 else ''}, {self.seconds_wall:.0f} s)"
        )

    def boundaries_line(self) -> str:
        """What was found of the boundaries: `boundaries found: recall 1.00, precision 0.95 (means of 5 seeds)`."""
        scores = [seed.boundaries.scores for seed in self.seeds if seed.boundaries is not None]
        if not scores:
            return ""
        means = [metrics.mean_and_deviation(column)[0] for column in zip(*scores, strict=True)]
        recall, precision = ("-" if mean is None else f"{mean:.2f}" for mean in means)
        of_seeds = f" (means of {len(scores)} seeds)" if len(scores) > 1 else ""
        return f"boundaries found: recall {recall}, precision {precision}{of_seeds}"

    def write(self, directory: Path) -> Path:
        """Write one file per seed and `result.json`, replacing an earlier result; returns the path of the latter."""
        directory.mkdir(parents=True, exist_ok=True)
        coming, going = (directory / f".{SEEDS_FOLDER}-{word}" for word in ("coming", "going"))
        try:
            shutil.rmtree(coming, ignore_errors=True)
            coming.mkdir()
            for seed in self.seeds:
                files.write_json(coming / f"seed-{seed.seed}.json", seed_as_dict(seed, self.environment))
            files.write_json(directory / RESULT_NAME, self.as_dict())
            if (directory / SEEDS_FOLDER).exists():
                (directory / SEEDS_FOLDER).replace(going)
            coming.replace(directory / SEEDS_FOLDER)
        finally:
            shutil.rmtree(coming, ignore_errors=True)
            shutil.rmtree(going, ignore_errors=True)
        return directory / RESULT_NAME


def percent(values: Sequence[float | None]) -> str:
    """Mean and deviation as `80.6 ± 0.4`; one value has no deviation, an undefined measure is a dash."""
    mean, deviation = metrics.mean_and_deviation(values)
    if mean is None:
        return "-"
    shown = f"{round(mean, 1) + 0.0:.1f}"  # never -0.0
    return shown if deviation is None else f"{shown} ± {deviation:.1f}"


def seed_as_dict(seed: SeedResult, environment: dict[str, Any]) -> dict[str, Any]:
    """The content of a seed's own file."""
    return {
        **_head("seed", seed),
        "seed": seed.seed,
        **{measure: getattr(seed, measure) for measure in (*MEASURES, *seed.optional_measures)},
        "seconds_train": seed.seconds_train,
        "seconds_eval": seed.seconds_eval,
        "tasks": seed.tasks,
        "matrix": seed.matrix,
        **measured_as_dict(seed.evaluations, seed.predictions),
        **({} if seed.boundaries is None else {"boundaries": seed.boundaries.as_dict()}),
        **({"skipped_samples": seed.skipped_samples} if seed.skipped_samples else {}),
        "environment": environment,
    }


def _head(kind: str, seed: SeedResult) -> dict[str, Any]:
    """What the files of a run and of a seed begin with."""
    return {
        "schema": SCHEMA,
        "kind": kind,
        "stream": seed.stream,
        "streams": [vars(part) for part in seed.streams],
        "scenario": seed.scenario,
        "learner": seed.learner,
        "preset": seed.preset,
        "after": seed.after,
        "config": seed.config,
    }


def read(path: Path) -> RunResult:
    """Read a `result.json`, or the one in a directory; ResultError if it is missing, damaged, foreign or newer."""
    path = path / RESULT_NAME if files.is_folder(path) else path
    content = _load(path, "run")
    with reporting_damage(path, ResultError):
        count = len(content["seeds"])
        columns: tuple[str, ...] = ("seeds", "tasks", "matrix", "seconds_train", "seconds_eval", *MEASURES)
        optional = ("anytime", "prequential", "skipped_samples", *OPTIONAL_MEASURES)
        columns += tuple(key for key in optional if key in content)
        if any(not isinstance(content[c], list) or len(content[c]) != count for c in columns):
            raise ValueError(f"{', '.join(columns)} are not lists of the same length")
        columns += ("boundaries",) if "boundaries" in content else ()
        rows = [{c: content[c][i] for c in columns} for i in range(count)]
        seeds = tuple(_seed_of({**content, **row, "seed": row["seeds"]}) for row in rows)
        seconds = float(content["seconds_wall"]), float(content.get("seconds_load", 0.0))
        return RunResult(seeds, typed(content, "environment", dict), *seconds)


def read_seed(path: Path) -> SeedResult:
    """Read the file of one seed; ResultError if it is missing, damaged, foreign or newer."""
    content = _load(path, "seed")
    with reporting_damage(path, ResultError):
        return _seed_of(content)


def _load(path: Path, kind: str) -> dict[str, Any]:
    missing = f"{{path}} does not exist; a finished run holds a {RESULT_NAME}"
    expected = Format("a result", kind, SCHEMA, ResultError, _LARGEST, siblings=("run", "seed"), missing=missing)
    return expected.read(path)


def _seed_of(row: dict[str, Any]) -> SeedResult:
    tasks = typed(row, "tasks", list)
    seed = SeedResult(
        stream=typed(row, "stream", str),
        learner=typed(row, "learner", str),
        seed=typed(row, "seed", int),
        config=typed(row, "config", dict),
        tasks=[str(task) for task in tasks],
        matrix=accuracy_matrix(row["matrix"], len(tasks)),
        seconds_train=float(row["seconds_train"]),
        seconds_eval=float(row["seconds_eval"]),
        **_since_schema_2(row, len(tasks)),
        **measured_from_dict(row),
    )
    for measure in (*MEASURES, *seed.optional_measures):
        stored, computed = row[measure], getattr(seed, measure)
        if not _agree(stored, computed):
            shown, of = reprlib.repr(stored), "matrix gives" if measure in MEASURES else "evaluations give"
            raise ValueError(f"{measure} of seed {seed.seed} is {shown}, but its {of} {computed}")
    return seed


def measured_as_dict(evaluations: Sequence[Evaluation], predictions: Sequence[Predictions]) -> dict[str, Any]:
    """What was measured during training as JSON values; `prequential` and `anytime` only if there are any."""
    found: dict[str, Any] = {}
    if evaluations:
        found["anytime"] = {"steps": [e.step for e in evaluations], "accuracies": [list(e[1]) for e in evaluations]}
    if predictions:
        steps, samples, right = (list(column) for column in zip(*predictions, strict=True))
        found["prequential"] = {"steps": steps, "samples": samples, "right": right}
    return found


def measured_from_dict(content: dict[str, Any]) -> dict[str, Any]:
    """`evaluations` and `predictions` of what `measured_as_dict` gave; KeyError, TypeError or ValueError if damaged."""
    found: dict[str, Any] = {}
    if content.get("anytime") is not None:
        part = content["anytime"]
        pairs = zip(_rising(part["steps"]), part["accuracies"], strict=True)
        found["evaluations"] = tuple(Evaluation(step, tuple(map(percentage, row))) for step, row in pairs)
    if content.get("prequential") is not None:
        part = content["prequential"]
        counts = zip(_rising(part["steps"]), part["samples"], part["right"], strict=True)
        found["predictions"] = tuple(_counted(Predictions(*count)) for count in counts)
    return found


def _counted(count: Predictions) -> Predictions:
    if any(type(n) is not int for n in count) or not 0 <= count.right <= count.samples or count.samples == 0:
        raise ValueError(f"'prequential' counts {reprlib.repr(count[1:])}, which are not samples and right ones")
    return count


def _rising(steps: list[Any]) -> list[int]:
    if any(type(step) is not int for step in steps) or any(a >= b for a, b in pairwise([0, *steps])):
        raise ValueError(f"steps are {reprlib.repr(steps)}; they must be rising whole numbers")
    return steps


def _since_schema_2(row: dict[str, Any], tasks: int) -> dict[str, Any]:
    """What a file of schema 1 does not have."""
    if row["schema"] < 2:
        return {}
    streams = tuple(StreamTasks(typed(part, "name", str), typed(part, "tasks", int)) for part in row["streams"])
    if sum(part.tasks for part in streams) != tasks:
        raise ValueError(f"streams have {sum(part.tasks for part in streams)} tasks, but the result has {tasks}")
    texts = {key: None if row[key] is None else typed(row, key, str) for key in ("preset", "scenario", "after")}
    found = None if row.get("boundaries") is None else FoundBoundaries.from_dict(row["boundaries"])
    skipped = typed({"skipped_samples": 0, **row}, "skipped_samples", int)
    if skipped < 0:
        raise ValueError(f"skipped_samples is {skipped}; it must be at least 0")
    return {**texts, "streams": streams, "boundaries": found, "skipped_samples": skipped}


def _agree(stored: object, computed: float | None) -> bool:
    if computed is None or not isinstance(stored, int | float):
        return stored is computed
    return math.isclose(stored, computed, abs_tol=1e-6)
