"""The definitions say what the paper did."""

from __future__ import annotations

import pytest

from scale_cl.errors import ConfigError
from scale_cl.experiments.definitions import EXPERIMENTS, FAMILIES, chosen, grid
from scale_cl.learners import registry as learners
from scale_cl.settings import field_names
from scale_cl.streams import catalog as streams


def test_every_name_in_every_definition_exists() -> None:
    for experiment in EXPERIMENTS.values():
        assert set(experiment.streams) <= set(streams.names())
        assert {*experiment.learners, *experiment.bounds} <= set(learners.names())
        for learner in experiment.learners:
            known = field_names(learners.config_class(learner))
            assert all(name in known for case in experiment.cases for name in case)


def test_the_sizes_are_the_papers() -> None:
    sizes = {n: len(e.streams) * (len(e.learners) * len(e.cases) + len(e.bounds)) for n, e in EXPERIMENTS.items()}
    assert sizes == {
        "main": 4 * 6,
        "families": 4 * len(FAMILIES),
        "memory": 2 * (4 * 4 + 1),
        "ablation": 2 * 4,
        "sensitivity": 2 * 4,
        "time": 4 * 6,
        "search": 3 * 2 * 4 * 3 * 3,
        "claims": 4 * 2,
    }
    assert all(EXPERIMENTS[name].seeds == 5 for name in ("main", "memory", "ablation", "sensitivity", "time"))


def test_the_ablations_switch_off_one_component_each() -> None:
    assert EXPERIMENTS["ablation"].cases == ({}, {"adversary": False}, {"derpp": False}, {"generator": False})


def test_fields_joined_by_a_plus_move_as_one() -> None:
    assert grid({"a+b": (1, 3), "c": (5,)}) == ({"a": 1, "b": 1, "c": 5}, {"a": 3, "b": 3, "c": 5})
    sensitivity = EXPERIMENTS["sensitivity"].cases
    assert len(sensitivity) == 8
    assert all(case["lambda1"] == case["lambda2"] for case in sensitivity)


def test_an_unknown_experiment_is_answered_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match="unknown experiment 'memry'; did you mean 'memory'"):
        chosen("memry")
    assert list(chosen("all")) == list(EXPERIMENTS)
