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
    return mean(matrix[-1]) if matrix else None


def fm(matrix: Matrix) -> float | None:
    """FM: mean drop, over all tasks but the last, from the best accuracy before the end to that at the end."""
    return mean(drops(matrix))


def la(matrix: Matrix) -> float | None:
    """LA: mean accuracy on each task right after learning it, the mean of the diagonal."""
    return mean(row[task] for task, row in enumerate(matrix))


def bwt(matrix: Matrix) -> float | None:
    """BWT: mean change, over all tasks but the last, from right after learning a task to the end."""
    return mean(_difference(matrix[-1][task], matrix[task][task]) for task in range(len(matrix) - 1))


def mean_and_deviation(values: Sequence[float | None]) -> tuple[float | None, float | None]:
    """Mean and sample standard deviation (n - 1); the deviation of a single value is None."""
    known = [v for v in values if v is not None]
    return mean(values), statistics.stdev(known) if 1 < len(known) == len(values) else None


def drops(matrix: Matrix) -> list[float | None]:
    """For each task but the last: its best accuracy before the end minus its accuracy at the end."""
    found: list[float | None] = []
    for task in range(len(matrix) - 1):
        before = [row[task] for row in matrix[task:-1]]
        known = [a for a in before if a is not None]
        found.append(_difference(max(known), matrix[-1][task]) if len(known) == len(before) else None)
    return found


def _difference(minuend: float | None, subtrahend: float | None) -> float | None:
    return None if minuend is None or subtrahend is None else minuend - subtrahend


def mean(values: Iterable[float | None]) -> float | None:
    """The mean; None if there is no value, or if one is None."""
    found = list(values)
    known = [value for value in found if value is not None]
    return statistics.fmean(known) if known and len(known) == len(found) else None


def boundary_scores(found: Sequence[int], true: Sequence[int], within: int = 10) -> tuple[float | None, float | None]:
    """Recall and precision of boundaries by their steps; one counts as found in the first `within` batches of a task.

    None where there is nothing to find, or nothing was found.
    """
    right = sum(any(0 <= step - start < within for step in found) for start in true)
    return right / len(true) if true else None, right / len(found) if found else None
