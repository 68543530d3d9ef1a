"""What names a task, alone or row by row: a string, a number or another hashable scalar."""

from __future__ import annotations

import datetime
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from scale_cl import ContinualClassifier
from scale_cl.errors import InputError
from tests.estimator.problems import blobs

X, Y = blobs(("a", "b"), n=12)
DAY, OTHER = datetime.date(2024, 5, 1), datetime.date(2024, 5, 2)
ONE_LINE = r"^a task is [^\n]*; name it by a string, a number or a hashable scalar$"


def model() -> ContinualClassifier:
    return ContinualClassifier("finetune", backbone="mlp-4", epochs=1)


@pytest.mark.parametrize(
    ("first", "second", "column"),
    [
        ("x", "y", list),
        ("x", "y", np.array),
        ("x", "y", pd.Series),
        ("x", "y", pd.Categorical),
        (1, 2, list),
        (1, 2, torch.tensor),
        (1, 2, np.array),
        (1.5, 2.5, pd.Series),
        (0.1, 0.2, lambda names: np.array(names, dtype=np.float32)),
        (1, "1b", list),
        (DAY, OTHER, pd.Series),
        (pd.Timestamp("2024-05-01"), pd.Timestamp("2024-05-02"), pd.Series),
    ],
)
def test_a_column_names_the_task_of_each_row_as_the_name_alone_does(first: Any, second: Any, column: Any) -> None:
    rows = column([first, second] * 6)
    names = [str(first), str(second)]
    together = model().partial_fit(X, Y, task=rows)
    assert together.tasks_ == model().fit(X, Y, task=rows).tasks_ == names
    apart = model().partial_fit(X[::2], Y[::2], task=first).partial_fit(X[1::2], Y[1::2], task=second)
    assert apart.tasks_ == names
    np.testing.assert_array_equal(together.predict_proba(X, task=rows), apart.predict_proba(X, task=rows))
    assert together.task_classes(first).tolist() == ["a"]


def test_a_name_may_be_a_scalar_of_any_library() -> None:
    given = model()
    for scalar, name in ((np.int64(7), "7"), (torch.tensor(8), "8"), (np.array("nine"), "nine"), (True, "True")):
        assert given.partial_fit(X, Y, task=scalar).tasks_[-1] == name
        assert len(given.predict(X, task=scalar)) == 12


@pytest.mark.parametrize("task", [{"a": 1}, {"a"}, frozenset("ab"), object(), len, iter("ab"), np.random])
def test_what_is_no_name_is_refused_in_one_line(task: Any) -> None:
    with pytest.raises(InputError, match=ONE_LINE):
        model().partial_fit(X, Y, task=task)
    with pytest.raises(InputError, match=ONE_LINE):
        model().fit(X, Y, task=[task] * 12)
    with pytest.raises(InputError, match=ONE_LINE):
        model().partial_fit(X, Y, task="x").predict(X, task=task)


@pytest.mark.parametrize("missing", [None, float("nan"), pd.NA, pd.NaT])
def test_a_row_without_a_task_is_named(missing: Any) -> None:
    with pytest.raises(InputError, match=r"^a task is \S+, which is no name; name every task by a string or a number$"):
        model().partial_fit(X, Y, task=pd.Series(["x"] * 11 + [missing], dtype=object))


@pytest.mark.parametrize(
    ("task", "message"),
    [
        (["x"] * 11, r"task has shape \[11\]; give one name, or one for each of 12 samples"),
        ([["x"]] * 12, r"task has shape \[12, 1\]; give one name"),
        ([["x"], ["x", "y"]] * 6, "task is a list of lists; give one name"),
        ("infer", "a task cannot be called 'infer'"),
        (["auto"] * 12, "a task cannot be called 'auto'"),
    ],
)
def test_a_column_that_does_not_fit_is_refused(task: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        model().partial_fit(X, Y, task=task)


def test_the_batches_of_a_loader_are_of_one_task() -> None:
    pairs = TensorDataset(torch.from_numpy(X), torch.arange(12) % 2)
    loader, rows = DataLoader(pairs, batch_size=4), ["x"] * 4
    fitted = model().partial_fit(loader, task="x")
    for call in (fitted.partial_fit, fitted.fit, fitted.predict, fitted.score):
        with pytest.raises(InputError, match="X is a loader, so its batches are of one task: give one name"):
            call(loader, task=rows)
