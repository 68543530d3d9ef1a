"""The figures of a section as data, before they are drawn: for the page in SVG, for a paper by matplotlib."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from scale_cl.reports import paper
from scale_cl.reports.experiment_rows import main_rows, memory_rows, sensitivity_rows
from scale_cl.reports.rows import Row
from scale_cl.reports.sections import LEARNER_ORDER, Section
from scale_cl.reports.seed_statistics import Summary, summarise
from scale_cl.reports.table import mean_text, number
from scale_cl.results import SeedResult

COLOURS = 10
_COLOUR_OF = {
    name: at
    for at, name in enumerate(("scale", "ctn", "er", "mir", "mer", "gem", "joint", "finetune", "derpp", "scale-ema"))
}


@dataclass(frozen=True)
class Point:
    """One value with its deviation, and what to say about it."""

    x: float
    y: float
    deviation: float | None
    hover: str
    error_x: float | None = None


@dataclass(frozen=True)
class Series:
    """Points that belong together; a `level` is one value that holds for all x."""

    label: str
    points: tuple[Point, ...]
    colour: int
    dash: int = 0
    level: bool = False


@dataclass(frozen=True)
class Chart:
    """Lines or single points over two axes; a band or bar of one deviation."""

    key: str
    title: str
    x_label: str
    y_label: str
    series: tuple[Series, ...]
    kind: Literal["lines", "points"] = "lines"
    x_ticks: tuple[tuple[float, str], ...] = ()  # none: the drawing chooses
    log_x: bool = False
    note: str = ""


@dataclass(frozen=True)
class Heatmap:
    """A learner's matrix of accuracies, the mean over its seeds; all of a section share one scale."""

    key: str
    label: str
    tasks: tuple[str, ...]
    values: tuple[tuple[float | None, ...], ...]  # row: after learning that task; column: tested task
    low: float
    high: float


def charts(section: Section) -> list[Chart]:
    """All charts of a section for which there are data."""
    made = (
        accuracy_after_each_task(section),
        forgetting_per_task(section),
        accuracy_against_memory(section),
        accuracy_against_time(section),
        sensitivity(section),
    )
    return [chart for chart in made if chart is not None]


def accuracies_so_far(seed: SeedResult) -> list[float | None]:
    """After each task, the mean accuracy over the tasks learnt so far; None where one was not tested."""
    return [_mean(row[: at + 1]) for at, row in enumerate(seed.matrix)]


def forgotten(seed: SeedResult) -> list[float | None]:
    """For each task but the last, the drop from its best accuracy before the end to that at the end."""
    drops: list[float | None] = []
    for task in range(len(seed.matrix) - 1):
        before = [row[task] for row in seed.matrix[task:-1]]
        known, end = [a for a in before if a is not None], seed.matrix[-1][task]
        drops.append(max(known) - end if len(known) == len(before) and end is not None else None)
    return drops


def mean_curve(row: Row, curve: Callable[[SeedResult], list[float | None]]) -> list[Summary | None]:
    """A curve of every seed, summarised over the seeds at each of its places."""
    return [summarise(values) for values in zip(*(curve(seed) for seed in row.seeds), strict=True)]


def accuracy_after_each_task(section: Section) -> Chart | None:
    """Mean accuracy over the tasks so far; what was tested at the end only is a level."""
    if len(section.tasks) < 2:
        return None
    last = len(section.tasks) - 1
    drawn = []
    for row in main_rows(section):
        curve = mean_curve(row, accuracies_so_far)
        only_the_end = curve[last] is not None and all(summary is None for summary in curve[:last])
        drawn.append((row, _points(curve, row.label), only_the_end))
    return _chart(
        "accuracy", "Accuracy after each task", "tasks learnt", "accuracy on them, %", drawn, _task_ticks(last + 1)
    )


def forgetting_per_task(section: Section) -> Chart | None:
    """How much of each task's best accuracy is gone at the end."""
    drawn = [(row, _points(mean_curve(row, forgotten), row.label), False) for row in main_rows(section)]
    return _chart(
        "forgetting",
        "Forgetting per task",
        "task",
        "forgotten at the end, points",
        drawn,
        _task_ticks(len(section.tasks) - 1),
    )


def accuracy_against_memory(section: Section) -> Chart | None:
    """ACC over the slots a task, for learners that were run with several; joint training as a level."""
    found = memory_rows(section)
    drawn: list[tuple[Row, tuple[Point, ...], bool]] = []
    for rows in found.values():
        base = min(rows.values(), key=lambda row: len(row.differences))
        summaries = [(size, row.summary("acc")) for size, row in rows.items()]
        points = tuple(_point(size, s, f"{base.learner}, {size} slots") for size, s in summaries if s)
        drawn.append((base, points, False))
    joint, sizes = section.find("joint"), sorted({size for rows in found.values() for size in rows})
    bound = joint.summary("acc") if joint else None
    if drawn and joint and bound:
        drawn.append((joint, (_point(sizes[0], bound, joint.label),), True))
    ticks = tuple((float(size), str(size)) for size in sizes)
    return _chart("memory", "Accuracy against memory", "memory slots a task", "ACC, %", drawn, ticks)


