"""The config of a run: sources in their order, and its form as JSON values."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from scale_cl.errors import ConfigError
from scale_cl.learners import Er, registry
from scale_cl.training.config import Config, RunSettings, StreamSettings, resolve


def learner_value(config: Config, field: str) -> object:
    return config.as_dict()["learner"][field]


def test_nothing_given_is_scale_on_digits_with_the_papers_settings() -> None:
    config = resolve()
    assert (config.learner_name, config.stream.name, config.seeds) == ("scale", "digits", [0])
    for field, value in registry.preset_settings("scale", "digits").items():
        assert learner_value(config, field) == value


def test_the_papers_settings_follow_the_stream_wherever_it_is_named(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("stream: scifar100\n")
    ways = [resolve(stream="scifar100"), resolve(assignments=["stream.name=scifar100"]), resolve(file=file)]
    assert [learner_value(config, "inner_lr") for config in ways] == [0.01] * 3
    assert resolve(stream="pmnist", file=file).stream.name == "pmnist"


def test_the_learner_can_be_named_in_every_way(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    for text in ("learner: finetune\n", "learner: {name: finetune}\n"):
        file.write_text(text)
        assert resolve(file=file).learner_name == "finetune"
    assert resolve(learner="scale", file=file).learner_name == "scale"
    assert resolve(assignments=["learner.name=finetune"]).learner_name == "finetune"


def test_a_class_is_no_name_of_a_learner() -> None:
    with pytest.raises(ConfigError, match=r"learner\.name: <class .*> is not text; give a name, module:Class or file"):
        resolve(learner=cast(Any, Er))


def test_each_source_wins_over_the_ones_before(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    assert learner_value(resolve(), "inner_lr") == 0.1  # the paper's on digits, where the default is 0.01
    file.write_text("learner: {inner_lr: 0.2}\n")
    assert learner_value(resolve(file=file), "inner_lr") == 0.2
    assert learner_value(resolve(file=file, assignments=["inner_lr=0.3"]), "inner_lr") == 0.3
    assert learner_value(resolve(file=file, options={"learner.inner_lr": 0.4}), "inner_lr") == 0.4
    assert learner_value(resolve(assignments=["inner_lr=0.3", "learner.inner_lr=0.5"]), "inner_lr") == 0.5


def test_an_option_and_an_assignment_of_the_same_field_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"run\.seeds is given twice"):
        resolve(options={"run.seeds": 2}, assignments=["run.seeds=3"])


@pytest.mark.parametrize(
    ("stream", "given", "needed"),
    [
        ("digits", "stream.window=100", {"stream": "folder:images"}),
        ("digits", "stream.keep=disk", {"stream": "csv:images.csv"}),
        ("digits", "stream.signal=features", {"options": {"stream.boundaries": "detect"}}),
        ("digits", "stream.width=0.3", {"options": {"stream.schedule": "gaussian"}}),
        ("digits", "run.evaluate_samples=50", {"options": {"run.evaluate_every": 10}}),
    ],
)
def test_a_setting_without_effect_in_the_run_is_refused(stream: str, given: str, needed: dict[str, Any]) -> None:
    name = given.partition("=")[0]
    with pytest.raises(ConfigError, match=f"^{name} is for "):
        resolve(stream=stream, assignments=[given])
    resolve(**{"stream": stream, "assignments": [given], **needed})


def test_the_sections_are_json_values_that_make_the_same_config_again(tmp_path: Path) -> None:
    config = resolve(options={"run.seeds": 3, "stream.tasks": 2}, assignments=["lambda3=0.09", "stream.class_order=5"])
    assert list(config.as_dict()) == ["stream", "learner", "run"]
    assert config.seeds == [0, 1, 2]
    file = tmp_path / "c.json"
    file.write_text(json.dumps(config.as_dict()))
    assert resolve(file=file) == config


def test_the_first_seed_is_where_counting_starts() -> None:
    assert resolve(options={"run.seed": 5, "run.seeds": 2}).seeds == [5, 6]


@pytest.mark.parametrize("order", [0, 7, "natural", "default"])
def test_a_class_order_is_a_seed_or_a_word(order: int | str) -> None:
    assert StreamSettings(class_order=order).class_order == order  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="class_order"):
        StreamSettings(class_order="alphabetic")  # type: ignore[arg-type]


@pytest.mark.parametrize("device", ["auto", "cpu", "cuda", "cuda:3"])
def test_devices_have_a_form(device: str) -> None:
    assert RunSettings(device=device).device == device
    with pytest.raises(ConfigError, match=r"run\.device: 'cuda:x' is not one of"):
        RunSettings(device="cuda:x")


def test_every_setting_has_a_line_of_documentation() -> None:
    from scale_cl.settings import explain

    for name in registry.names():
        config = resolve(learner=name)
        for settings in (config.stream, config.learner, config.run):
            for row in explain(settings):
                assert row.doc, f"{name}: {row.name} says nothing"
                assert "\n" not in row.doc


def test_the_preset_is_recorded_and_comes_from_the_option_or_the_file(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("preset: paper\nlearner: er\n")
    assert resolve().preset == "ours"
    assert resolve(preset="paper").preset == "paper"
    assert resolve(file=file).preset == "paper"
    assert resolve(file=file, preset="ours").preset == "ours"
    assert Config.from_dict(resolve(preset="paper").as_dict(), preset="paper") == resolve(preset="paper")
    assert Config.from_dict(resolve().as_dict(), preset="paper") == replace(resolve(), preset="paper")
    with pytest.raises(ConfigError, match="unknown preset 'papr'; did you mean 'paper'"):
        resolve(preset="papr")
    file.write_text("preset: [paper]\n")
    with pytest.raises(ConfigError, match="'preset' must be a name, found list"):
        resolve(file=file)


def test_the_scenario_of_an_earlier_run_is_the_default_if_it_was_called_task(tmp_path: Path) -> None:
    recorded = resolve(stream="digits", learner="er").as_dict()
    recorded["stream"] = {"name": "digits", "tasks": 2, "scenario": "task"}
    assert Config.from_dict(recorded).stream == StreamSettings(name="digits", tasks=2)
    (tmp_path / "result.json").write_text(json.dumps({"schema": 2, "config": recorded, "preset": "ours"}))
    assert resolve(file=tmp_path / "result.json").stream == StreamSettings(name="digits", tasks=2)
    (tmp_path / "own.yaml").write_text("stream: {name: split-digits, scenario: task}")
    assert resolve(file=tmp_path / "own.yaml").stream.scenario == "task"
    own = resolve(stream="folder:somewhere", options={"stream.scenario": "class"}).own_data
    assert own is not None
    assert own.scenario == "class"
