"""States of a learner with other content, which are taken whole or not at all; and files with code in them."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import scale_cl
from scale_cl.errors import CheckpointError, ScaleClError
from scale_cl.export.export_task import learner_of_run
from scale_cl.learners import Scale, State
from scale_cl.streams import TaskInfo
from scale_cl.training import checkpoint
from scale_cl.training.config import resolve
from tests.learners.sameness import differences
from tests.learners.tiny import SPLIT, batch, teach
from tests.training.allocations import peak_bytes
from tests.training.test_checkpoint import example

plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


def paths_in(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The ways to all values inside JSON content."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path] * bool(path) + [p for key, inner in inside for p in paths_in(inner, (*path, key))]


def put(content: Any, path: tuple[Any, ...], value: Any) -> Any:
    """A copy of JSON content with another value at `path`."""
    content = json.loads(json.dumps(content))
    inner = content
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return content


def hostile(state: State, data: st.DataObject) -> State:
    """A state with one tensor of other values, shape or type, or other plain values."""
    tensors, meta = dict(state["tensors"]), state["meta"]
    how = data.draw(st.sampled_from(["missing", "shape", "type", "values", "meta"]))
    name = data.draw(st.sampled_from(sorted(tensors)))
    if how == "missing":
        del tensors[name]
    elif how == "shape":
        tensors[name] = tensors[name].flatten()[: data.draw(st.integers(0, 5))]
    elif how == "type":
        tensors[name] = tensors[name].double()
    elif how == "values" and not tensors[name].is_floating_point():
        tensors[name] = tensors[name] * 0 + data.draw(st.integers(0, 100))
    else:
        meta = put(meta, data.draw(st.sampled_from(paths_in(meta))), data.draw(plain))
    return {"tensors": tensors, "meta": meta}


@cache
def taught(seed: int, tasks: int) -> Scale:
    """A learner that nobody changes."""
    learner = Scale(SPLIT, seed=seed)
    teach(learner, tasks=tasks)
    return learner


@settings(max_examples=60)
@given(st.data())
def test_a_state_of_other_content_is_taken_whole_or_not_at_all(data: st.DataObject) -> None:
    learner = teach(Scale(SPLIT, seed=2), tasks=1)
    try:
        learner.load_state_dict(hostile(taught(1, 2).state_dict(), data))
    except ScaleClError:
        assert differences(learner, taught(2, 1)) == []
        return
    with contextlib.suppress(ScaleClError):
        learner.begin_task(TaskInfo("next", 3))
        learner.observe(*batch(SPLIT, 4))


def test_nothing_in_a_checkpoint_is_run(tmp_path: Path) -> None:
    import pickle

    class Bomb:
        def __reduce__(self) -> tuple[Any, tuple[str]]:
            return Path.touch, (str(tmp_path / "exploded"),)

    path = checkpoint.write(tmp_path, example())
    data = pickle.dumps(Bomb())
    path.with_suffix(".safetensors").write_bytes(data)
    content = json.loads(path.read_text())
    del content["checksum"]
    content["model"]["tensors"] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    path.write_text(json.dumps({**content, "checksum": checkpoint.checksum(content)}))
    with pytest.raises(ScaleClError, match="is not a safetensors file"):
        checkpoint.read(path)
    assert not (tmp_path / "exploded").exists()


@pytest.mark.parametrize(
    ("change", "part"),
    [
        (lambda meta: meta["tasks"][0].__setitem__(1, 2**31 - 1), "classes and heads of"),
        (lambda meta: meta["tasks"].extend([f"t{i}", 2] for i in range(10**5)), "100002 tasks"),
        (lambda meta: meta["shapes"].update(x=[2**40]), "the shapes of its modules are not those of its tasks"),
    ],
)
def test_a_state_that_claims_more_than_it_holds_is_refused_before_anything_is_allocated(
    change: Callable[[Any], object], part: str
) -> None:
    state, learner = taught(1, 2).state_dict(), teach(Scale(SPLIT, seed=2), tasks=1)
    change(state["meta"])

    def load() -> None:
        with pytest.raises(CheckpointError, match=part):
            learner.load_state_dict(state)

    assert peak_bytes(load) < 64 << 20
    assert differences(learner, taught(2, 1)) == []


def test_the_model_of_a_run_is_compared_with_its_settings_before_it_is_made(tmp_path: Path) -> None:
    tiny = ("memory=4", "replay=4", "backbone=mlp-8-8", "stream.tasks=1", "run.keep_state=true")
    scale_cl.run(resolve(learner="er", assignments=tiny), out=tmp_path)
    assert learner_of_run(tmp_path).learner.tasks
    (path,) = checkpoint.found(tmp_path / "checkpoints" / "seed-0")
    for setting, value in (("memory", 10**9), ("backbone", "mlp-99999-99999")):
        content = json.loads(path.read_text())
        content["model"]["settings"][setting] = value
        del content["checksum"]
        path.write_text(json.dumps({**content, "checksum": checkpoint.checksum(content)}))
        with pytest.raises(CheckpointError, match=r"state does not fit its settings|keeps 1000000000 per task"):
            learner_of_run(tmp_path)


def test_the_tensors_of_a_checkpoint_are_a_plain_file(tmp_path: Path) -> None:
    path = checkpoint.write(tmp_path, example())
    path.with_suffix(".safetensors").unlink()
    os.mkfifo(path.with_suffix(".safetensors"))
    with pytest.raises(CheckpointError, match="it is not a plain file"):
        checkpoint.read(path)
