"""Measures of continual learning: of the accuracy matrix, of evaluations within tasks, of predictions before learning.

`R[i][j]` is the accuracy on task j after learning task i, in percent, and None where it was not evaluated. Evaluations
within tasks are in order of their steps and include the end of every task. A measure that needs an entry that is None,
or more tasks than there are, is None itself.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from typing import NamedTuple

Matrix = Sequence[Sequence[float | None]]
WINDOW = 50  # steps of the sliding window of prequential accuracy


class Evaluation(NamedTuple):
    """Accuracies in percent after so many steps, one for each task that had begun by then, in their order."""

    step: int
    accuracies: tuple[float, ...]


class Predictions(NamedTuple):
    """How many of the samples since the last count were predicted correctly before they were learnt."""

    step: int  # the last one that is counted
    samples: int
    right: int


Evaluations = Sequence[Evaluation]


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


# ---- at any time -----------------------------------------------------------------------------------------------------
def aaa(evaluations: Evaluations) -> float | None:
    """AAA: average anytime accuracy, the mean over all evaluations of the mean accuracy over the tasks begun by then.

    Caccia et al., "New insights on reducing abrupt representation change in online continual learning", ICLR 2022.
    """
    return mean(mean(accuracies) for _, accuracies in evaluations)


def min_acc(evaluations: Evaluations) -> float | None:
    """min-ACC: mean, over all tasks but the last, of a task's lowest accuracy since the next task began.

    De Lange et al., "Continual evaluation for lifelong learning: identifying the stability gap", ICLR 2023.
    """
    if not _one_after_another(evaluations):
        return None
    last = len(evaluations[-1].accuracies) - 1
    return mean(min(row[task] for _, row in evaluations if len(row) > task + 1) for task in range(last))


def wc_acc(evaluations: Evaluations) -> float | None:
    """WC-ACC: worst-case accuracy at the end of T tasks: (accuracy on the last task + (T - 1) min-ACC) / T.

    A lower bound of the accuracy that a user of the model met after each task, with the last task as it is now. De
    Lange et al., ICLR 2023, as `min_acc`.
    """
    if not _one_after_another(evaluations):
        return None
    now = evaluations[-1].accuracies
    lowest = min_acc(evaluations)
    return now[-1] if lowest is None else (now[-1] + (len(now) - 1) * lowest) / len(now)


def stability_gap(evaluations: Evaluations) -> float | None:
    """Stability gap: mean, over all tasks but the first, of how far the earlier tasks drop while the task is learnt.

    The drop is the mean accuracy over the earlier tasks when the last of them ended, minus the lowest such mean at any
    evaluation of the task. De Lange et al., ICLR 2023, describe the gap and show it in curves; this number is ours. It
    contains what is recovered later and what is not: compare it with FM.
    """
    if not _one_after_another(evaluations):
        return None
    drops = []
    for earlier in range(1, len(evaluations[-1].accuracies)):
        before = [row for _, row in evaluations if len(row) == earlier][-1]
        during = [row[:earlier] for _, row in evaluations if len(row) == earlier + 1]
        drops.append(statistics.fmean(before) - min(map(statistics.fmean, during)))
    return mean(drops)


def _one_after_another(evaluations: Evaluations) -> bool:
    """Whether tasks began one after another and each was evaluated; in joint training all begin at once."""
    counts = {len(row) for _, row in evaluations}
    return bool(counts) and counts == set(range(1, max(counts) + 1))


def prequential(predictions: Sequence[Predictions]) -> float | None:
    """Prequential accuracy: share of all samples that were predicted correctly before they were learnt, in percent.

    Test, then train: Gama, Sebastiao and Rodrigues, "On evaluating stream learning algorithms", Machine Learning 2013.
    """
    curve = prequential_curve(predictions)
    return curve[-1][1] if curve else None


def prequential_curve(predictions: Sequence[Predictions], window: int = WINDOW) -> list[tuple[int, float, float]]:
    """Per count: the step, the prequential accuracy over all samples so far, and that over the last `window` steps.

    The window begins with a count, so it may be shorter by less than one count.
    """
    curve = []
    so_far, inside, first = [0, 0], [0, 0], 0  # samples and right ones; the first count inside the window
    for at, (step, *count) in enumerate(predictions):
        so_far, inside = _sum(so_far, count), _sum(inside, count)
        while first < at and (predictions[first - 1].step if first else 0) < step - window:
            inside = _sum(inside, [-n for n in predictions[first][1:]])
            first += 1
        curve.append((step, 100 * so_far[1] / so_far[0], 100 * inside[1] / inside[0]))
    return curve


def _sum(one: list[int], other: list[int]) -> list[int]:
    return [a + b for a, b in zip(one, other, strict=True)]


# ---- means -----------------------------------------------------------------------------------------------------------
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
