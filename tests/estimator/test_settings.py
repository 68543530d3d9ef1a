"""The settings of a learner are parameters of its estimator, as scikit-learn knows parameters."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from scale_cl import ContinualClassifier, ScaleClassifier
from scale_cl.errors import ConfigError
from scale_cl.estimator import model_file
from scale_cl.learners import registry
from scale_cl.settings import as_dict
from tests.estimator.problems import blobs

X, Y = blobs(("cat", "dog"), n=40)


@pytest.mark.parametrize("name", registry.names())
def test_every_setting_of_every_learner_is_a_parameter(name: str) -> None:
    defaults = as_dict(registry.config_class(name)())
    own = ContinualClassifier().get_params().keys()
    model = ContinualClassifier(name, **{**defaults, "backbone": "mlp-4", "standardise": False})
    assert model.get_params().keys() == own | defaults.keys()
    learn = model.fit if name == "joint" else model.partial_fit  # joint training needs all tasks at once
    learn(X[:10], Y[:10], task="pets")
    assert as_dict(model.learner_.config) == {**defaults, "backbone": "mlp-4", "standardise": False}


def test_epochs_standardise_and_backbone_are_those_of_the_estimator() -> None:
    model = ContinualClassifier("joint", epochs=3, backbone="mlp-4", standardise="auto").fit(X, Y, task=Y)
    assert model.learner_.steps == 3 * 4
    config = model.learner_.config
    assert (config.epochs, config.backbone, config.standardise) == (1, "mlp-4", True)


def test_copies_and_clones_have_the_settings() -> None:
    model = ContinualClassifier("er", memory=20, lr=0.02, epochs=1)
    assert repr(model) == "ContinualClassifier(epochs=1, lr=0.02, memory=20)"
    assert "lr" in model._repr_html_()
    for twin in (clone(model), copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert twin.get_params() == model.get_params()
        twin.set_params(lr=0.05, memory=np.int64(30), batch_size=5).fit(X, Y)
        config = twin.learner_.config
        assert (config.lr, config.memory, twin.learner_.steps) == (0.05, 30, 8)
    assert model.get_params()["lr"] == 0.02
    with pytest.raises(ConfigError, match=r"^scale has no setting 'lr'; its settings are .*, inner_lr, "):
        clone(model).set_params(learner="scale").fit(X, Y)


def test_a_grid_is_searched_over_learners_and_their_settings() -> None:
    model = make_pipeline(StandardScaler(), ContinualClassifier("er", memory=20, epochs=1, backbone="mlp-8"))
    step = "continualclassifier__"
    grid = [
        {f"{step}lr": np.array([1e-6, 0.05]), f"{step}memory": np.array([10, 20])},
        {f"{step}learner": ["scale"], f"{step}inner_lr": [1e-6]},
    ]
    found = GridSearchCV(model, grid, cv=2, error_score="raise").fit(X, Y)
    assert found.best_params_[f"{step}lr"] == 0.05
    assert found.best_estimator_[-1].learner_.config.memory == found.best_params_[f"{step}memory"]


def test_a_file_has_the_settings_and_the_backbones_name_but_nothing_of_the_machine(tmp_path: Path) -> None:
    model = ContinualClassifier("er", memory=20, backbone="mlp-8", threads=2, epochs=1).fit(X, Y)
    model.save(tmp_path / "m")
    again = ContinualClassifier.load(tmp_path / "m")
    assert again.get_params() == {**model.get_params(), "threads": 1}
    np.testing.assert_array_equal(again.predict_proba(X), model.predict_proba(X))


def test_a_file_of_before_settings_were_parameters_is_read(tmp_path: Path) -> None:
    model = ScaleClassifier(memory=7, lambda3=0.1, epochs=1).fit(X, Y)
    model.save(tmp_path / "m")
    stored = model_file.read(tmp_path / "m")
    params = stored.content["params"]
    params["settings"] = {"lambda3": params.pop("lambda3")}
    model_file.write(tmp_path / "old", stored)
    again = ScaleClassifier.load(tmp_path / "old")
    assert again.get_params() == model.get_params()
    np.testing.assert_array_equal(again.predict_proba(X), model.predict_proba(X))
