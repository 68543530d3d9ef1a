"""States of a learner with other content, which are taken whole or not at all; and files with code in them."""

from __future__ import annotations

import contextlib
import hashlib
import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scale_cl.errors import ScaleClError
from scale_cl.learners import Scale, State
from scale_cl.streams import TaskInfo
from scale_cl.training import checkpoint
from tests.learners.sameness import differences
from tests.learners.tiny import SPLIT, batch, teach
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
