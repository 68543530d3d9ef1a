"""The definitions say what the paper did."""

from __future__ import annotations

from typing import Any

import pytest

from scale_cl.errors import ConfigError
from scale_cl.experiments.definitions import (
    BEYOND_AXES,
    EXPERIMENTS,
    FAMILIES,
    PAPER_STREAMS,
    POINTS,
    SEARCH_AXES,
    chosen,
    drawn,
    grid,
)
from scale_cl.experiments.planning import common
from scale_cl.learners import ScaleConfig
from scale_cl.learners import registry as learners
from scale_cl.learners.presets import PRESET_NAMES
from scale_cl.settings import as_dict, build, field_names
from scale_cl.streams import catalog as streams
from scale_cl.training.config import resolve


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
    assert [sizes.pop(name) for name in ("search", "matched", "unsearched")] == [2 * 14, 4 * 14, 4 * 14]
    assert (sizes.pop("beyond-search"), sizes.pop("beyond")) == (2 * 4, 4 * 5)
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


@pytest.mark.parametrize(("name", "axes"), [("search", SEARCH_AXES), ("beyond-search", BEYOND_AXES)])
def test_every_learner_of_a_comparison_gets_as_many_trials(name: str, axes: dict[str, dict[str, Any]]) -> None:
    search = EXPERIMENTS[name]
    (compared,) = [one for one in EXPERIMENTS.values() if one.searched == name]
    assert set(search.grids) == set(search.learners) == set(compared.learners) - {"scale-plus"}  # chosen before
    assert (search.everywhere, search.on_images) == (compared.everywhere, compared.on_images)
    for learner, points in search.grids.items():
        assert points[0] == {}  # the preset
        assert len(points) == 1 + POINTS
        assert len({tuple(point.items()) for point in points}) == 1 + POINTS
        for axis, values in axes[learner].items():
            assert {point[axis.partition("+")[0]] for point in points[1:]} == set(values)


def test_drawing_from_a_small_grid_takes_all_of_it() -> None:
    few = drawn({"a": (1, 2), "b": (False, True)})
    assert few == ({}, *grid({"a": (1, 2), "b": (False, True)}))


@pytest.mark.parametrize("name", ["matched", "unsearched", "beyond"])
def test_a_comparison_uses_nothing_that_choices_were_made_on(name: str) -> None:
    compared = EXPERIMENTS[name]
    assert (compared.orders, compared.first_seed) == ((3, 4, 5), 200)
    assert (compared.seeds_per_order, compared.seeds) == (3, 5)


@pytest.mark.parametrize("stream", PAPER_STREAMS)
def test_the_extras_that_others_get_are_those_of_scale_plus(stream: str) -> None:
    beyond, plus = EXPERIMENTS["beyond"], resolve(stream=stream, learner="scale-plus").as_dict()["learner"]
    extras = common(beyond, stream, "er")
    assert {name: plus[name] for name in extras} == extras
    assert extras.keys() >= {"weight_average", "average_warmup", "consistency", "memory_policy"}


@pytest.mark.parametrize("stream", ["pmnist", "scifar100"])
def test_no_trial_costs_more_than_four_times_scale(stream: str) -> None:
    def images(learner: str, point: dict[str, object]) -> float:
        """Forward, backward, the forward of the average, and that of the batch whose logits DER++ stores."""
        options = {f"learner.{name}": value for name, value in point.items()}
        c: Any = resolve(stream=stream, learner=learner, options=options).learner
        if learner == "scale":  # its outer forward is trained on with respect to the generator alone
            return float(c.outer_steps * (4 * c.inner_steps + 1) * (10 + c.replay))
        return float(4 * c.updates * (10 + c.replay * (2 if learner == "derpp" else 1)) + 10 * (learner == "derpp"))

    scale = 3 * (10 + 64) + (10 + 64)  # an inner step, and the forward of the outer one
    competing = {name: points for name, points in EXPERIMENTS["beyond-search"].grids.items() if name != "joint"}
    assert len(competing) == 3
    for learner, points in competing.items():
        assert max(images(learner, point) for point in points) <= 4 * scale


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
