"""The definitions say what the paper did."""

from __future__ import annotations

import pytest

from scale_cl.errors import ConfigError
from scale_cl.experiments.definitions import EXPERIMENTS, FAMILIES, POINTS, SEARCH_AXES, chosen, drawn, grid
from scale_cl.learners import ScaleConfig
from scale_cl.learners import registry as learners
from scale_cl.learners.presets import PRESET_NAMES
from scale_cl.settings import as_dict, build, field_names
from scale_cl.streams import catalog as streams


def test_every_name_in_every_definition_exists() -> None:
    for experiment in EXPERIMENTS.values():
        assert set(experiment.streams) <= set(streams.names())
        for name in experiment.learners:
            learners.OUTSIDE.give(name)
            assert learners.describe(name)
        assert set(experiment.bounds) <= set(learners.names())
        assert experiment.preset in (None, *PRESET_NAMES)
        for learner in experiment.learners:
            kind = learners.config_class(learner)
            assert all(name in field_names(kind) for case in experiment.cases for name in case)
            for case in experiment.grids.get(learner, ()):
                build(kind, case, section="learner")  # raises ConfigError for an unknown field or a wrong value


def test_the_sizes_are_the_papers() -> None:
    sizes = {n: len(e.streams) * (len(e.learners) * len(e.cases) + len(e.bounds)) for n, e in EXPERIMENTS.items()}
    assert (sizes.pop("search"), sizes.pop("matched")) == (2 * 14, 4 * 14)
    assert [len(own) for own in EXPERIMENTS["claims"].grids.values()] == [2, 1]
    assert sizes == {
        "main": 4 * 6,
        "families": 4 * len(FAMILIES),
        "memory": 2 * (4 * 4 + 1),
        "ablation": 2 * 5,
        "sensitivity": 2 * 4,
        "rates": 3 * 3 * 3,
        "variants": 2 * 7,
        "departures": 2 * 14,
        "steps": 4 * 2 * 2,
        "time": 4 * 6,
        "paper-search": 3 * 2 * 4 * 3 * 3,
        "claims": 4 * 2,
    }
    assert all(EXPERIMENTS[name].seeds == 5 for name in ("main", "memory", "ablation", "sensitivity", "time"))


def test_every_learner_of_the_matched_table_gets_as_many_trials() -> None:
    search, matched = EXPERIMENTS["search"], EXPERIMENTS["matched"]
    assert set(search.grids) == set(search.learners) == set(matched.learners) | set(matched.bounds)
    for learner, points in search.grids.items():
        assert points[0] == {}  # the preset
        assert len(points) == 1 + POINTS
        assert len({tuple(point.items()) for point in points}) == 1 + POINTS
        for axis, values in SEARCH_AXES[learner].items():
            name = axis.partition("+")[0]
            assert {point[name] for point in points[1:]} == set(values)
    few = drawn({"a": (1, 2), "b": (False, True)})
    assert few == ({}, *grid({"a": (1, 2), "b": (False, True)}))


def test_the_matched_table_uses_nothing_that_choices_were_made_on() -> None:
    matched = EXPERIMENTS["matched"]
    assert (matched.orders, matched.first_seed) == ((3, 4, 5), 200)
    assert (matched.seeds_per_order, matched.seeds) == (3, 5)


def test_the_ablations_switch_off_one_component_each_and_then_two() -> None:
    *single, double = EXPERIMENTS["ablation"].cases
    assert single == [{}, {"adversary": False}, {"derpp": False}, {"generator": False}]
    assert double == {"adversary": False, "generator": False}


def test_departures_begin_with_the_printed_equations_and_change_one_thing_at_a_time() -> None:
    printed, *others = EXPERIMENTS["departures"].cases
    assert printed == {"ce": "together", "adversarial": "plus", "film": "sum"}
    ours = others.index({})
    assert all(sum(case[name] != value for name, value in printed.items()) == 1 for case in others[:ours])
    assert all(len(case) == 1 for case in others[ours + 1 :])
    usual, settings = as_dict(ScaleConfig()), learners.preset_settings("scale", "scifar100", "paper")
    readings = [{**usual, **settings, **case} for case in EXPERIMENTS["departures"].cases]
    assert all(one not in readings[:at] for at, one in enumerate(readings))


def test_fields_joined_by_a_plus_move_as_one() -> None:
    assert grid({"a+b": (1, 3), "c": (5,)}) == ({"a": 1, "b": 1, "c": 5}, {"a": 3, "b": 3, "c": 5})
    sensitivity = EXPERIMENTS["sensitivity"].cases
    assert len(sensitivity) == 8
    assert all(case["lambda1"] == case["lambda2"] for case in sensitivity)


def test_an_unknown_experiment_is_answered_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match="unknown experiment 'memry'; did you mean 'memory'"):
        chosen("memry")
    assert list(chosen("all")) == list(EXPERIMENTS)
