"""Metrics against matrices worked by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scale_cl import metrics

# After task 1: 90. After task 2: 80, 70. After task 3: 60, 75, 50.
THREE_TASKS: metrics.Matrix = [[90.0, None, None], [80.0, 70.0, None], [60.0, 75.0, 50.0]]


def test_acc_is_the_mean_of_the_last_row() -> None:
    assert metrics.acc(THREE_TASKS) == pytest.approx((60 + 75 + 50) / 3)


def test_fm_is_the_mean_drop_from_the_best_before_the_end() -> None:
    # Task 1 dropped from 90 to 60; task 2, best 70 before the end, rose to 75.
    assert metrics.fm(THREE_TASKS) == pytest.approx((30 + -5) / 2)


def test_fm_takes_the_best_and_not_the_first_accuracy() -> None:
    assert metrics.fm([[50.0, None, None], [70.0, 80.0, None], [60.0, 80.0, 90.0]]) == pytest.approx((10 + 0) / 2)


def test_la_is_the_mean_of_the_diagonal() -> None:
    assert metrics.la(THREE_TASKS) == pytest.approx((90 + 70 + 50) / 3)


def test_bwt_is_the_mean_change_since_each_task_was_learnt() -> None:
    assert metrics.bwt(THREE_TASKS) == pytest.approx((-30 + 5) / 2)


def test_one_task_has_accuracy_but_nothing_to_forget() -> None:
    assert (metrics.acc([[80.0]]), metrics.la([[80.0]])) == (80.0, 80.0)
    assert metrics.fm([[80.0]]) is None
    assert metrics.bwt([[80.0]]) is None


def test_joint_training_has_only_acc() -> None:
    joint: metrics.Matrix = [[None, None], [80.0, 60.0]]
    assert metrics.acc(joint) == 70.0
    assert (metrics.fm(joint), metrics.la(joint), metrics.bwt(joint)) == (None, None, None)


def test_a_missing_entry_makes_only_the_measures_undefined_that_need_it() -> None:
    gap: metrics.Matrix = [[90.0, None, None], [None, 70.0, None], [60.0, 75.0, 50.0]]
    assert metrics.fm(gap) is None
    assert metrics.bwt(gap) == pytest.approx((-30 + 5) / 2)
    assert metrics.acc([[90.0, None], [80.0, None]]) is None


def test_an_empty_matrix_has_no_measures() -> None:
    assert [measure([]) for measure in (metrics.acc, metrics.fm, metrics.la, metrics.bwt)] == [None] * 4


def test_the_deviation_is_that_of_a_sample() -> None:
    mean, deviation = metrics.mean_and_deviation([1.0, 2.0, 6.0])
    assert mean == 3.0
    assert deviation == pytest.approx(7**0.5)


def test_one_value_has_no_deviation_and_an_undefined_one_no_mean() -> None:
    assert metrics.mean_and_deviation([4.0]) == (4.0, None)
    assert metrics.mean_and_deviation([4.0, None]) == (None, None)
    assert metrics.mean_and_deviation([]) == (None, None)


@given(
    st.integers(2, 6).flatmap(
        lambda n: st.lists(st.lists(st.floats(0, 100), min_size=n, max_size=n), min_size=n, max_size=n)
    )
)
def test_forgetting_is_at_least_what_was_lost_since_learning(matrix: list[list[float]]) -> None:
    fm, bwt = metrics.fm(matrix), metrics.bwt(matrix)
    assert fm is not None
    assert bwt is not None
    assert fm >= -bwt - 1e-9
