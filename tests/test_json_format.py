"""The three kinds of JSON files are read in the same way: missing, damaged, foreign, newer and oversized are told."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from scale_cl import results
from scale_cl.errors import CheckpointError, ResultError, ScaleClError
from scale_cl.json_format import Format, parsed
from scale_cl.training import checkpoint
from scale_cl.training.config import resolve
from scale_cl.training.run_directory import NOTE_NAME, RunDirectory, RunRequest
from tests.test_results import run_result
from tests.training.test_checkpoint import example


@dataclass(frozen=True)
class Kind:
    """One of the package's files: how it is written and read, and what it is called."""

    write: Callable[[Path], Path]
    read: Callable[[Path], object]
    what: str
    error: type[ScaleClError]
    same: Callable[[Any], bool]  # what was read is what was written


def note(folder: Path) -> Path:
    RunDirectory(folder).begin(RunRequest(resolve(), None, ["run"]), resume=False)
    return folder / NOTE_NAME


KINDS = {
    "result": Kind(
        lambda folder: run_result().write(folder),
        results.read,
        "a result",
        ResultError,
        lambda read: read == run_result(),
    ),
    "checkpoint": Kind(
        lambda folder: checkpoint.write(folder, example()),
        checkpoint.read,
        "a checkpoint",
        CheckpointError,
        lambda read: read.position == example().position,
    ),
    "note": Kind(
        note,
        lambda path: RunDirectory(path.parent).request(),
        "the note of a run",
        CheckpointError,
        lambda read: read.config == resolve(),
    ),
}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Kind:
    return KINDS[request.param]


def refused(kind: Kind, path: Path) -> str:
    with pytest.raises(kind.error) as caught:
        kind.read(path)
    return str(caught.value)


def test_what_was_written_is_read(kind: Kind, tmp_path: Path) -> None:
    assert kind.same(kind.read(kind.write(tmp_path)))


@pytest.mark.parametrize(
    "content",
    [[], 5, {}, {"schema": 1}, {"schema": "1"}, {"schema": True}, {"schema": 0}, {"kind": None}, {"kind": ["run"]}],
)
def test_a_foreign_file_is_called_so(kind: Kind, content: Any, tmp_path: Path) -> None:
    path = kind.write(tmp_path)
    own = json.loads(path.read_text())
    changed = content if not isinstance(content, dict) or len(content) == 0 else {**own, **content}
    if content == {"schema": 1}:
        changed = content
    path.write_text(json.dumps(changed))
    assert refused(kind, path) == f"{path} is not {kind.what} of scale-cl: it has no schema version and kind"


def test_a_newer_file_is_refused_with_what_to_do(kind: Kind, tmp_path: Path) -> None:
    path = kind.write(tmp_path)
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, "schema": 99}))
    known = content["schema"]
    assert refused(kind, path) == f"{path} has schema 99, this version reads up to {known}: use a newer scale-cl"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "it is not JSON"),
        (b"{", "it is not JSON"),
        (b'{"schema": 1', "it is not JSON"),
        (b"\x80", "it is not UTF-8 text: byte 0"),
        (b"[" * 100_000, "it is nested too deeply"),
        (b"1" * 5000, "it holds a number of 5000 digits"),
        (b'{"x": ' + b"9" * 400 + b"}", "it holds a number of 400 digits"),
        (b"[NaN]", "it holds NaN, which is not a finite number"),
        (b"[1e999]", "it holds 1e999, which is not a finite number"),
        (b'["\\ud800"]', "it holds half a character (a lone surrogate)"),
    ],
)
def test_what_is_no_json_or_cannot_be_written_again_is_damaged(
    kind: Kind, content: bytes, reason: str, tmp_path: Path
) -> None:
    path = kind.write(tmp_path)
    path.write_bytes(content)
    assert refused(kind, path) == f"{path} is damaged: {reason}"


def test_a_character_of_two_surrogates_and_numbers_of_64_bits_are_read() -> None:
    assert parsed(rb'["\ud83d\ude00", -9223372036854775808, 1e-400]') == ["\N{GRINNING FACE}", -(2**63), 0.0]


def test_what_cannot_be_read_at_all_is_said(kind: Kind, tmp_path: Path) -> None:
    path = kind.write(tmp_path)
    path.unlink()
    assert " does not exist" in refused(kind, path) or "holds no unfinished run" in refused(kind, path)
    os.mkfifo(path)  # nobody would ever write to it
    assert refused(kind, path) == f"{path} cannot be read: it is not a plain file"
    path.unlink()
    (path / "x").mkdir(parents=True)
    if kind.what == "a result":
        assert refused(kind, path).endswith("result.json does not exist; a finished run holds a result.json")
    else:
        assert refused(kind, path) == f"{path} cannot be read: Is a directory"


def test_a_file_without_end_is_not_read(kind: Kind, tmp_path: Path) -> None:
    path = kind.write(tmp_path)
    with path.open("r+b") as file:
        file.truncate(1 << 40)  # a hole: no disk is taken
    assert f"bytes: it is not {kind.what}" in refused(kind, path)


def test_a_kind_of_the_same_family_is_told_by_its_name(tmp_path: Path) -> None:
    expected = Format("a result", "run", 1, ResultError, 1000, siblings=("run", "seed"))
    (tmp_path / "a").write_text('{"schema": 1, "kind": "seed"}')
    with pytest.raises(ResultError, match="holds a 'seed', expected a 'run'"):
        expected.read(tmp_path / "a")
    assert expected.checked(tmp_path, {"schema": 1, "kind": "run"}) == {"schema": 1, "kind": "run"}
