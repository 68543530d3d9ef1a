"""Estimators that find tasks themselves: partial_fit(X, y, task="auto")."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits

from scale_cl import ContinualClassifier
from scale_cl.errors import ConfigError, InputError, UnknownTaskError

X, Y = load_digits(return_X_y=True)
PAIRS = [(0, 1), (2, 3), (0, 1)]


def pair(labels: tuple[int, int]) -> np.ndarray:
    """The rows of two digits."""
    return np.flatnonzero(np.isin(Y, labels))


@pytest.mark.parametrize("learner", ["er", "gem"])
def test_a_task_that_returns_is_recalled(learner: str) -> None:
    model = ContinualClassifier(learner)
    for labels in PAIRS:
        model.partial_fit(X[pair(labels)], Y[pair(labels)].astype(str), task="auto")
    assert model.tasks_ == ["found-1", "found-2"]
    assert [(b.task, b.new) for b in model.finder_.found] == [("found-2", True), ("found-1", False)]
    assert model.task_classes("found-2").tolist() == ["2", "3"]
    rows = np.flatnonzero(Y < 4)
    assert model.score(X[rows], Y[rows].astype(str), task="infer") > 0.85


@pytest.mark.parametrize("learner", ["er", "scale"])
def test_classes_of_one_head_are_found_in_turn(learner: str) -> None:
    model = ContinualClassifier(learner, scenario="class")
    for labels in PAIRS:
        model.partial_fit(X[pair(labels)], Y[pair(labels)], task="auto")
    assert model.tasks_[:2] == ["found-1", "found-2"]
    rows = np.flatnonzero(Y < 4)
    assert model.score(X[rows], Y[rows], task="infer") > 0.85


def test_saved_and_copied_it_goes_on_as_the_original(tmp_path: Path) -> None:
    model = ContinualClassifier("er", scenario="domain", detection={"detector": "kswin"})
    other = np.random.default_rng(0).permutation(64)
    model.partial_fit(X[:800], Y[:800], task="auto").partial_fit(X[:30][:, other], Y[:30], task="auto")
    model.save(tmp_path / "model")
    models = [model, copy.deepcopy(model), ContinualClassifier.load(tmp_path / "model")]
    for one in models:
        one.partial_fit(X[30:300][:, other], Y[30:300], task="auto")
    assert model.finder_.found
    for one in models[1:]:
        assert one.finder_.found == model.finder_.found
        assert one.predict_proba(X[:50], task="infer").tolist() == model.predict_proba(X[:50], task="infer").tolist()


def test_a_task_that_is_refused_is_no_boundary() -> None:
    model = ContinualClassifier("pnn", scenario="class", max_tasks=1)
    model.partial_fit(X[pair((0, 1))], Y[pair((0, 1))], task="auto")
    with pytest.raises(ConfigError, match=r"task 'found-2' would be number 2, .* bounded to 1"):
        model.partial_fit(X[pair((2, 3))], Y[pair((2, 3))], task="auto")
    assert (model.finder_.found, model.tasks_) == ([], ["found-1"])
    model.partial_fit(X[pair((0, 1))][:20], Y[pair((0, 1))][:20], task="auto")


def test_named_and_found_tasks_do_not_mix() -> None:
    model = ContinualClassifier("er").partial_fit(X[:40], Y[:40], task="auto")
    with pytest.raises(InputError, match="either named or found"):
        model.partial_fit(X[:40], Y[:40], task="mine")
    with pytest.raises(InputError, match="leave classes out"):
        model.partial_fit(X[:40], Y[:40], classes=[1, 2], task="auto")
    with pytest.raises(InputError, match="cannot be called 'auto'"):
        ContinualClassifier("er").fit(X[:40], Y[:40], task="auto")
    with pytest.raises(UnknownTaskError, match=r"'auto' was never seen; .*; task='infer' lets the model find out$"):
        model.predict(X[:4], task="auto")
    with pytest.raises(ConfigError, match="detection is 'kswin'; give settings by name"):
        ContinualClassifier("er", detection="kswin").partial_fit(X[:40], Y[:40], task="auto")  # type: ignore[arg-type]
    named = ContinualClassifier("er").partial_fit(X[:40], Y[:40], task="mine")
    with pytest.raises(InputError, match="either named or found"):
        named.partial_fit(X[:40], Y[:40], task="auto")
