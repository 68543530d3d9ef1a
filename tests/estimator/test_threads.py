"""Estimators in programs with threads and processes: predictions during training, copies, forks, torch's threads."""

from __future__ import annotations

import copy
import os
import pickle
import threading
from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from sklearn.exceptions import NotFittedError
from torch import Tensor

from scale_cl import ContinualClassifier
from scale_cl.errors import ConfigError
from scale_cl.learners import Finetune, StepStats
from tests.engine.test_turns import beside, forked
from tests.estimator.problems import blobs, pictures

X, Y = blobs(("cat", "dog"), n=40)


@pytest.fixture(autouse=True)
def two_threads() -> Iterator[None]:
    """As on a machine with two cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def in_new_thread() -> int:
    """The number of threads that torch uses for a thread that has not used it yet."""
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    return found[0]


class Counting(Finetune):
    """Fine-tuning that notes how many threads it computes with."""

    seen: ClassVar[list[tuple[int, int]]] = []

    def observe(self, x: Tensor, y: Tensor, task: Tensor | None = None) -> StepStats:
        Counting.seen.append((torch.get_num_threads(), in_new_thread()))
        return super().observe(x, y, task)


def learnt(*beside_it: str) -> tuple[dict[str, Tensor], list[Any]]:
    """Train a network with batch norm and a weight average, while other threads do what is named; its state, theirs."""
    x, y = pictures(n=20)
    model = ContinualClassifier("er", weight_average=0.9, norm_on_memory=True).partial_fit(x, y, task="one")
    does = {
        "predicts": lambda: [model.predict_proba(x[:4], task=task) for task in ("one", "infer")][-1],
        "copies": lambda: pickle.loads(pickle.dumps(copy.deepcopy(model))).predict_proba(x[:4], task="one"),
    }
    with beside(*(does[name] for name in beside_it)) as found:
        model.partial_fit(x[::-1], np.where(y == "above", "high", "low"), task="two")  # other classes
        model.partial_fit(x, np.where(np.arange(20) < 5, "new", y), task="one")  # one more class of the first task
    return model.learner_.state_dict()["tensors"], found


def test_predictions_and_copies_by_other_threads_leave_training_as_it_is_to_the_bit() -> None:
    expected, _ = learnt()
    tensors, found = learnt("predicts", "copies")
    assert [name for name, value in expected.items() if not torch.equal(tensors[name], value)] == []
    assert len(found) > 2
    for answer in found:
        np.testing.assert_allclose(np.asarray(answer).sum(1), 1, rtol=1e-5)


def test_a_state_stays_what_it_was_while_training_goes_on() -> None:
    x, y = blobs(("cat", "dog"), n=20)
    model = ContinualClassifier("er", scenario="task").partial_fit(x, y, task="one")
    expected, state = model.predict_proba(x, task="one"), model.__getstate__()
    model.partial_fit(x, np.where(np.arange(len(x)) < 5, "eel", y), task="one")
    copied = ContinualClassifier("er", scenario="task")
    copied.__setstate__(state)
    np.testing.assert_array_equal(copied.predict_proba(x, task="one"), expected)


def test_predictions_while_fit_begins_anew_are_of_one_model_or_refused() -> None:
    model = ContinualClassifier("er", epochs=2).fit(X, Y)

    def asked() -> Any:
        try:
            return model.predict_proba(X[:2]).shape
        except NotFittedError:
            return None

    with beside(asked) as found:
        for names in (("cat", "dog", "eel"), ("cat", "dog")):
            model.fit(X, np.resize(names, len(X)))
    assert set(found) <= {None, (2, 2), (2, 3)}


def test_one_thread_computes_unless_told_and_the_program_keeps_its_own_number() -> None:
    x, y = blobs(("cat", "dog"), n=20)
    for given, expected in ((1, 1), (3, 3), (2, 2)):
        Counting.seen.clear()
        model = ContinualClassifier(Counting, epochs=1, threads=given).fit(x, y).partial_fit(x, y)
        assert Counting.seen == [(expected, 2)] * 4, "others are not concerned"
        model.predict(x)
        assert (torch.get_num_threads(), in_new_thread()) == (2, 2)
    with pytest.raises(ConfigError, match="lr: -1"):
        ContinualClassifier("finetune", lr=-1).fit(x, y)
    assert (torch.get_num_threads(), in_new_thread()) == (2, 2)


def test_estimators_of_several_threads_leave_torchs_number_as_it_was() -> None:
    threads = [
        threading.Thread(target=lambda n=n: ContinualClassifier(epochs=1, threads=n).fit(X, Y)) for n in (1, 1, 3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (torch.get_num_threads(), in_new_thread()) == (2, 2)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_process_predicts_and_learns_with_one_thread() -> None:
    model = ContinualClassifier("er", epochs=1).fit(X, Y)
    large = torch.ones(600, 600)
    large.mm(large).sum()  # with two threads, which a fork does not have
    expected = model.predict_proba(X)

    def in_child() -> bool:
        same = bool((model.predict_proba(X) == expected).all())
        return same and model.partial_fit(X, Y).learner_.steps > 0 and ContinualClassifier().fit(X, Y).score(X, Y) > 0.9

    with beside(lambda: model.predict(X)):
        for _ in range(3):
            forked(in_child)
