"""Saving and loading: the same estimator, whole or not at all, and nothing that a file could run."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import safetensors.torch
import torch
from torch import nn

from scale_cl import ContinualClassifier, ScaleClassifier
from scale_cl.errors import CheckpointError, ConfigError
from scale_cl.estimator import model_file
from tests.estimator.problems import blobs, pictures

FIRST, SECOND = ("cat", "dog"), ("oak", "elm", "fir")


def trained(model: Any) -> Any:
    return model.partial_fit(*blobs(FIRST, seed=1), task="animals").partial_fit(*blobs(SECOND, seed=2), task=7)


def same(one: Any, other: Any) -> None:
    assert one.tasks_ == other.tasks_
    assert one.classes_.dtype == other.classes_.dtype
    for task in one.tasks_:
        x = blobs(FIRST, seed=3)[0]
        np.testing.assert_array_equal(one.predict_proba(x, task=task), other.predict_proba(x, task=task))


@pytest.mark.parametrize("model", [ScaleClassifier(memory=9, lambda1=0.5), ContinualClassifier("acl")])
def test_a_loaded_estimator_predicts_and_goes_on_learning_as_the_saved_one(model: Any, tmp_path: Path) -> None:
    model = trained(model)
    model.save(tmp_path / "model.safetensors")
    loaded = type(model).load(tmp_path / "model.safetensors")
    assert loaded.get_params() == model.get_params()
    assert loaded.n_features_in_ == 6
    same(model, loaded)
    for one in (model, loaded):
        one.partial_fit(*blobs(("cat", "eel"), seed=4), task="animals").partial_fit(*blobs(FIRST, seed=5), task="new")
    same(model, loaded)


@pytest.mark.parametrize("name", ["den", "bocl", "learn-to-grow"])
def test_a_network_that_has_dropped_what_no_task_uses_is_loaded(name: str, tmp_path: Path) -> None:
    model = trained(ContinualClassifier(name)).partial_fit(*blobs(FIRST, seed=3), task="more")
    model.save(tmp_path / "model.safetensors")
    same(model, ContinualClassifier.load(tmp_path / "model.safetensors"))


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_a_copy_in_memory_is_independent(duplicate: Any) -> None:
    model = trained(ScaleClassifier())
    other = duplicate(model)
    same(model, other)
    before = model.predict_proba(blobs(FIRST)[0], task="animals")
    other.partial_fit(*blobs(FIRST, seed=9), task="animals")
    np.testing.assert_array_equal(model.predict_proba(blobs(FIRST)[0], task="animals"), before)


@pytest.mark.parametrize("kind", [int, bool, float, object, str])
def test_labels_keep_their_type(kind: Any, tmp_path: Path) -> None:
    x, y = blobs(("1", "0"))
    y = y.astype(int).astype(kind) if kind in (int, bool, float) else y.astype(kind)
    model = ContinualClassifier().partial_fit(x, y)
    model.save(tmp_path / "m")
    found = ContinualClassifier.load(tmp_path / "m").predict(x)
    assert found.dtype == y.dtype
    assert np.mean(found == y) > 0.9


def test_images_and_named_features_come_back(tmp_path: Path) -> None:
    x, y = pictures()
    ContinualClassifier(epochs=1).fit(x, y).save(tmp_path / "m")
    assert ContinualClassifier.load(tmp_path / "m").predict(x[:2]).shape == (2,)
    table, labels = pd.DataFrame(blobs(FIRST)[0], columns=list("abcdef")), blobs(FIRST)[1]
    ContinualClassifier(epochs=1).fit(table, labels).save(tmp_path / "m")
    loaded = ContinualClassifier.load(tmp_path / "m")
    assert loaded.feature_names_in_.tolist() == list("abcdef")
    with pytest.raises(ValueError, match="feature names should match"):
        loaded.predict(table.rename(columns={"a": "z"}))


def test_a_file_of_another_kind_of_device_is_loaded_with_draws_that_begin_anew(tmp_path: Path) -> None:
    model = trained(ScaleClassifier())
    model.save(tmp_path / "m")
    stored = model_file.read(tmp_path / "m")
    stored.tensors["learner.rng"] = torch.zeros(16, dtype=torch.uint8)  # as long as that of a CUDA generator
    model_file.write(tmp_path / "m", model_file.Stored({**stored.content}, stored.tensors))
    loaded = ScaleClassifier.load(tmp_path / "m")
    same(model, loaded)
    loaded.partial_fit(*blobs(FIRST, seed=5), task="new")


def test_an_own_backbone_is_given_again(tmp_path: Path) -> None:
    x, y = blobs(FIRST)
    body = nn.Sequential(nn.Linear(6, 12), nn.ReLU())
    model = ScaleClassifier(backbone=body).fit(x, y)
    model.save(tmp_path / "m")
    with pytest.raises(ConfigError, match="give it again, backbone="):
        ScaleClassifier.load(tmp_path / "m")
    nn.init.zeros_(body[0].weight)  # type: ignore[arg-type]
    same(model, ScaleClassifier.load(tmp_path / "m", backbone=body))


def test_what_is_wrong_with_a_file_is_said(tmp_path: Path) -> None:
    path = tmp_path / "m"
    with pytest.raises(CheckpointError, match="does not exist"):
        ScaleClassifier.load(path)
    with pytest.raises(CheckpointError) as error:
        ScaleClassifier.load(tmp_path)
    assert str(error.value) == f"{tmp_path} is not a run's directory: it has no result.json"
    (tmp_path / "result.json").touch()
    with pytest.raises(CheckpointError, match=r"has kept no model; run it again with --set run.keep_state=true"):
        ScaleClassifier.load(tmp_path)
    trained(ScaleClassifier()).save(path)
    with pytest.raises(CheckpointError, match="written by ScaleClassifier"):
        ContinualClassifier.load(path)
    data = path.read_bytes()
    path.write_bytes(data[:-100])
    with pytest.raises(CheckpointError, match="damaged"):
        ScaleClassifier.load(path)
    path.write_bytes(data[:-100] + bytes(byte ^ 1 for byte in data[-100:]))
    with pytest.raises(CheckpointError, match="checksum"):
        ScaleClassifier.load(path)
    path.write_bytes(data.replace(b'\\"schema\\": 2', b'\\"schema\\": 1'))
    with pytest.raises(CheckpointError, match="by an earlier version of scale-cl and cannot be loaded by this one"):
        ScaleClassifier.load(path)
    path.write_bytes(data.replace(b'\\"schema\\": 2', b'\\"schema\\": 9'))
    with pytest.raises(CheckpointError, match="schema 9, this version reads up to 2"):
        ScaleClassifier.load(path)
    safetensors.torch.save_file({"a": torch.zeros(1)}, path)
    with pytest.raises(CheckpointError, match="not written by an estimator"):
        ScaleClassifier.load(path)
    path.write_bytes(pickle.dumps({"a": 1}))
    with pytest.raises(CheckpointError, match="no safetensors file"):
        ScaleClassifier.load(path)


def test_a_save_that_fails_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "m"
    model = trained(ScaleClassifier())
    model.save(path)
    before = path.read_bytes()
    model.set_params(random_state=np.random.RandomState(0))
    with pytest.raises(ConfigError, match="random_state is a RandomState, which cannot be saved"):
        model.save(path)
    monkeypatch.setattr("os.fsync", lambda _: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        model.set_params(random_state=0).save(path)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["m"]
