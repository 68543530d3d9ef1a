"""Statistics over seeds, against values from tables and by hand."""

from __future__ import annotations

import math

import hypothesis
import pytest
from hypothesis import strategies as st

from scale_cl.reports.seed_statistics import holm, paired, smallest_wilcoxon, summarise


def test_mean_deviation_and_interval_of_five() -> None:
    summary = summarise([1.0, 2.0, 3.0, 4.0, 5.0])
    assert summary is not None
    assert summary.mean == 3.0
    assert summary.deviation == pytest.approx(math.sqrt(2.5))
    assert summary.half_width == pytest.approx(2.776 * math.sqrt(2.5) / math.sqrt(5), rel=1e-3)  # t(0.975, 4)
    assert summary.interval == pytest.approx((1.037, 4.963), abs=1e-3)


def test_one_value_has_no_deviation_and_no_interval() -> None:
    summary = summarise([7.0])
    assert summary is not None
    assert (summary.mean, summary.deviation, summary.half_width, summary.interval) == (7.0, None, None, None)


@pytest.mark.parametrize("values", [[], [None], [1.0, None], [1.0, math.nan], [math.inf, 1.0]])
def test_a_mean_over_what_is_left_is_never_given(values: list[float | None]) -> None:
    assert summarise(values) is None


def test_paired_tests_use_the_seeds_that_both_have() -> None:
    ours = {0: 81.0, 1: 82.0, 2: 83.5, 3: 80.0, 4: 84.0, 9: 0.0}
    theirs = {0: 80.0, 1: 80.0, 2: 80.5, 3: 79.5, 4: 80.0, 7: 99.0}
    test = paired(ours, theirs)
    assert test is not None
    assert test.difference.values == (1.0, 2.0, 3.0, 0.5, 4.0)
    t = 2.1 / (math.sqrt(2.05) / math.sqrt(5))  # by hand: 3.28 with 4 degrees of freedom
    assert t == pytest.approx(3.28, abs=0.01)
    assert test.t == pytest.approx(0.0305, abs=5e-4)
    assert test.wilcoxon == pytest.approx(0.0625) == smallest_wilcoxon(5)


def test_what_cannot_be_tested_has_no_p_value() -> None:
    assert paired({0: 1.0}, {1: 1.0}) is None
    for ours in ({0: 2.0}, {0: 2.0, 1: 3.0, 2: 4.0}):
        test = paired(ours, {0: 1.0, 1: 2.0, 2: 3.0})
        assert test is not None
        assert (test.difference.mean, test.t, test.wilcoxon) == (1.0, None, None)


def test_ties_and_zeros_among_the_differences_are_no_trouble() -> None:
    test = paired({0: 1.0, 1: 2.0, 2: 3.0, 3: 5.0}, {0: 1.0, 1: 1.0, 2: 2.0, 3: 6.0})
    assert test is not None
    assert test.t is not None
    assert test.wilcoxon is not None
    assert 0 < test.wilcoxon <= 1


def test_holm_corrects_as_in_the_textbook() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.5, None, 0.6]) == [1.0, None, 1.0]


@hypothesis.given(st.lists(st.floats(0, 1), max_size=8))
def test_a_corrected_p_value_is_never_smaller(p_values: list[float]) -> None:
    corrected = holm(p_values)
    assert all(c is not None and p <= c <= 1 for p, c in zip(p_values, corrected, strict=True))
