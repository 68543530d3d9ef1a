"""Features of a trained learner, and how well tasks are told apart by them."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from scale_cl import training
from scale_cl.errors import ResultError
from scale_cl.experiments import claims
from scale_cl.learners import registry
from scale_cl.streams import load
from tests.experiments.small_runs import config


def clouds(distance: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Two tasks of 300 samples each whose features lie so far apart."""
    generator = torch.Generator().manual_seed(1)
    task = torch.arange(2).repeat_interleave(300)
    return torch.randn(600, 8, generator=generator) + distance * task[:, None], task


def test_a_probe_tells_apart_what_differs_and_not_what_is_the_same() -> None:
    assert claims.probe_accuracy(*clouds(4.0)) > 98
    assert 40 < claims.probe_accuracy(*clouds(0.0)) < 60


def test_a_probe_is_a_function_of_its_seed_and_leaves_the_global_generator_alone() -> None:
    state = torch.random.get_rng_state()
    first = claims.probe_accuracy(*clouds(0.5), seed=3)
    assert first == claims.probe_accuracy(*clouds(0.5), seed=3)
    assert torch.equal(state, torch.random.get_rng_state())


def test_features_are_those_of_the_network_that_predicts_and_leave_no_trace() -> None:
    stream = load("digits", tasks=2)
    learner = registry.make("scale", stream.spec)
    training.train(learner, stream.first(2), batch_size=100)
    before = learner.state_dict()["tensors"]
    found, task = claims.test_features(learner, stream)
    assert found.shape == (1000, 256)
    assert np.bincount(task).tolist() == [500, 500]
    x = stream.test_data(1)[0][:3]
    again = learner.engine.evaluated(x, torch.ones(3, dtype=torch.int64)).common
    assert torch.allclose(again, torch.from_numpy(found[500:503]), atol=1e-6)
    after = learner.state_dict()["tensors"]
    assert all(torch.equal(before[name], after[name]) for name in before)
    features, tasks = torch.from_numpy(found), torch.from_numpy(task)
    told = learner.engine.owned.parts["discriminator"](features).argmax(1) - 1
    expected = [100 * (told[:500] == 0).double().mean(), 100 * (told[500:] == 1).double().mean()]
    assert claims.own_accuracies(learner, features, tasks) == pytest.approx([float(one) for one in expected])
    assert claims.own_accuracies(registry.make("er", stream.spec), features, tasks) is None


def test_the_plane_holds_the_two_directions_that_vary_most() -> None:
    generator = np.random.default_rng(0)
    points = generator.normal(size=(500, 5)) * [1, 9, 1, 3, 1] + 7
    plane = claims.plane(points)
    centred = points - points.mean(0)
    assert np.corrcoef(plane[:, 0], centred[:, 1])[0, 1] > 0.99
    assert np.corrcoef(plane[:, 1], centred[:, 3])[0, 1] > 0.99


def test_features_on_disk_are_read_back_and_damage_is_named(tmp_path: Path) -> None:
    small = config("scale", tasks=2)
    training.run(small, on_trained=partial(claims.keep_features, tmp_path))
    kept = claims.read_features(tmp_path)
    assert kept["features"].shape == (1000, 256)
    path = tmp_path / claims.FEATURES_NAME
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(ResultError, match="is damaged"):
        claims.read_features(tmp_path)
    path.unlink()
    with pytest.raises(ResultError, match="cannot be read"):
        claims.read_features(tmp_path)
