"""The checkpoint's two files: whole, checked, and nothing but data."""

from __future__ import annotations

import contextlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from scale_cl.errors import CheckpointError
from scale_cl.learners import Finetune, Scale, registry
from scale_cl.training import checkpoint
from scale_cl.training.checkpoint import Checkpoint, Model, Position, SavedTask, UnusableCheckpointError
from tests.learners.sameness import differences
from tests.learners.tiny import SPLIT, teach


def example(position: tuple[int, int] = (1, 5)) -> Checkpoint:
    learner = teach(Finetune(SPLIT))
    known = SavedTask(learner.tasks[0], ("cat", "dog")), *(SavedTask(name, None) for name in learner.tasks[1:])
    return Checkpoint(
        model=Model("finetune", {"lr": 0.1}, 3, SPLIT, known, learner.state_dict()),
        stream="few",
        data="0" * 64,
        config={"learner": {"lr": 0.1}},
        position=Position(*position),
        matrix=[[100 / 3, None], [None, None]],
        seconds_train=1.5,
        seconds_eval=0.25,
        seconds_wall=2.0,
    )


def rewrite(path: Path, changes: dict[str, Any]) -> None:
    """Change values by dotted name, and the checksum with them: what a person, or an enemy, could do."""
    content = json.loads(path.read_text())
    for name, value in changes.items():
        part, _, key = name.rpartition(".")
        (content[part] if part else content)[key] = value
    del content["checksum"]
    path.write_text(json.dumps({**content, "checksum": checkpoint.checksum(content)}))


def test_what_is_read_is_what_was_written(tmp_path: Path) -> None:
    written = example()
    read = checkpoint.read(checkpoint.write(tmp_path, written))
    assert read.with_state(written.state) == written
    assert read.state["meta"] == written.state["meta"]
    assert read.state["tensors"].keys() == written.state["tensors"].keys()
    for name, t in written.state["tensors"].items():
        assert read.state["tensors"][name].dtype == t.dtype
        assert torch.equal(read.state["tensors"][name], t)


def test_a_brightness_is_a_number_that_pixels_can_be_divided_by(tmp_path: Path) -> None:
    path = checkpoint.write(tmp_path, example())
    spec = json.loads(path.read_text())["model"]["spec"]
    rewrite(path, {"model.spec": {**spec, "pixel_max": 2**64}})
    largest = checkpoint.read(path).model.spec.pixel_max
    assert largest is not None
    assert (torch.full((1,), 255, dtype=torch.uint8) / largest).item() > 0


def test_a_checkpoint_is_two_files_named_for_its_position(tmp_path: Path) -> None:
    checkpoint.write(tmp_path, example((12, 345)))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["at-00012-00000345.json", "at-00012-00000345.safetensors"]


def test_the_newest_stay_and_leftovers_go(tmp_path: Path) -> None:
    for position in [(0, 4), (1, 0), (0, 30), (100000, 0), (2, 123456789)]:
        checkpoint.write(tmp_path, example(position))
    (tmp_path / "at-00000-00000001.safetensors").write_bytes(b"half")
    (tmp_path / ".at-00000-00000009.json.abc.tmp").write_bytes(b"half")
    (tmp_path / "notes.txt").write_text("mine")
    checkpoint.keep_newest(tmp_path, 2)
    assert [p.stem for p in checkpoint.found(tmp_path)] == ["at-100000-00000000", "at-00002-123456789"]
    assert len(list(tmp_path.iterdir())) == 5
    checkpoint.keep_newest(tmp_path, 1)
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "at-100000-00000000.json",
        "at-100000-00000000.safetensors",
        "notes.txt",
    ]


def test_a_folder_that_is_not_there_has_no_checkpoints(tmp_path: Path) -> None:
    assert checkpoint.found(tmp_path / "none") == []


