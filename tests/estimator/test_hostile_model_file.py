"""Estimator files with a right checksum and absurd contents: compared with their tensors before anything is made."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from scale_cl import ContinualClassifier
from scale_cl.errors import CheckpointError
from scale_cl.estimator import model_file
from scale_cl.estimator.model_file import Stored
from tests.estimator.problems import blobs
from tests.training.allocations import peak_bytes


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Stored:
    """The content of a file."""
    path = tmp_path_factory.mktemp("model") / "m"
    model = ContinualClassifier("er", memory=4, replay=4, backbone="mlp-8-8", standardise=False)
    for task, names in (("animals", ("cat", "dog")), ("trees", ("oak", "elm", "fir"))):
        model.partial_fit(*blobs(names, seed=1), task=task)
    model.save(path)
    return model_file.read(path)


def refused(stored: Stored, change: Callable[[Any], object], path: Path) -> str:
    """What is said of a file with changed content and a right checksum."""
    content = json.loads(json.dumps(stored.content))
    change(content)
    model_file.write(path, Stored(content, stored.tensors))
    with pytest.raises(CheckpointError) as error:
        ContinualClassifier.load(path)
    return str(error.value)


@pytest.mark.parametrize(
    ("change", "part"),
    [
        (lambda c: c["model"]["spec"].update(shape=[5_000_000]), "this learner keeps 4 per task of shape (5000000,)"),
        (lambda c: c["model"]["spec"].update(shape=[2**62, 2**62]), "does not fit its settings"),
        (lambda c: c["params"].update(memory=10**7), "this learner keeps 10000000 per task"),
        (lambda c: c["params"].update(backbone="mlp-99999-99999"), "does not fit its settings: net."),
        (lambda c: c["model"]["meta"]["tasks"][0].__setitem__(1, 2**31 - 1), "2147483647 classes and heads of [2, 3]"),
        (lambda c: c["model"]["meta"]["tasks"].append(["new", 2]), "it has 3 tasks of up to 3 classes and heads of"),
        (lambda c: c["labels"]["tasks"][0][1].pop(), "its labels, tasks and heads do not agree"),
        (lambda c: c["labels"]["tasks"].pop(), "its labels, tasks and heads do not agree"),
        (lambda c: c["labels"]["tasks"][0].__setitem__(0, "birds"), "its labels, tasks and heads do not agree"),
        (lambda c: c["labels"].update(shared=True), "its labels, tasks and heads do not agree"),
        (lambda c: c["model"]["tasks"][0].update(name="birds"), "its labels, tasks and heads do not agree"),
        (lambda c: c["model"]["spec"].update(pixel_max=10**400), "its header cannot be read"),
        (lambda c: c["model"]["spec"].update(pixel_max=1e300), "neither null nor a brightness above 0"),
        (lambda c: c.update(feature_names=["a"]), "its feature names are not those of inputs of shape [6]"),
        (lambda c: c["params"].update(pixel_max="bright"), "'layout' or 'pixel_max' is none"),
    ],
)
def test_absurd_content_is_refused(stored: Stored, change: Callable[[Any], object], part: str, tmp_path: Path) -> None:
    assert part in refused(stored, change, tmp_path / "m")


def test_nothing_of_the_claimed_size_is_allocated(stored: Stored, tmp_path: Path) -> None:
    def claims(content: Any) -> None:
        content["model"]["spec"]["shape"] = [5_000_000]  # a first layer of 160 MB
        content["model"]["meta"]["tasks"][0][1] = 50_000_000

    assert peak_bytes(lambda: refused(stored, claims, tmp_path / "m")) < 1 << 20


def test_an_origin_of_another_shape_is_refused(stored: Stored, tmp_path: Path) -> None:
    tensors = {**stored.tensors, "origin": torch.zeros(2)}
    assert "its origin is not one of inputs" in refused(Stored(stored.content, tensors), lambda c: None, tmp_path / "m")


def test_what_is_no_plain_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(CheckpointError, match="pipe cannot be read: it is not a plain file"):
        ContinualClassifier.load(tmp_path / "pipe")
    with pytest.raises(CheckpointError, match="cannot be read: File name too long"):
        ContinualClassifier.load(tmp_path / ("n" * 300))


def test_an_unchanged_file_is_loaded(stored: Stored, tmp_path: Path) -> None:
    model_file.write(tmp_path / "m", stored)
    loaded = ContinualClassifier.load(tmp_path / "m")
    assert np.isin(loaded.predict(blobs(("cat",))[0], task="animals"), ["cat", "dog"]).all()
