"""Config files: plain values only, and errors that name the line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from scale_cl.errors import ConfigError
from scale_cl.training.config import read_config_file, resolve


def read(folder: Path, text: str, name: str = "c.yaml") -> dict[str, dict[str, Any]]:
    (folder / name).write_text(text)
    return read_config_file(folder / name)[0]


def test_sections_that_are_absent_or_empty_hold_nothing(tmp_path: Path) -> None:
    empty: dict[str, dict[str, Any]] = {"stream": {}, "learner": {}, "run": {}}
    for text in ("", "# nothing\n", "learner:\n", "{}"):
        assert read(tmp_path, text) == empty


def test_words_and_numbers_are_read_as_people_mean_them(tmp_path: Path) -> None:
    text = "learner: {a: 1e-3, b: 2E5, c: 1.5e+2, d: off, e: yes, f: true, g: False, h: null, i: 3, j: 0.5, k: [1, 2]}"
    assert read(tmp_path, text)["learner"] == {
        "a": 1e-3,
        "b": 2e5,
        "c": 150.0,
        "d": "off",
        "e": "yes",
        "f": True,
        "g": False,
        "h": None,
        "i": 3,
        "j": 0.5,
        "k": [1, 2],
    }


def test_a_result_gives_its_config(tmp_path: Path) -> None:
    config = {"stream": {"name": "digits"}, "learner": {"name": "scale"}, "run": {"seed": 4}}
    assert read(tmp_path, json.dumps({"schema": 1, "config": config, "acc": [1]}), "result.json") == config


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a: [1, 2", r"line 1: "),
        ("run:\n  a: 1\n  a: 2\n", "line 3: 'a' is given twice"),
        ("run: &x {a: 1}\nlearner: *x\n", "line 2: aliases"),
        ("run: {[1]: 2}\n", r"line 1: \[1\] is not a name"),
        ("run: {1: 2}\n", "section 'run' must hold named values"),
        ("run: !!python/name:os.system\n", "line 1: tags"),
        ("--- 1\n--- 2\n", "line 2: "),
        ("run: 2024-99-99\n", "section 'run' must hold named values"),
        ("[" * 5000, "c.yaml: it is nested too deeply"),
        ("run: !x {a: 1}\n", "line 1: tags"),
        ("run: !!binary x\n", "line 1: tags"),
        ("runs: {}\n", "unknown section 'runs'; did you mean 'run'"),
    ],
)
def test_what_is_wrong_in_a_file_is_said_with_its_line(tmp_path: Path, text: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason) as error:
        read(tmp_path, text)
    assert "c.yaml" in str(error.value)


def test_what_is_wrong_in_json_is_said_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"c\.json is not JSON, line 2: "):
        read(tmp_path, '{\n "run": }', "c.json")


@pytest.mark.parametrize(
    "number", ["9" * 5000, "9" * 400, "1:" * 3000 + "1", "1:30", "0x" + "f" * 9000, "0b1", "017", "2001-01-01", "1e400"]
)
def test_numbers_beyond_all_measure_or_of_another_base_are_no_numbers(tmp_path: Path, number: str) -> None:
    (tmp_path / "c.yaml").write_text(f"run: {{seeds: {number}}}")
    with pytest.raises(ConfigError, match=r"run\.seeds: .* is not a whole number") as error:
        resolve(file=tmp_path / "c.yaml")
    assert len(str(error.value)) < 200


def test_numbers_are_read_as_people_write_them(tmp_path: Path) -> None:
    text = "run: {seeds: 1_000, batch_size: 0x10, checkpoint_seconds: 1e2}\nlearner: {inner_lr: .5, clip: +1.5e-1}"
    (tmp_path / "c.yaml").write_text(text)
    config = resolve(file=tmp_path / "c.yaml")
    assert (config.run.seeds, config.run.batch_size, config.run.checkpoint_seconds) == (1000, 16, 100.0)
    assert config.as_dict()["learner"]["inner_lr"] == 0.5
