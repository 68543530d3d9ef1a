"""The figures of a section as data; `html` draws them on the page, `plots` for a paper."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from scale_cl import metrics
from scale_cl.errors import printable
from scale_cl.experiments.definitions import JOINT_TRAINING
from scale_cl.plugins import shown
from scale_cl.reports import paper
from scale_cl.reports.sections import ResultRow, Section, main_rows, memory_rows, sensitivity_rows
from scale_cl.reports.seed_statistics import Summary, summarise
from scale_cl.reports.table import mean_text, number
from scale_cl.results import SeedResult

COLOURS = 10
_DENSE = (0, 1, 3, 4)  # dashes that suit curves of many points: dots do not
Kind = Literal["lines", "curves", "points"]


@dataclass(frozen=True)
class Point:
    """One value with its deviation and hover text."""

    x: float
    y: float
    deviation: float | None
    hover: str
    error_x: float | None = None


@dataclass(frozen=True)
class Series:
    """Points of one line; a `level` is a single value drawn as a horizontal line."""

    label: str
    points: tuple[Point, ...]
    colour: int
    dash: int = 0
    level: bool = False

    @property
    def marker(self) -> int:
        """The number of its marker: equal to the colour, and another one for each further series of that colour."""
        return (self.colour + 3 * self.dash) % COLOURS


@dataclass(frozen=True)
class Chart:
    """Lines with or without marks (curves), or single points, with a band or an error bar of one deviation."""

    key: str
    title: str
    x_label: str
    y_label: str
    series: tuple[Series, ...]
    kind: Kind = "lines"
    x_ticks: tuple[tuple[float, str], ...] = ()  # empty: chosen when drawn
    log_x: bool = False
    note: str = ""
    boundaries: tuple[float, ...] = ()  # on the x axis: vertical lines where a task ends and the next one begins


@dataclass(frozen=True)
class Heatmap:
    """The accuracy matrix of a learner, mean over seeds; all heat maps of a section share one colour scale."""

    key: str
    label: str
    tasks: tuple[str, ...]
    values: tuple[tuple[float | None, ...], ...]  # row: after learning that task; column: tested task
    low: float
    high: float


def charts(section: Section) -> list[Chart]:
    """All charts of a section that have data."""
    made = (
        accuracy_after_each_task(section),
        forgetting_per_task(section),
        accuracy_at_any_time(section),
        accuracy_on_earlier_tasks(section),
        prequential_accuracy(section),
        accuracy_against_memory(section),
        accuracy_against_time(section),
        sensitivity(section),
    )
    return [chart for chart in made if chart is not None]


def accuracies_so_far(seed: SeedResult) -> list[float | None]:
    """After each task, the mean accuracy over the tasks so far; None if one was not tested."""
    return [metrics.mean(row[: at + 1]) for at, row in enumerate(seed.matrix)]


def forgotten(seed: SeedResult) -> list[float | None]:
    """For each task except the last: its best accuracy before the end minus its accuracy at the end."""
    return metrics.drops(seed.matrix)


def mean_curve(row: ResultRow, curve: Callable[[SeedResult], list[float | None]]) -> list[Summary | None]:
    """A curve per seed, summarised over the seeds point by point."""
    return [summarise(values) for values in zip(*(curve(seed) for seed in row.seeds), strict=True)]


def accuracy_after_each_task(section: Section) -> Chart | None:
    """Mean accuracy over the tasks so far; a learner tested only at the end is a level."""
    if len(section.tasks) < 2:
        return None
    last = len(section.tasks) - 1
    drawn = []
    for row in main_rows(section):
        curve = mean_curve(row, accuracies_so_far)
        only_the_end = curve[last] is not None and all(summary is None for summary in curve[:last])
        drawn.append((row, _points(curve, row.label), only_the_end))
    ticks = _task_ticks(last + 1)
    return _chart("accuracy", "Accuracy after each task", "tasks learnt", "accuracy on them, %", drawn, ticks)


def forgetting_per_task(section: Section) -> Chart | None:
    """Forgetting per task at the end."""
    drawn = [(row, _points(mean_curve(row, forgotten), row.label), False) for row in main_rows(section)]
    ticks = _task_ticks(len(section.tasks) - 1)
    return _chart("forgetting", "Forgetting per task", "task", "forgotten at the end, points", drawn, ticks)


def accuracy_at_any_time(section: Section) -> Chart | None:
    """Mean accuracy over the tasks begun so far, over steps; its mean is AAA."""

    def curve(seed: SeedResult) -> dict[int, float]:
        return {step: statistics.fmean(row) for step, row in seed.evaluations}

    title, label = "Accuracy at any time", "accuracy on tasks begun, %"
    return _over_steps("anytime", title, label, section, curve, "The mean of a curve is AAA.")


def accuracy_on_earlier_tasks(section: Section) -> Chart | None:
    """Mean accuracy over the tasks that had ended before the open one, over steps; its drops are the stability gap."""

    def curve(seed: SeedResult) -> dict[int, float]:
        ends = task_ends(seed)
        ended = {step: row[: len(row) - (step not in ends)] for step, row in seed.evaluations if ends}
        return {step: statistics.fmean(row) for step, row in ended.items() if row}

    title, label = "Accuracy on earlier tasks", "earlier tasks' accuracy, %"
    note = "A drop after a boundary, and the recovery from it, is the stability gap."
    return _over_steps("earlier", title, label, section, curve, note)


def prequential_accuracy(section: Section) -> Chart | None:
    """Prequential accuracy in a sliding window, over steps."""

    def curve(seed: SeedResult) -> dict[int, float]:
        return {step: recent for step, _, recent in metrics.prequential_curve(seed.predictions)}

    title, label = "Prequential accuracy", "accuracy before learning, %"
    note = f"Of the samples of the last {metrics.WINDOW} steps, each predicted before it was learnt."
    return _over_steps("prequential", title, label, section, curve, note)


def task_ends(seed: SeedResult) -> list[int]:
    """Steps after which tasks ended and others began, as evaluations tell; empty for joint training."""
    last = {len(row): step for step, row in seed.evaluations}
    return [last[count] for count in sorted(last)][:-1]


def _over_steps(
    key: str,
    title: str,
    y_label: str,
    section: Section,
    curve: Callable[[SeedResult], dict[int, float]],
    note: str,
) -> Chart | None:
    """Curves over steps, at the steps that all seeds of a row have; every series has a dash of its own."""
    drawn = []
    for row in main_rows(section):
        curves = [curve(seed) for seed in row.seeds]
        steps = sorted(set.intersection(*(set(one) for one in curves)))
        summaries = [(step, summarise([one[step] for one in curves])) for step in steps]
        points = tuple(_point(step, s, f"{row.label}, step {step}") for step, s in summaries if s)
        drawn.append((row, points, False))
    ends = {tuple(task_ends(seed)) for row in main_rows(section) for seed in row.seeds if task_ends(seed)}
    chart = _chart(key, title, "steps", y_label, drawn, (), kind="curves", note=note)
    if chart is None:
        return None
    series = tuple(replace(one, dash=_DENSE[at % len(_DENSE)]) for at, one in enumerate(chart.series))
    if len(ends) != 1:  # none are known, or rows differ in them
        return replace(chart, series=series)
    note += " Vertical lines are task boundaries."
    return replace(chart, series=series, note=note, boundaries=tuple(map(float, ends.pop())))


def accuracy_against_memory(section: Section) -> Chart | None:
    """ACC over memory slots per task, for learners run with several sizes; joint training as a level."""
    found = memory_rows(section)
    drawn: list[tuple[ResultRow, tuple[Point, ...], bool]] = []
    for learner, rows in found.items():
        label = printable(shown(learner))
        summaries = [(size, row.summary("acc")) for size, row in rows.items()]
        points = tuple(_point(size, s, f"{label}, {size} slots") for size, s in summaries if s)
        drawn.append((replace(next(iter(rows.values())), label=label), points, False))
    joint = next(filter(None, map(section.find, JOINT_TRAINING)), None)
    sizes = sorted({size for rows in found.values() for size in rows})
    bound = joint.summary("acc") if joint else None
    if drawn and joint and bound:
        drawn.append((joint, (_point(sizes[0], bound, joint.label),), True))
    ticks = tuple((float(size), str(size)) for size in sizes)
    return _chart("memory", "Accuracy against memory", "memory slots per task", "ACC, %", drawn, ticks)


def accuracy_against_time(section: Section) -> Chart | None:
    """ACC over training seconds per seed on one device: of runs that ran alone if there are several, else of others."""
    timed = [(row, row.summary("acc"), row.summary("seconds_train")) for row in main_rows(section)]
    usable = [(row, acc, time) for row, acc, time in timed if acc and time and time.mean > 0]
    places = {(row.is_timed_alone, *row.timing_devices) for row, _, _ in usable}
    counts = {place: sum((r.is_timed_alone, *r.timing_devices) == place for r, _, _ in usable) for place in places}
    enough = sorted((p for p in places if counts[p] > 1), key=lambda place: (place[0], counts[place], place))
    if not enough:
        return None
    alone, device = enough[-1]
    drawn = []
    for row, acc, time in usable:
        if (row.is_timed_alone, *row.timing_devices) == (alone, device):
            hover = f"{row.label}: ACC {mean_text(acc)}, {mean_text(time)} s"
            drawn.append((row, (Point(time.mean, acc.mean, acc.deviation, hover, time.deviation),), False))
    times = [points[0].x for _, points, _ in drawn]
    how = "one run at a time with nothing beside it" if alone else "where other runs may have run at the same time"
    left_out = len(usable) > len(drawn)
    others = " Runs that were timed otherwise, or on other devices, are left out." if left_out else ""
    return _chart(
        "time",
        "Accuracy against time",
        "training, seconds per seed" + ("" if alone else ", beside other runs"),
        "ACC, %",
        drawn,
        (),
        kind="points",
        log_x=max(times) > 10 * min(times),
        note=f"Training seconds per seed on {device}, {how}.{others}",
    )


def sensitivity(section: Section) -> Chart | None:
    """ACC of SCALE over lambda3, one line per lambda1 = lambda2, with the paper's."""
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
    """The mean accuracy matrix of every learner that was tested after each task."""
    if len(section.tasks) < 2:
        return []
    tasks = range(len(section.tasks))
    means = [
        (row, tuple(tuple(metrics.mean(s.matrix[i][j] for s in row.seeds) for j in tasks) for i in tasks))
        for row in main_rows(section)
    ]
    means = [(row, matrix) for row, matrix in means if any(v is not None for line in matrix[:-1] for v in line)]
    known = [value for _, matrix in means for line in matrix for value in line if value is not None]
    named = [(f"matrix-{row.label}", row.label, section.tasks, matrix) for row, matrix in means]
    return [Heatmap(*one, min(known), max(known)) for one in named]


