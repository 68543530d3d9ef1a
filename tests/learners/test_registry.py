"""The catalog of learners."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from scale_cl import learners
from scale_cl.errors import ConfigError
from scale_cl.learners import Compute, LearnerConfig, Scale, registry
from scale_cl.settings import build
from scale_cl.streams import names as stream_names
from tests.learners.tiny import SPLIT


@pytest.mark.parametrize("name", registry.names())
def test_every_learner_has_a_line_a_config_and_settings_for_every_stream(name: str) -> None:
    assert registry.describe(name)
    assert "\n" not in registry.describe(name)
    kind = registry.config_class(name)
    assert issubclass(kind, LearnerConfig)
    for stream in stream_names():
        build(kind, registry.preset_settings(name, stream))
    made = registry.make(name, SPLIT, seed=3, compute=Compute("fp32"))
    assert (made.name, made.seed) == (name, 3)
    assert {type(made).__name__, kind.__name__} <= set(learners.__all__)


@pytest.mark.parametrize(("attribute", "value"), [("after", 5), ("description", 5), ("update_settings", "updates")])
def test_an_attribute_of_another_type_is_refused(attribute: str, value: object) -> None:
    kind = type("Odd", (learners.Finetune,), {"__doc__": "Odd.", attribute: value})
    with pytest.raises(ConfigError, match=f"^learner 'odd': Odd.{attribute} is {value!r}; it must be "):
        registry.entry(kind)


def test_scale_and_finetune_are_there() -> None:
    assert {"scale", "scale-ema", "finetune"} <= set(registry.names())
    assert isinstance(registry.make("scale-ema", SPLIT), Scale)


def test_an_unknown_learner_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(ConfigError, match=r"unknown learner 'scael'; did you mean 'scale'\?"):
        registry.make("scael", SPLIT)
    with pytest.raises(ConfigError, match="known are scale"):
        registry.describe("horse")


def test_paper_settings_are_a_copy() -> None:
    settings = registry.preset_settings("scale", "pmnist")
    settings["inner_lr"] = 7.0
    assert registry.preset_settings("scale", "pmnist")["inner_lr"] == 0.1


def test_the_manual_counts_them_right() -> None:
    methods = set(registry.names()) - {"scale-ema", "scale-plus", "independent", "joint", "finetune"}
    page = (Path(__file__).parents[2] / "docs/compare.md").read_text()
    assert re.findall(r"\[(\d+) and three bounds\]", page) == [str(len(methods))] * 2
