"""The examples do what they say, with data they make themselves."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest
import torch

EXAMPLES = Path(__file__).parents[2] / "examples"


def example(name: str) -> dict[str, Any]:
    return runpy.run_path(str(EXAMPLES / name))


def test_every_example_is_short_and_says_how_it_is_run() -> None:
    scripts = sorted(EXAMPLES.glob("*.py"))
    assert [script.name for script in scripts] == ["drifting_sensors.py", "new_method.py", "own_images.py"]
    for script in scripts:
        text = script.read_text(encoding="utf-8")
        assert f"python examples/{script.name}" in text
        assert len(text.splitlines()) < 80


def test_own_images_are_learnt_saved_and_loaded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = example("own_images.py")
    images = found["made_up"](tmp_path / "images")
    assert found["main"](images, tmp_path / "model.safetensors") > 0.9
    assert (tmp_path / "model.safetensors").is_file()
    assert capsys.readouterr().out.count("right; task found") == 2


def test_a_sensor_stream_that_drifts_is_not_forgotten() -> None:
    accuracy = example("drifting_sensors.py")["main"]()
    assert accuracy["scale"] > 0.9
    assert accuracy["scale"] > accuracy["finetune"] + 0.1


def test_a_new_method_is_forty_lines_and_beats_er() -> None:
    accuracy = example("new_method.py")["main"](tasks=3)
    assert accuracy["Calm"] > accuracy["Er"] + 1
    text = (EXAMPLES / "new_method.py").read_text(encoding="utf-8")
    method = text[text.index("@dataclass") : text.index("def main")]
    assert len(method.strip().splitlines()) <= 40


def test_the_new_method_keeps_the_protocol() -> None:
    from tests.learners.tiny import SPLIT, teach

    calm = example("new_method.py")["Calm"]
    one = teach(calm(SPLIT), tasks=2)
    other = calm(SPLIT)
    other.load_state_dict(one.state_dict())
    x = torch.zeros(2, 1, 5, 5, dtype=torch.uint8)
    assert torch.equal(teach(one, first=2).predict(x, "task 0"), teach(other, first=2).predict(x, "task 0"))