@pytest.mark.parametrize("suffix", [".json", ".safetensors"])
def test_a_truncated_file_is_refused(suffix: str, tmp_path: Path) -> None:
    path = checkpoint.write(tmp_path, example())
    half = path.with_suffix(suffix)
    whole = half.read_bytes()
    for length in {0, 1, 8, len(whole) // 2, len(whole) - 3}:
        half.write_bytes(whole[:length])
        with pytest.raises(CheckpointError, match="damaged"):
            checkpoint.read(path)


@pytest.mark.parametrize("suffix", [".json", ".safetensors"])
def test_any_flipped_bit_is_refused(suffix: str, tmp_path: Path) -> None:
    path = checkpoint.write(tmp_path, example())
    half = path.with_suffix(suffix)
    whole = half.read_bytes()
    good = checkpoint.read(path)
    for at in range(0, len(whole), max(1, len(whole) // 300)):
        flipped = bytearray(whole)
        flipped[at] ^= 1 << (at % 8)
        half.write_bytes(flipped)
        with contextlib.suppress(CheckpointError):
            read = checkpoint.read(path)
            assert suffix == ".json", "a space for a tab between two values: the content is the same"
            assert read.with_state(good.state) == good


def test_a_missing_half_is_said_so(tmp_path: Path) -> None:
    path = checkpoint.write(tmp_path, example())
    path.with_suffix(".safetensors").unlink()
    with pytest.raises(CheckpointError, match="does not exist, but its checkpoint's other half does"):
        checkpoint.read(path)
    with pytest.raises(CheckpointError, match="does not exist"):
        checkpoint.read(tmp_path / "at-00000-00000000.json")


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"schema": 99}, "has schema 99, this version reads up to 2: use a newer scale-cl"),
        ({"schema": True}, "is not a checkpoint of scale-cl"),
        ({"kind": "run"}, "is not a checkpoint of scale-cl"),
        ({"position.stage": 0, "position.step": 0}, "is foreign: it says that it is at-00000-00000000"),
        ({"position.stage": -1}, "less than 0"),
        ({"position.step": "here"}, "not of type int"),
        ({"position": [1, 5]}, "not of type dict"),
        ({"position.matrix": [[1.0], [2.0]]}, "not square"),
        ({"position.matrix": [[1e400]]}, "not a finite number"),
        ({"position.matrix": [[101]]}, "not a percentage"),
        ({"position.seconds_train": -1}, "not a number of seconds"),
        ({"position.config": []}, "not of type dict"),
        ({"model.seed": "3"}, "not of type int"),
        ({"model.tensors": {}}, "'bytes' is missing"),
        ({"model.tensors": 5}, "damaged"),
        ({"model.tasks": [3]}, "a task is '3', which has no name"),
        ({"model.tasks": [{"name": "a", "classes": "cat"}]}, "not of type list"),
        ({"position.config": {"run": [{}]}}, "'config.run' does not hold settings by name"),
        ({"model.spec": {"shape": [0], "pixel_max": None, "scenario": "task"}}, "not a list of sizes"),
        ({"model.spec": {"shape": [2], "pixel_max": -1, "scenario": "task"}}, "neither null nor a brightness"),
        ({"model.spec": {"shape": [2], "pixel_max": None, "scenario": "none"}}, "known are task, domain"),
    ],
)
def test_content_that_cannot_be_is_refused(changes: dict[str, Any], part: str, tmp_path: Path) -> None:
    path = checkpoint.write(tmp_path, example())
    if part == "not a finite number":
        path.write_text(path.read_text().replace("33.33", "NaN, 33.33"))
    else:
        rewrite(path, changes)
    with pytest.raises(CheckpointError, match=part):
        checkpoint.read(path)


def test_a_tensor_file_that_claims_more_than_it_holds_is_refused(tmp_path: Path) -> None:
    import hashlib

    path = checkpoint.write(tmp_path, example())
    header = b'{"x":{"dtype":"F32","shape":[1000000000000],"data_offsets":[0,4000000000000]}}'
    data = len(header).to_bytes(8, "little") + header + b"\0" * 16
    path.with_suffix(".safetensors").write_bytes(data)
    rewrite(path, {"model.tensors": {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}})
    with pytest.raises(CheckpointError, match="is not a safetensors file"):
        checkpoint.read(path)


def test_a_checkpoint_of_the_old_layout_is_refused_with_what_to_do(tmp_path: Path) -> None:
    shutil.copytree(Path(__file__).parent / "old_layout", tmp_path, dirs_exist_ok=True)  # of finetune, by version 0.1.0
    (path,) = tmp_path.glob("*.json")
    with pytest.raises(UnusableCheckpointError) as caught:
        checkpoint.newest_good(tmp_path, lambda path, saved: saved)
    assert str(caught.value) == (
        f"{path} was written by an earlier version of scale-cl and cannot be read by this one; use that version, or "
        "run it again into another directory"
    )


def test_the_model_part_is_enough_to_make_the_same_learner(tmp_path: Path) -> None:
    model = checkpoint.read(checkpoint.write(tmp_path, example())).model
    assert [task.name for task in model.tasks] == [name for name, _ in model.state["meta"]["tasks"]]
    assert model.tasks[0].classes == ("cat", "dog")
    settings = registry.config_class(model.learner)(**model.settings)
    again = registry.make(model.learner, model.spec, settings, seed=model.seed)
    again.load_state_dict(model.state)
    assert differences(again, teach(Finetune(SPLIT))) == []


@pytest.mark.parametrize("damage", ["a tensor is missing", "a shape is another", "a type is another", "no tasks"])
def test_a_learner_that_refuses_a_state_stays_as_it_was(damage: str) -> None:
    learner, same = teach(Scale(SPLIT, seed=1)), teach(Scale(SPLIT, seed=1))
    state = teach(Scale(SPLIT, seed=2), tasks=5, classes=4).state_dict()
    tensors = state["tensors"]
    if damage == "a tensor is missing":
        del tensors["discriminator.hidden.weight"]
    elif damage == "a shape is another":
        tensors["memory.x"] = tensors["memory.x"][:, :, :3]
    elif damage == "a type is another":
        tensors["rng"] = tensors["rng"].float()
    else:
        del state["meta"]["tasks"]
    with pytest.raises(CheckpointError):
        learner.load_state_dict(state)
    assert differences(learner, same) == []
    assert differences(teach(learner, first=3), teach(same, first=3)) == []
