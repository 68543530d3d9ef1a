"""Classifiers as people have them: their files take the inputs that `predict` takes, and know their labels."""

from __future__ import annotations

import doctest
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn

import scale_cl.export
from scale_cl import ContinualClassifier, ScaleClassifier
from scale_cl.export import METADATA, to_onnx, to_torch_export
from tests.estimator.problems import blobs, pictures
from tests.export.loaded import OnnxFile, pt2_logits

pytestmark = pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning")
WORDS = np.array(["zero", "one", "two", "three"])


def test_string_labels_and_unscaled_features_come_out_as_predict_gives_them(tmp_path: Path) -> None:
    x, y = load_digits(return_X_y=True)
    x = x * 10.0 ** (np.arange(64) % 13 - 6) + 1.7e9 * (np.arange(64) % 3 == 0)  # scales of their own, and clocks
    model = ScaleClassifier(weight_average=0.9)
    for low in (0, 2):
        rows = y // 2 == low // 2
        model.partial_fit(x[rows][:200], WORDS[y[rows][:200]], task=f"from {low}")
    rows, name = y // 2 == 0, "from 0"
    to_onnx(model, tmp_path / "a.onnx", task=name)
    file, test = OnnxFile(tmp_path / "a.onnx"), x[rows][200:]
    assert file.classes == model.task_classes(name).tolist() == ["one", "zero"]
    assert (file.metadata["input_dtype"], file.metadata["input_shape"]) == ("float64", '["batch", 64]')
    assert file.labels(test) == model.predict(test, task=name).tolist()
    assert np.mean(np.array(file.labels(test)) == WORDS[y[rows][200:]]) > 0.9
    for size in (1, 50):
        logits = file.logits(test, size)
        odds = np.exp(logits - logits.max(1, keepdims=True))
        columns = [model.classes_.tolist().index(label) for label in file.classes]
        wanted = model.predict_proba(test, task=name)[:, columns]
        np.testing.assert_allclose(odds / odds.sum(1, keepdims=True), wanted, atol=1e-4)


@pytest.mark.parametrize(
    ("layout", "scenario", "shape"),
    [("NHWC", "task", ["batch", 8, 8, 3]), ("auto", "domain", ["batch", 3, 8, 8])],
)
def test_images_come_as_predict_takes_them(layout: Any, scenario: str, shape: list[Any], tmp_path: Path) -> None:
    x, y = pictures()
    model = ContinualClassifier("er", layout=layout, scenario=scenario, epochs=1)
    model.fit(x, y, task=np.arange(len(x)) % 2)
    given = x if layout == "NHWC" else np.ascontiguousarray(x.transpose(0, 3, 1, 2))
    exported = to_torch_export(model, tmp_path / "a.pt2", task=1)
    extra = {METADATA: ""}
    torch.export.load(tmp_path / "a.pt2", extra_files=extra)
    assert json.loads(extra[METADATA])["input_shape"] == shape
    found = np.array(exported.classes)[pt2_logits(tmp_path / "a.pt2", given).argmax(1)]
    assert found.tolist() == model.predict(given, task=1).tolist()


@pytest.mark.parametrize("standardise", [True, False])
def test_features_of_an_own_backbone_without_a_memory(standardise: bool, tmp_path: Path) -> None:
    x, y = blobs(("cat", "dog", "eel"))
    body = nn.Sequential(nn.Linear(6, 12), nn.BatchNorm1d(12), nn.Tanh())
    model = ContinualClassifier("finetune", backbone=body, standardise=standardise, epochs=3).fit(x, y)
    exported = to_torch_export(model, tmp_path / "a.pt2")
    given = x if standardise else x.astype(np.float32)
    found = np.array(exported.classes)[pt2_logits(tmp_path / "a.pt2", given).argmax(1)]
    assert found.tolist() == model.predict(x).tolist()
    assert len(set(found.tolist())) == 3


def test_labels_keep_their_kind(tmp_path: Path) -> None:
    x, y = blobs(("0", "1"))
    for kind, wanted in ((int, [0, 1]), (bool, [False, True])):
        model = ContinualClassifier("er", epochs=1).fit(x, y.astype(int).astype(kind))
        assert to_torch_export(model, tmp_path / "a.pt2", force=True).classes == tuple(wanted)
        assert [type(label) for label in model.task_classes("stream").tolist()] == [kind, kind]


def test_the_example_of_the_docstring_gives_what_it_says() -> None:
    found = doctest.testmod(scale_cl.export)
    assert (found.failed, found.attempted > 2) == (0, True)
