"""Metrics against matrices worked by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scale_cl import metrics
from scale_cl.metrics import Evaluation, Predictions

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


# ---- at any time -----------------------------------------------------------------------------------------------------
# Task 1 rises to 90. In task 2 it falls to 40 and recovers to 80; in task 3 to 50, then 70. Task 2 reaches 60, falls to
# 50 and ends at 66. Task 3 ends at 80.
EVALUATIONS = [
    Evaluation(5, (70.0,)),
    Evaluation(10, (90.0,)),
    Evaluation(15, (40.0, 50.0)),
    Evaluation(20, (80.0, 60.0)),
    Evaluation(25, (60.0, 50.0, 40.0)),
    Evaluation(28, (50.0, 62.0, 68.0)),
    Evaluation(30, (70.0, 66.0, 80.0)),
]


def test_aaa_is_the_mean_over_evaluations_of_the_mean_over_tasks_begun() -> None:
    assert metrics.aaa(EVALUATIONS) == pytest.approx((70 + 90 + 45 + 70 + 50 + 60 + 72) / 7)


def test_min_acc_is_the_mean_of_the_lowest_accuracies_since_the_next_task_began() -> None:
    assert metrics.min_acc(EVALUATIONS) == pytest.approx((40 + 50) / 2)


def test_wc_acc_weighs_the_last_task_as_it_is_and_the_others_at_their_lowest() -> None:
    assert metrics.wc_acc(EVALUATIONS) == pytest.approx((80 + 40 + 50) / 3)


def test_the_stability_gap_is_the_mean_drop_of_the_earlier_tasks_within_a_task() -> None:
    # In task 2 from 90 to 40; in task 3 the mean of the two falls from 70 to 55.
    assert metrics.stability_gap(EVALUATIONS) == pytest.approx((50 + 15) / 2)
    rising = [Evaluation(1, (50.0,)), Evaluation(2, (60.0, 50.0))]
    assert metrics.stability_gap(rising) == -10.0


def test_one_task_has_a_worst_case_and_nothing_that_could_drop() -> None:
    one = EVALUATIONS[:2]
    assert (metrics.aaa(one), metrics.wc_acc(one)) == (80.0, 90.0)
    assert (metrics.min_acc(one), metrics.stability_gap(one)) == (None, None)


def test_without_evaluations_or_with_all_tasks_at_once_only_what_is_defined_has_a_value() -> None:
    measures = metrics.aaa, metrics.wc_acc, metrics.min_acc, metrics.stability_gap
    assert [measure([]) for measure in measures] == [None] * 4
    joint = [Evaluation(5, (40.0, 60.0)), Evaluation(10, (70.0, 80.0))]
    assert [measure(joint) for measure in measures] == [62.5, None, None, None]


def test_prequential_accuracy_is_over_all_samples_and_over_a_window_that_slides() -> None:
    counts = [Predictions(10, 100, 20), Predictions(20, 100, 40), Predictions(30, 100, 90), Predictions(34, 40, 10)]
    assert metrics.prequential(counts) == pytest.approx(100 * 160 / 340)
    curve = metrics.prequential_curve(counts, window=20)
    assert [step for step, _, _ in curve] == [10, 20, 30, 34]
    assert [so_far for _, so_far, _ in curve] == pytest.approx([20, 30, 50, 100 * 160 / 340])
    assert [recent for _, _, recent in curve] == pytest.approx([20, 30, 65, 100 * 100 / 140])
    assert metrics.prequential_curve([Predictions(200, 50, 5)], window=20) == [(200, 10.0, 10.0)]
    assert metrics.prequential([]) is None
