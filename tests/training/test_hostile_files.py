"""Checkpoints, notes, configs and results made by a fuzzer: nothing comes out but this package's own errors."""

from __future__ import annotations

import contextlib
import hashlib
import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scale_cl import results
from scale_cl.errors import ScaleClError
from scale_cl.learners import Scale, State
from scale_cl.results import RunResult, SeedResult
from scale_cl.streams import TaskInfo
from scale_cl.training import checkpoint
from scale_cl.training.config import resolve
from scale_cl.training.run_directory import NOTE_NAME, RunDirectory, RunRequest
from tests.learners.sameness import differences
from tests.learners.tiny import SPLIT, batch, teach
from tests.training.test_checkpoint import example

plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
EXAMPLE = example()
many = settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
soaked = settings(max_examples=2000, suppress_health_check=[HealthCheck.function_scoped_fixture])


def altered(text: bytes, at: int, piece: bytes) -> bytes:
    """`text` with a piece of it replaced."""
    at %= len(text) + 1
    return text[:at] + piece + text[at + len(piece) :]


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


def check_checkpoint_bytes(folder: Path, at: int, piece: bytes, half: str) -> None:
    path = checkpoint.write(folder, EXAMPLE)
    target = path.with_suffix(half)
    target.write_bytes(altered(target.read_bytes(), at, piece))
    with contextlib.suppress(ScaleClError):
        checkpoint.read(path)


def check_checkpoint_content(folder: Path, data: st.DataObject) -> None:
    """Content changed at will, by someone who knows how to make the checksum right."""
    path = checkpoint.write(folder, EXAMPLE)
    content = json.loads(path.read_text())
    del content["checksum"]
    content = put(content, data.draw(st.sampled_from(paths_in(content))), data.draw(plain))
    with contextlib.suppress(ValueError):
        content["checksum"] = checkpoint.checksum(content)
    path.write_text(json.dumps(content))
    with contextlib.suppress(ScaleClError):
        checkpoint.read(path)


def check_tensors(folder: Path, at: int, piece: bytes) -> None:
    path = checkpoint.write(folder, EXAMPLE)
    tensors = path.with_suffix(".safetensors")
    data = altered(tensors.read_bytes(), at % 3000, piece)
    tensors.write_bytes(data)
    content = json.loads(path.read_text())
    del content["checksum"]
    content["model"]["tensors"] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    path.write_text(json.dumps({**content, "checksum": checkpoint.checksum(content)}))
    with contextlib.suppress(ScaleClError):
        checkpoint.read(path)


def check_note(folder: Path, data: st.DataObject) -> None:
    RunDirectory(folder).begin(RunRequest(resolve(), None, ["run"]), resume=False)
    path = folder / NOTE_NAME
    content = json.loads(path.read_text())
    content = put(content, data.draw(st.sampled_from(paths_in(content))), data.draw(plain))
    path.write_text(json.dumps(content))
    with contextlib.suppress(ScaleClError):
        RunDirectory(folder).request()


def check_config(folder: Path, text: str) -> None:
    for name in ("c.yaml", "c.json"):
        (folder / name).write_text(text, encoding="utf-8", errors="replace")
        with contextlib.suppress(ScaleClError):
            resolve(file=folder / name)


def check_result(folder: Path, data: st.DataObject) -> None:
    seed = SeedResult("digits", "er", 0, {"run": {}}, ["a", "b"], [[50.0, None], [25.0, 75.0]], 1.0, 1.0)
    path = RunResult((seed,), {"torch": "x"}, 2.0).write(folder)
    content = json.loads(path.read_text())
    content = put(content, data.draw(st.sampled_from(paths_in(content))), data.draw(plain))
    path.write_text(json.dumps(content))
    with contextlib.suppress(ScaleClError):
        results.read(folder)


yaml_like = st.text(alphabet="abc019 :{}[],-#&*!|>'\"\n\t.%@`?~", max_size=60)
config_text = yaml_like | st.builds(lambda x: json.dumps({"run": x, "learner": x}), plain) | st.text(max_size=40)
halves = st.sampled_from([".json", ".safetensors"])


@many
@given(st.integers(0, 1 << 20), st.binary(max_size=12), halves)
def test_a_checkpoint_with_other_bytes(tmp_path: Path, at: int, piece: bytes, half: str) -> None:
    check_checkpoint_bytes(tmp_path, at, piece, half)


@many
@given(st.data())
def test_a_checkpoint_with_other_content(tmp_path: Path, data: st.DataObject) -> None:
    check_checkpoint_content(tmp_path, data)


@many
@given(st.integers(0, 1 << 20), st.binary(max_size=12))
def test_tensors_with_another_header(tmp_path: Path, at: int, piece: bytes) -> None:
    check_tensors(tmp_path, at, piece)


@many
@given(st.data())
def test_a_note_with_other_content(tmp_path: Path, data: st.DataObject) -> None:
    check_note(tmp_path, data)


@many
@given(config_text)
def test_a_config_of_any_text(tmp_path: Path, text: str) -> None:
    check_config(tmp_path, text)


@many
@given(st.data())
def test_a_result_with_other_content(tmp_path: Path, data: st.DataObject) -> None:
    check_result(tmp_path, data)


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


@many
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


@pytest.mark.soak
@soaked
@given(st.data())
def test_thousands_of_each(tmp_path: Path, data: st.DataObject) -> None:
    at, piece = data.draw(st.integers(0, 1 << 20)), data.draw(st.binary(max_size=12))
    check_checkpoint_bytes(tmp_path, at, piece, data.draw(halves))
    check_checkpoint_content(tmp_path, data)
    check_tensors(tmp_path, at, piece)
    check_note(tmp_path, data)
    check_config(tmp_path, data.draw(config_text))
    check_result(tmp_path, data)


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
