"""Measures of continual learning, computed from the matrix of accuracies.

`R[i][j]` is the accuracy on task j after learning task i, in percent, and None where it was not evaluated. A measure
that needs an entry that is None, or more tasks than there are, is None itself.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence

Matrix = Sequence[Sequence[float | None]]


def acc(matrix: Matrix) -> float | None:
    """ACC: mean accuracy over all tasks at the end, the mean of the last row."""
    return _mean(matrix[-1]) if matrix else None


def fm(matrix: Matrix) -> float | None:
    """FM: mean drop, over all tasks but the last, from the best accuracy before the end to that at the end."""
    return _mean(_drop(matrix, task) for task in range(len(matrix) - 1))


def la(matrix: Matrix) -> float | None:
    """LA: mean accuracy on each task right after learning it, the mean of the diagonal."""
    return _mean(row[task] for task, row in enumerate(matrix))


def bwt(matrix: Matrix) -> float | None:
    """BWT: mean change, over all tasks but the last, from right after learning a task to the end."""
    return _mean(_difference(matrix[-1][task], matrix[task][task]) for task in range(len(matrix) - 1))


def mean_and_deviation(values: Sequence[float | None]) -> tuple[float | None, float | None]:
    """Mean and sample standard deviation (n - 1); the deviation of a single value is None."""
    known = [v for v in values if v is not None]
    if not known or len(known) < len(values):
        return None, None
    return statistics.fmean(known), statistics.stdev(known) if len(known) > 1 else None


def _drop(matrix: Matrix, task: int) -> float | None:
    before_the_end = [row[task] for row in matrix[task:-1]]
    known = [a for a in before_the_end if a is not None]
    return _difference(max(known), matrix[-1][task]) if len(known) == len(before_the_end) else None


def _difference(minuend: float | None, subtrahend: float | None) -> float | None:
    return None if minuend is None or subtrahend is None else minuend - subtrahend


def _mean(values: Iterable[float | None]) -> float | None:
    known: list[float] = []
    for value in values:
        if value is None:
            return None
        known.append(value)
    return statistics.fmean(known) if known else None
