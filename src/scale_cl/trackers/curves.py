"""What a training run gives to a tracker: the names of its curves, measures so far, pictures, and the result."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from scale_cl import metrics
from scale_cl.results import MEASURES
from scale_cl.trackers.backend import Backend, Ending
from scale_cl.trackers.picture import matrix_png

_BETWEEN_PICTURES = 30.0  # seconds at least: a picture costs more than a quick task


class Curves:
    """A recorder (see `scale_cl.training.observer`) that fills one backend.

    Over steps: `loss/TERM`. Over tasks learned: `accuracy/task-NN`, and `so_far/MEASURE` of the tasks learned by then.
    At the end: `result/MEASURE`; over several seeds, the mean and `result/MEASURE_deviation`.
    """

    def __init__(self, backend: Backend, loss_every: int) -> None:
        self.loss_every = loss_every
        self._backend = backend
        self._what = ""
        self._seeds: list[int] = []
        self._tasks = 0
        self._names: dict[int, str] = {}
        self._matrices: dict[int, list[list[float | None]]] = {}
        self._drawn: dict[int, float] = {}

    def started(self, stream: str, learner: str, seeds: list[int], tasks: int, steps: int) -> None:
        """Open a place for each seed."""
        self._what, self._seeds, self._tasks = f"{learner} on {stream}", list(seeds), tasks
        self._names = {}
        self._matrices = {seed: [[None] * tasks for _ in range(tasks)] for seed in seeds}
        self._drawn = dict.fromkeys(seeds, time.monotonic())
        self._backend.open(seeds)

    def task_started(self, task: int, name: str, steps: int) -> None:
        """Keep the name."""
        self._names[task] = name

    def stepped(self, steps: int) -> None:
        """Nothing."""

    def losses(self, seed: int, step: int, terms: Mapping[str, float]) -> None:
        """A point of every term."""
        self._backend.scalars(seed, "step", step, {f"loss/{name}": value for name, value in terms.items()})

    def restored(self, seed: int, steps: int, matrix: list[list[float | None]]) -> None:
        """Take over what was reached."""
        self._matrices[seed] = matrix
        self._backend.restored(seed, steps)

    def evaluated(self, seed: int, task: int, accuracies: list[float]) -> None:
        """A point for each task tested, measures of the tasks so far, and now and then the matrix."""
        matrix, learned = self._matrices[seed], task + 1
        matrix[task][:learned] = accuracies
        digits = len(str(self._tasks))
        points = {f"accuracy/task-{number:0{digits}}": value for number, value in enumerate(accuracies, start=1)}
        so_far = [row[:learned] for row in matrix[:learned]]
        points |= {f"so_far/{name}": value for name, value in _measures(so_far).items()}
        self._backend.scalars(seed, "task", learned, points)
        if learned == self._tasks or time.monotonic() - self._drawn[seed] >= _BETWEEN_PICTURES:
            self._drawn[seed] = time.monotonic()
            self._backend.picture(seed, matrix_png(matrix, f"{self._what}, seed {seed}"), learned)

    def finished(self) -> None:
        """The result of every seed, and what they come to together."""
        for seed in self._seeds:
            self._backend.result(seed, _named(_measures(self._matrices[seed])))
        if len(self._seeds) > 1:
            together = {measure: [_measure(m, measure) for m in self._matrices.values()] for measure in MEASURES}
            summary = {measure: metrics.mean_and_deviation(values) for measure, values in together.items()}
            means = {measure: mean for measure, (mean, _) in summary.items() if mean is not None}
            means |= {f"{name}_deviation": spread for name, (_, spread) in summary.items() if spread is not None}
            self._backend.result(None, _named(means))
            title = f"{self._what}, mean of {len(self._seeds)} seeds"
            self._backend.picture(None, matrix_png(self._mean_matrix(), title), self._tasks)
        self._backend.document(self._document())

    def end(self, how: Ending) -> None:
        """The run is over, well or not."""
        self._backend.end(how)

    def _mean_matrix(self) -> list[list[float | None]]:
        places = range(self._tasks)
        cells = [[[m[i][j] for m in self._matrices.values()] for j in places] for i in places]
        return [[metrics.mean_and_deviation(values)[0] for values in row] for row in cells]

    def _document(self) -> dict[str, Any]:
        matrices = [self._matrices[seed] for seed in self._seeds]
        return {
            "run": self._what,
            "seeds": self._seeds,
            **{measure: [_measure(matrix, measure) for matrix in matrices] for measure in MEASURES},
            "tasks": [self._names.get(task, str(task + 1)) for task in range(self._tasks)],
            "matrix": matrices,
        }


def _measure(matrix: metrics.Matrix, name: str) -> float | None:
    value: float | None = getattr(metrics, name)(matrix)
    return value


def _measures(matrix: metrics.Matrix) -> dict[str, float]:
    """Those that are defined."""
    return {name: value for name in MEASURES if (value := _measure(matrix, name)) is not None}


def _named(measures: Mapping[str, float]) -> dict[str, float]:
    return {f"result/{name}": value for name, value in measures.items()}
