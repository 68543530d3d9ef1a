"""Streams named by where their images are, in Python and on the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from scale_cl.errors import ConfigError
from scale_cl.streams.user_streams import UserStream, is_own, load_own
from scale_cl.training.config import resolve


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two tasks of two classes of ten images, bright above or below."""
    random = np.random.default_rng(0)
    for task in ("spring", "summer"):
        for label, rows in (("high", slice(0, 4)), ("low", slice(4, 8))):
            for i in range(10):
                pixels = random.integers(0, 60, (8, 8, 3))
                pixels[rows] += 150
                target = tmp_path / "seasons" / task / label / f"{i}.png"
                target.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(pixels.astype(np.uint8)).save(target)
    return tmp_path / "seasons"


def test_a_name_with_a_place_is_own_data() -> None:
    assert is_own("folder:here")
    assert is_own("csv:x.csv")
    assert not is_own("digits")
    with pytest.raises(ConfigError, match="has no path"):
        is_own("folder:")


def test_seeds_differ_in_the_order_of_arrival_and_share_data_and_tests(folder: Path) -> None:
    data = UserStream(f"folder:{folder}")
    one, same, other = (load_own(data, seed=seed) for seed in (1, 1, 2))
    assert one.arrays is other.arrays
    assert one.tasks[0].train.tolist() == same.tasks[0].train.tolist() != other.tasks[0].train.tolist()
    assert one.tasks[0].test.tolist() == other.tasks[0].test.tolist()
    assert (one.seed, other.seed) == (1, 2)
    x, y = other.train_data(1)
    assert y.tolist() == [int(image[:, 4:].sum() > image[:, :4].sum()) for image in x.int()]
    assert len(load_own(data, tasks=1)) == 1
    with pytest.raises(ConfigError, match=r"tasks is 3; .* has 2"):
        load_own(data, tasks=3)


def test_a_folder_is_trained_on_from_the_command_line(command: Callable[..., Any], folder: Path) -> None:
    out = folder.parent / "out"
    options = ("--set", "stream.scenario=domain", "--set", "stream.channels=1", "--out", out, "--quiet")
    done = command("run", "--stream", f"folder:{folder}", "--learner", "er", "--set", "lr=0.1", *options)
    assert done.code == 0, done.err
    assert done.out.startswith("er on seasons: ACC")
    result = json.loads((out / "result.json").read_text())
    assert result["config"]["stream"]["name"] == f"folder:{folder}"
    again = command("run", "--config", out / "result.json", "--quiet")
    assert again.code == 0, again.err
    assert again.out.split("(")[0] == done.out.split("(")[0]
    assert [p.name.partition("-er-")[2] for p in Path("runs").iterdir()] == ["seasons"]


def test_a_manifest_is_trained_on_from_the_command_line(command: Callable[..., Any], folder: Path) -> None:
    lines = [f"{p.relative_to(folder)},{p.parent.name},{p.parent.parent.name}" for p in sorted(folder.rglob("*.png"))]
    (folder / "all.csv").write_text("\n".join(["path,label,task", *lines]))
    done = command("run", "--stream", f"csv:{folder / 'all.csv'}", "--learner", "finetune", "--tasks", "1", "-q")
    assert done.code == 0, done.err
    assert done.out.startswith("finetune on all: ACC")


def test_what_only_the_catalogs_streams_have_is_refused(command: Callable[..., Any], folder: Path) -> None:
    for wrong in ("stream.class_order=3", "stream.part=search"):
        done = command("run", "--stream", f"folder:{folder}", "--set", wrong, "-q")
        assert (done.code, "are of the catalog's streams" in done.err) == (2, True)
    assert "is not a folder" in command("run", "--stream", "folder:nowhere", "-q").err
    assert resolve(stream="folder:x/y").stream.short_name == "y"
