"""Statistics over seeds: mean, sample deviation, 95 % confidence interval, and paired tests between learners."""

from __future__ import annotations

import math
import statistics
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

CONFIDENCE = 0.95
_ROUNDING = 1e-9  # percentage points: smaller differences are rounding errors


@dataclass(frozen=True)
class Summary:
    """One value per seed, and their mean, deviation and confidence interval."""

    values: tuple[float, ...]
    mean: float
    deviation: float | None  # of the sample, n - 1; None for one value
    half_width: float | None  # of the confidence interval of the mean, by Student's t

    @property
    def interval(self) -> tuple[float, float] | None:
        """The confidence interval of the mean."""
        return None if self.half_width is None else (self.mean - self.half_width, self.mean + self.half_width)


@dataclass(frozen=True)
class PairedTest:
    """One learner against another on their common seeds: the difference and p values."""

    difference: Summary
    t: float | None  # p value, two-sided; None if the test is not defined
    wilcoxon: float | None


def summarise(values: Sequence[float | None]) -> Summary | None:
    """Mean and spread; None if a value is missing (the mean of the others would not be comparable)."""
    known = tuple(value for value in values if value is not None and math.isfinite(value))
    if not known or len(known) < len(values):
        return None
    mean = statistics.fmean(known)
    if len(known) == 1:
        return Summary(known, mean, None, None)
    from scipy import stats

    deviation = statistics.stdev(known)
    student = float(stats.t.ppf((1 + CONFIDENCE) / 2, len(known) - 1))
    return Summary(known, mean, deviation, student * deviation / math.sqrt(len(known)))


def paired(ours: Mapping[Any, float], theirs: Mapping[Any, float]) -> PairedTest | None:
    """Compare two learners per seed (or per class order and seed), ours minus theirs; None without a common one."""
    shared = sorted(ours.keys() & theirs.keys())
    difference = summarise([ours[seed] - theirs[seed] for seed in shared])
    if difference is None:
        return None
    if difference.deviation is None or difference.deviation < _ROUNDING:  # one seed, or equal for all seeds
        return PairedTest(difference, None, None)
    from scipy import stats

    changes = [0.0 if abs(change) < _ROUNDING else change for change in difference.values]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # ties and small samples: the report states the number of seeds
        t = float(stats.ttest_1samp(changes, 0.0).pvalue)
        wilcoxon = float(stats.wilcoxon(changes).pvalue)
    return PairedTest(difference, _probability(t), _probability(wilcoxon))


def smallest_wilcoxon(seeds: int) -> float:
    """The smallest p value that Wilcoxon's test can give with this many seeds."""
    return min(1.0, 2.0 ** (1 - seeds))


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Correct p values for multiple tests by Holm's method; None stays None and does not count."""
    order = sorted((p, at) for at, p in enumerate(p_values) if p is not None)
    corrected: list[float | None] = [None] * len(p_values)
    largest = 0.0
    for rank, (p, at) in enumerate(order):
        largest = max(largest, min(1.0, p * (len(order) - rank)))
        corrected[at] = largest
    return corrected


def _probability(p: float) -> float | None:
    return p if math.isfinite(p) else None
