"""`scale-cl show` and `scale-cl list`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from scale_cl import learners, streams
from scale_cl.settings import field_names
from scale_cl.training.config import resolve


def test_the_settings_in_force_are_shown_with_their_meaning(command: Callable[..., Any]) -> None:
    finished = command("show", "scale", "--stream", "pmnist")
    assert finished.code == 0
    lines = {line.split(":")[0].strip(): line for line in finished.out.splitlines()}
    assert lines["inner_lr"].split("#")[0].split() == ["inner_lr:", "0.1"]
    assert lines["inner_lr"].endswith("[a number above 0] (default 0.01)")
    assert lines["boundaries"].endswith("[one of told, hidden, detect]")
    assert set(field_names(learners.registry.config_class("scale"))) <= set(lines)
    for line in finished.out.splitlines():
        assert line in ("stream:", "learner:", "run:") or line.partition("# ")[2], f"no meaning in {line!r}"


def test_a_setting_given_as_text_is_shown_as_a_config_file_too(command: Callable[..., Any]) -> None:
    finished = command("show", "er", "--stream", "scifar100", "--set", "backbone=resnet18-relu-nopool")
    assert finished.code == 0, finished.err
    Path("shown.yaml").write_text(finished.out)
    assert type(resolve(file=Path("shown.yaml")).learner.backbone) is str
    assert type(resolve(learner="er", assignments=["backbone=resnet18-relu-nopool"]).learner.backbone) is str


def pairs() -> list[tuple[str, str]]:
    """Every preset of every learner, and every stream."""
    presets: dict[tuple[str, str], tuple[str, str]] = {}
    for learner in learners.registry.names():
        for stream in streams.names():
            presets.setdefault((learner, str(learners.registry.preset_settings(learner, stream))), (learner, stream))
    return sorted({*presets.values(), *(("scale", stream) for stream in streams.names())})


@pytest.mark.parametrize(("learner", "stream"), pairs())
def test_what_is_shown_is_a_config_file_of_the_same_settings(
    command: Callable[..., Any], learner: str, stream: str
) -> None:
    Path("shown.yaml").write_text(command("show", learner, "--stream", stream).out)
    assert resolve(file=Path("shown.yaml")) == resolve(learner=learner, stream=stream)


def test_every_stream_and_learner_is_listed_with_a_line(command: Callable[..., Any]) -> None:
    for what, names in (("streams", streams.names()), ("learners", learners.registry.names())):
        lines = command("list", what).out.splitlines()[: len(names)]
        assert [line.split()[0] for line in lines] == names
        assert all(len(line.split()) > 3 for line in lines)