def colour_of(learner: str) -> int:
    """The colour of a learner, equal in every figure; one derived from its name if `paper` does not list it."""
    return paper.COLOURS.get(learner, sum(learner.encode()) % COLOURS)


def log_ticks(low: float, high: float) -> list[float]:
    """The numbers 1, 2 and 5 times powers of ten between `low` and `high`."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    return [m * 10.0**power for power in powers for m in (1, 2, 5) if low <= m * 10.0**power <= high]


def _chart(
    key: str,
    title: str,
    x_label: str,
    y_label: str,
    drawn: Sequence[tuple[ResultRow, tuple[Point, ...], bool]],
    x_ticks: tuple[tuple[float, str], ...],
    *,
    kind: Kind = "lines",
    log_x: bool = False,
    note: str = "",
) -> Chart | None:
    """The chart of these rows; rows of one colour get different dashes. None if there is no point."""
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


def _point(x: float, summary: Summary | paper.PrintedValue, what: str) -> Point:
    return Point(float(x), summary.mean, summary.deviation, f"{what}: {mean_text(summary)}")


def _task_ticks(count: int) -> tuple[tuple[float, str], ...]:
    step = 1 if count <= 10 else 2 if count <= 20 else max(1, count // 10)
    return tuple((float(task), str(task)) for task in range(1, count + 1) if (task - 1) % step == 0)


def cell_text(heatmap: Heatmap, after: int, task: int) -> str:
    """The hover text of one cell of a heat map."""
    value = heatmap.values[after][task]
    shown = "not tested" if value is None else f"{number(value)} %"
    return f"{heatmap.label}, after {heatmap.tasks[after]}, on {heatmap.tasks[task]}: {shown}"
