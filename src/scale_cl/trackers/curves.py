"""What a tracker receives of a training run: named curves, measures so far, pictures of the matrix, the result."""

from __future__ import annotations

import io
import math
import statistics
import time
from collections.abc import Mapping, Sequence

from scale_cl import metrics
from scale_cl.metrics import Evaluation
from scale_cl.results import ANYTIME_MEASURES, MEASURES
from scale_cl.trackers.backend import Backend
from scale_cl.training.events import (
    AnytimeEvaluated,
    Evaluated,
    Event,
    Finished,
    Losses,
    PrequentialCounted,
    Restored,
    Started,
    TaskStarted,
)

_BETWEEN_PICTURES = 30.0  # seconds at least: drawing a picture takes longer than a quick task
_NUMBERED = 12  # up to this many tasks, every cell of the picture shows its number


class Curves:
    """A listener that fills one backend.

    Over steps: `loss/TERM`; `anytime/task-NN` and `anytime/mean` of evaluations within tasks; `prequential/all` and
    `prequential/window` of predictions before learning. Over tasks learned: `accuracy/task-NN`, and `so_far/MEASURE` of
    the tasks learned so far. At the end: `result/MEASURE`; with several seeds also their mean and
    `result/MEASURE_deviation`.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._what = ""
        self._seeds: list[int] = []
        self._tasks = 0
        self._names: dict[int, str] = {}
        self._matrices: dict[int, list[list[float | None]]] = {}
        self._evaluations: dict[int, list[Evaluation]] = {}
        self._prequential: dict[int, float] = {}  # over all samples so far
        self._drawn: dict[int, float] = {}

    def __call__(self, event: Event) -> None:
        """Pass one event on to the backend."""
        match event:
            case Started():
                self._start(event)
            case TaskStarted(task=task, name=name):
                self._names[task] = name
            case Losses(seed=seed, step=step, terms=terms):
                self._backend.scalars(seed, "step", step, {f"loss/{name}": value for name, value in terms.items()})
            case Restored(seed=seed, steps=steps, matrix=matrix, evaluations=evaluations, prequential=prequential):
                self._matrices[seed] = [list(row) for row in matrix]
                self._evaluations[seed] = list(evaluations)
                self._prequential |= {} if prequential is None else {seed: prequential}
                self._backend.restored(seed, steps)
            case AnytimeEvaluated(seed=seed, step=step, accuracies=row):
                self._evaluations[seed].append(Evaluation(step, row))
                points = {f"anytime/{name}": value for name, value in self._by_task(row).items()}
                self._backend.scalars(seed, "step", step, {**points, "anytime/mean": statistics.fmean(row)})
            case PrequentialCounted(seed=seed, step=step, accuracy=accuracy, recent=recent):
                self._prequential[seed] = accuracy
                points = {"prequential/all": accuracy, "prequential/window": recent}
                self._backend.scalars(seed, "step", step, points)
            case Evaluated(seed=seed, task=task, accuracies=accuracies):
                self._evaluated(seed, task, accuracies)
            case Finished():
                self._finish()

    def _start(self, event: Started) -> None:
        self._what, self._seeds, self._tasks = f"{event.learner} on {event.stream}", list(event.seeds), event.tasks
        self._names = {}
        self._matrices = {seed: [[None] * event.tasks for _ in range(event.tasks)] for seed in event.seeds}
        self._evaluations, self._prequential = {seed: [] for seed in event.seeds}, {}
        self._drawn = dict.fromkeys(event.seeds, time.monotonic())
        self._backend.open(self._seeds)

    def _evaluated(self, seed: int, task: int, accuracies: Sequence[float | None]) -> None:
        """A point per tested task, the measures of the tasks so far, and now and then the matrix."""
        matrix, learned = self._matrices[seed], task + 1
        matrix[task][:learned] = accuracies
        points = {f"accuracy/{name}": value for name, value in self._by_task(accuracies).items()}
        so_far = [row[:learned] for row in matrix[:learned]]
        points |= {f"so_far/{name}": value for name, value in _measures(so_far).items()}
        self._backend.scalars(seed, "task", learned, points)
        if learned == self._tasks or time.monotonic() - self._drawn[seed] >= _BETWEEN_PICTURES:
            self._drawn[seed] = time.monotonic()
            self._backend.picture(seed, matrix_png(matrix, f"{self._what}, seed {seed}"), learned)

    def _by_task(self, accuracies: Sequence[float | None]) -> dict[str, float]:
        """Accuracies by the names of their curves, `task-07`, as far as tasks were tested."""
        digits = len(str(self._tasks))
        numbered = enumerate(accuracies, start=1)
        return {f"task-{number:0{digits}}": value for number, value in numbered if value is not None}

    def _final(self, seed: int) -> dict[str, float | None]:
        """All measures of a seed; those of evaluations within tasks and before learning only if there are any."""
        found = {name: _measure(self._matrices[seed], name) for name in MEASURES}
        if self._evaluations[seed]:
            found |= {name: getattr(metrics, name)(self._evaluations[seed]) for name in ANYTIME_MEASURES}
        return found | ({"prequential_acc": self._prequential[seed]} if seed in self._prequential else {})

    def _finish(self) -> None:
        """The result of every seed, and their mean."""
        finals = [self._final(seed) for seed in self._seeds]
        for seed, final in zip(self._seeds, finals, strict=True):
            self._backend.result(seed, _named({name: value for name, value in final.items() if value is not None}))
        together = {measure: [final.get(measure) for final in finals] for measure in finals[0]}
        if len(self._seeds) > 1:
            summary = {measure: metrics.mean_and_deviation(values) for measure, values in together.items()}
            means = {measure: mean for measure, (mean, _) in summary.items() if mean is not None}
            means |= {f"{name}_deviation": spread for name, (_, spread) in summary.items() if spread is not None}
            self._backend.result(None, _named(means))
            title = f"{self._what}, mean of {len(self._seeds)} seeds"
            rows = zip(*self._matrices.values(), strict=True)
            means_of = [[metrics.mean(cell) for cell in zip(*row, strict=True)] for row in rows]
            self._backend.picture(None, matrix_png(means_of, title), self._tasks)
        names = [self._names.get(task, str(task + 1)) for task in range(self._tasks)]
        matrices = [self._matrices[seed] for seed in self._seeds]
        content = {"run": self._what, "seeds": self._seeds, **together, "tasks": names, "matrix": matrices}
        self._backend.document(content)


def _measure(matrix: metrics.Matrix, name: str) -> float | None:
    value: float | None = getattr(metrics, name)(matrix)
    return value


def _measures(matrix: metrics.Matrix) -> dict[str, float]:
    """The measures that are defined."""
    return {name: value for name in MEASURES if (value := _measure(matrix, name)) is not None}


def _named(measures: Mapping[str, float]) -> dict[str, float]:
    return {f"result/{name}": value for name, value in measures.items()}


def matrix_png(matrix: Sequence[Sequence[float | None]], title: str) -> bytes:
    """The accuracy matrix [T][T] as PNG: row = after learning that task, column = tested task, None stays empty."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    count = len(matrix)
    values = [[math.nan if v is None else v for v in row] for row in matrix]
    figure = Figure(figsize=(6.4, 5.2), dpi=100, layout="constrained")
    axes = figure.subplots()
    image = axes.imshow(values, cmap="viridis", vmin=0, vmax=100)
    figure.colorbar(image, ax=axes, label="accuracy, %")
    places = range(0, count, 1 if count <= 20 else -(-count // 20))
    axes.set_xticks(places, [str(at + 1) for at in places])
    axes.set_yticks(places, [str(at + 1) for at in places])
    axes.set_xlabel("tested on task")
    axes.set_ylabel("after learning task")
    axes.set_title(title.encode("ascii", "replace").decode(), parse_math=False)  # the font may have no other letters
    if count <= _NUMBERED:
        for i, row in enumerate(matrix):
            for j, value in enumerate(row):
                if value is not None:
                    colour = "black" if value > 55 else "white"  # the upper end of the colours is light
                    axes.text(j, i, f"{value:.1f}", ha="center", va="center", color=colour, fontsize=9)
    buffer = io.BytesIO()
    FigureCanvasAgg(figure).print_figure(buffer, format="png")
    return buffer.getvalue()
