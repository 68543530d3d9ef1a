"""An estimator with a learner of the user's own: a class instead of a name."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import load_iris
from torch import Tensor

from scale_cl import ContinualClassifier, ScaleClassifier
from scale_cl.errors import ConfigError
from scale_cl.export import to_torch_export
from scale_cl.learners import Er, Finetune, StepStats

X, Y = load_iris(return_X_y=True)


class Counting(Er):
    """ER that counts its steps."""

    counted = 0

    def observe(self, x: Tensor, y: Tensor, task: Tensor | None = None) -> StepStats:
        Counting.counted += 1
        return super().observe(x, y, task)


def fitted(**settings: Any) -> ContinualClassifier:
    return ContinualClassifier(Counting, epochs=2, **settings).fit(X, Y)


def test_a_class_learns_as_its_name_does() -> None:
    before = Counting.counted
    model = fitted(lr=0.02)
    assert Counting.counted - before == 30
    named = ContinualClassifier("er", epochs=2, lr=0.02).fit(X, Y)
    np.testing.assert_array_equal(model.predict_proba(X), named.predict_proba(X))
    assert type(model.learner_) is Counting
    assert model.learner_.config.lr == 0.02


def test_scikit_learns_rules_for_parameters_hold() -> None:
    model = ContinualClassifier(Counting, batch_size=5)
    assert model.get_params()["learner"] is Counting
    twin = clone(model)
    assert twin.learner is Counting
    assert twin.batch_size == 5
    assert twin.set_params(learner=Finetune).fit(X, Y).learner_.name == "finetune"
    assert "Counting" in repr(model)


def test_copies_go_on_as_the_original() -> None:
    model = fitted()
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        np.testing.assert_array_equal(twin.predict(X), model.predict(X))


def test_a_saved_model_is_loaded_with_the_class_given_again(tmp_path: Path) -> None:
    model, path = fitted(), tmp_path / "m"
    model.save(path)
    again = ContinualClassifier.load(path, learner=Counting)
    np.testing.assert_array_equal(again.predict_proba(X), model.predict_proba(X))
    for one in (model, again):
        one.partial_fit(X[:20], Y[:20])
    np.testing.assert_array_equal(again.predict_proba(X), model.predict_proba(X))


def test_what_is_wrong_on_loading_is_said_in_one_line(tmp_path: Path) -> None:
    fitted().save(tmp_path / "own")
    reference = f"{Counting.__module__}:Counting"
    with pytest.raises(ConfigError, match=f"was trained with the learner {reference}: give that class again"):
        ContinualClassifier.load(tmp_path / "own")
    with pytest.raises(ConfigError, match="Counting, not Finetune: give that class again, learner="):
        ContinualClassifier.load(tmp_path / "own", learner=Finetune)
    ContinualClassifier("er", epochs=1).fit(X, Y).save(tmp_path / "named")
    with pytest.raises(ConfigError, match=r"with a learner of the catalog: leave learner=\.\.\. out"):
        ContinualClassifier.load(tmp_path / "named", learner=Counting)
    ScaleClassifier(epochs=1).fit(X, Y).save(tmp_path / "scale")
    with pytest.raises(ConfigError, match=r"with a learner of the catalog"):
        ScaleClassifier.load(tmp_path / "scale", learner=Counting)


@pytest.mark.parametrize("learner", [int, 3, None])
def test_what_is_no_learner_is_refused(learner: Any) -> None:
    with pytest.raises(ConfigError, match=r"learner is .*; give a name of `scale-cl list learners` or a subclass"):
        ContinualClassifier(learner).fit(X, Y)


@pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning")
def test_it_is_exported(tmp_path: Path) -> None:
    done = to_torch_export(fitted(), tmp_path / "a.pt2")
    assert done.classes == (0, 1, 2)