def accuracy_against_time(section: Section) -> Chart | None:
    """ACC over seconds of training a seed: of runs alone on one device, or of others, which is said in the picture."""
    timed = [(row, row.summary("acc"), row.summary("seconds_train")) for row in main_rows(section)]
    usable = [(row, acc, time) for row, acc, time in timed if acc and time and time.mean > 0]
    places = {(row.is_timed_alone, *row.timing_devices) for row, _, _ in usable}
    counts = {place: sum((r.is_timed_alone, *r.timing_devices) == place for r, _, _ in usable) for place in places}
    enough = sorted(
        (place for place in places if counts[place] > 1), key=lambda place: (place[0], counts[place], place)
    )
    if not enough:
        return None
    alone, device = enough[-1]
    drawn = []
    for row, acc, time in usable:
        if (row.is_timed_alone, *row.timing_devices) == (alone, device):
            hover = f"{row.label}: ACC {mean_text(acc)}, {mean_text(time)} s"
            drawn.append((row, (Point(time.mean, acc.mean, acc.deviation, hover, time.deviation),), False))
    times = [points[0].x for _, points, _ in drawn]
    return _chart(
        "time",
        "Accuracy against time",
        "training, seconds a seed" + ("" if alone else ", beside other runs"),
        "ACC, %",
        drawn,
        (),
        kind="points",
        log_x=max(times) > 10 * min(times),
        note=_time_note(bool(alone), str(device), left_out=len(usable) > len(drawn)),
    )


def _time_note(alone: bool, device: str, *, left_out: bool) -> str:
    how = "one run after another with nothing beside it" if alone else "where other runs may have run beside"
    others = " Runs that were timed otherwise, or on other devices, are left out." if left_out else ""
    return f"Seconds of training a seed on {device}, {how}.{others}"


def sensitivity(section: Section) -> Chart | None:
    """SCALE's ACC over lambda3, a line for each lambda1 = lambda2, beside the paper's."""
    found = sensitivity_rows(section)
    targets = paper.SENSITIVITY.get(section.stream, {}) if found and section.is_the_papers else {}
    places = {third: float(at) for at, third in enumerate(sorted({weights[1] for weights in (*found, *targets)}))}
    series = []
    for colour, first in enumerate(sorted({weights[0] for weights in (*found, *targets)})):
        name = f"λ1 = λ2 = {first:g}"
        ours = [(third, row.summary("acc")) for (one, third), row in found.items() if one == first]
        theirs = [(third, target.acc) for (one, third), target in sorted(targets.items()) if one == first]
        for label, dash, values in ((name, 0, ours), (f"{name}, paper", 1, theirs)):
            points = tuple(_point(places[third], s, f"{label}, λ3 = {third:g}") for third, s in values if s)
            if points:
                series.append(Series(label, points, colour, dash))
    if not series or len(places) < 2:
        return None
    ticks = tuple((at, f"{third:g}") for third, at in places.items())
    return Chart("sensitivity", "Sensitivity of SCALE", "λ3", "ACC, %", tuple(series), x_ticks=ticks)


def heatmaps(section: Section) -> list[Heatmap]:
    """The mean matrix of every learner that was tested after each task."""
    if len(section.tasks) < 2:
        return []
    means = [(row, tuple(tuple(_cells(row, i)) for i in range(len(section.tasks)))) for row in main_rows(section)]
    means = [(row, matrix) for row, matrix in means if any(v is not None for line in matrix[:-1] for v in line)]
    known = [value for _, matrix in means for line in matrix for value in line if value is not None]
    return [
        Heatmap(f"matrix-{row.label}", row.label, section.tasks, matrix, min(known), max(known))
        for row, matrix in means
    ]


def colour_of(learner: str) -> int:
    """The colour of a learner, the same in every figure."""
    if learner in _COLOUR_OF:
        return _COLOUR_OF[learner]
    others = [name for name in LEARNER_ORDER if name not in _COLOUR_OF]
    return (3 + others.index(learner)) % COLOURS if learner in others else sum(learner.encode()) % COLOURS


def _chart(
    key: str,
    title: str,
    x_label: str,
    y_label: str,
    drawn: Sequence[tuple[Row, tuple[Point, ...], bool]],
    x_ticks: tuple[tuple[float, str], ...],
    *,
    kind: Literal["lines", "points"] = "lines",
    log_x: bool = False,
    note: str = "",
) -> Chart | None:
    """The chart of these rows, those of one colour told apart by their dashes; None without a point."""
    series: list[Series] = []
    for row, points, level in drawn:
        if points:
            colour = colour_of(row.learner)
            dash = sum(other.colour == colour for other in series)
            series.append(Series(row.label, points, colour, dash, level))
    if all(one.level for one in series):
        return None
    return Chart(key, title, x_label, y_label, tuple(series), kind, x_ticks, log_x, note)


def _points(curve: Sequence[Summary | None], label: str) -> tuple[Point, ...]:
    return tuple(_point(at + 1, s, f"{label}, task {at + 1}") for at, s in enumerate(curve) if s is not None)


def _point(x: float, summary: Summary | paper.Figure, what: str) -> Point:
    return Point(float(x), summary.mean, summary.deviation, f"{what}: {mean_text(summary)}")


def _task_ticks(count: int) -> tuple[tuple[float, str], ...]:
    step = 1 if count <= 10 else 2 if count <= 20 else max(1, count // 10)
    return tuple((float(task), str(task)) for task in range(1, count + 1) if (task - 1) % step == 0)


def _cells(row: Row, after: int) -> Iterator[float | None]:
    for task in range(len(row.seeds[0].matrix)):
        summary = summarise([seed.matrix[after][task] for seed in row.seeds])
        yield None if summary is None else summary.mean


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known and len(known) == len(values) else None


def cell_text(heatmap: Heatmap, after: int, task: int) -> str:
    """What to say about one cell of a heat map."""
    value = heatmap.values[after][task]
    shown = "not tested" if value is None else f"{number(value)} %"
    return f"{heatmap.label}, after {heatmap.tasks[after]}, on {heatmap.tasks[task]}: {shown}"
