"""The trackers by name."""

from __future__ import annotations

import sys

import pytest

from scale_cl.errors import ConfigError, TrackerError
from scale_cl.trackers import NAMES, parse
from scale_cl.trackers.backend import make


def test_names_come_one_by_one_or_with_commas() -> None:
    assert parse(["tensorboard", "mlflow, wandb,", "mlflow"]) == ["tensorboard", "mlflow", "wandb"]
    assert parse([]) == []


def test_an_unknown_name_is_answered_with_the_closest() -> None:
    with pytest.raises(ConfigError, match="unknown tracker 'tensorbord'; did you mean 'tensorboard'"):
        parse(["tensorbord"])
    with pytest.raises(ConfigError, match="known are tensorboard, mlflow, wandb"):
        make("neptune")


@pytest.mark.parametrize("name", NAMES)
def test_a_missing_extra_is_one_line(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, name, None)  # as if it were not installed
    with pytest.raises(TrackerError) as refused:
        make(name)
    assert str(refused.value) == f"tracking with {name} needs the extra: pip install 'scale-cl[{name}]'"


@pytest.mark.parametrize("name", NAMES)
def test_each_name_makes_its_tracker(name: str) -> None:
    assert make(name).name == name
