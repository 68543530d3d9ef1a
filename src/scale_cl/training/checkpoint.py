"""A checkpoint on disk: a learner, whole, and how far it is in its stream.

Two files, `at-00003-00000120.safetensors` with the tensors and `at-00003-00000120.json` with everything else (3 tasks
done, 120 steps into the next). The JSON is written last and holds the checksum of the tensors and one of itself, so
that a checkpoint is there whole or not at all. One that is replaced is there, the old or the new, at every moment: the
new tensors have a name of their own until the JSON speaks of them. Reading runs no code of the file's.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import safetensors.torch

import scale_cl
from scale_cl import files
from scale_cl.errors import CheckpointError
from scale_cl.json_format import Format
from scale_cl.learners import State

SCHEMA = 1
MIGRATIONS: dict[int, Callable[[dict[str, Any]], dict[str, Any]]] = {}  # from this schema to the next
_NEXT = ".next.safetensors"  # tensors that are to replace those of a checkpoint that is there
_NAME = re.compile(r"(at-(\d{5,})-(\d{8,}))\.(json|safetensors|next\.safetensors)")
_LARGEST_JSON = 64 << 20  # bytes
T = TypeVar("T")
_log = logging.getLogger("scale_cl")


class NewerCheckpointError(CheckpointError):
    """A checkpoint is of a newer version: it is good, and no older one may take its place."""


class UnusableCheckpointError(CheckpointError):
    """None of a seed's checkpoints can be used."""


class Position(NamedTuple):
    """How far: stages (tasks) that are done and tested, and steps made in the next one."""

    stage: int
    step: int


@dataclass(frozen=True)
class Checkpoint:
    """All that a seed needs to go on."""

    stream: str
    learner: str
    seed: int
    config: dict[str, Any]
    data: str  # fingerprint of the stream
    position: Position
    matrix: list[list[float | None]]
    seconds_train: float
    seconds_eval: float
    seconds_wall: float
    state: State


def name_of(position: Position) -> str:
    """Name of a checkpoint's files, without the ending; names sort as positions do."""
    return f"at-{position.stage:05}-{position.step:08}"


def write(folder: Path, checkpoint: Checkpoint) -> Path:
    """Put a checkpoint into `folder`, whole or not at all; returns the path of its JSON."""
    tensors = {name: t.detach().cpu().contiguous() for name, t in checkpoint.state["tensors"].items()}
    data = safetensors.torch.save(tensors)
    content = {field.name: getattr(checkpoint, field.name) for field in fields(checkpoint) if field.name != "state"}
    content = {
        "schema": SCHEMA,
        "kind": "checkpoint",
        "scale_cl": scale_cl.__version__,
        **content,
        "position": list(checkpoint.position),
        "meta": checkpoint.state["meta"],
        "tensors": {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()},
    }
    path = folder / f"{name_of(checkpoint.position)}.json"
    tensors_path = path.with_suffix(_NEXT if path.exists() else ".safetensors")
    files.write_bytes(tensors_path, data)
    files.write_json(path, {**content, "checksum": checksum(content)})  # from here on the new one is the one
    if tensors_path.name.endswith(_NEXT):
        files.put_in_place(tensors_path, path.with_suffix(".safetensors"))
    return path


def checksum(content: dict[str, Any]) -> str:
    """SHA-256 of JSON content, whatever its order and spacing."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def found(folder: Path) -> list[Path]:
    """The JSON files of the checkpoints in `folder`, the newest first; whether they are good is for `read` to say."""
    try:
        inside = sorted(p for p in folder.iterdir() if _NAME.fullmatch(p.name))
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise CheckpointError(f"{folder} cannot be read: {error.strerror}") from None
    return sorted((p for p in inside if p.suffix == ".json"), key=_named_position, reverse=True)


def newest_good(folder: Path, use: Callable[[Path, Checkpoint], T], *, warn: bool = True) -> T:
    """What `use` returns for the newest checkpoint in `folder` that can be read and that it accepts.

    A checkpoint that is damaged, or that `use` refuses with a CheckpointError, is passed over for the one before it,
    with a warning. One of a newer version is not, because continuing from an older one would overwrite it.
    """
    paths = found(folder)
    refused = CheckpointError(f"{folder} holds no checkpoint")
    for path in paths:
        try:
            return use(path, read(path))
        except NewerCheckpointError:
            raise
        except CheckpointError as error:
            refused = error
            if warn:
                _log.warning("scale-cl: warning: checkpoint refused, trying the one before: %s", error)
    if not paths:
        raise refused
    raise UnusableCheckpointError(f"no checkpoint of {len(paths)} in {folder} can be used, the last because: {refused}")


def keep_newest(folder: Path, count: int) -> None:
    """Remove all but the newest `count` checkpoints, and whatever a killed writer has left."""
    keep_only(folder, found(folder)[:count])


def keep_only(folder: Path, paths: Sequence[Path]) -> None:
    """Remove all checkpoints but those whose JSON is at one of `paths`, and whatever a killed writer has left."""
    kept = {path.stem for path in paths}
    for path in sorted(folder.iterdir()):  # .json comes before .safetensors: a checkpoint loses its head first
        ours = _NAME.fullmatch(path.name)
        if (ours and ours[1] not in kept) or (path.name.startswith(".at-") and path.name.endswith(".tmp")):
            path.unlink(missing_ok=True)


def read(path: Path) -> Checkpoint:
    """Read the checkpoint whose JSON is at `path`; CheckpointError if it is missing, damaged, foreign or newer."""
    content = _content(path)
    try:
        position = Position(*_whole_numbers(content["position"], 2))
        size, digest = content["tensors"]["bytes"], content["tensors"]["sha256"]
        matrix = _checked_matrix(content["matrix"])
        plain = {
            "stream": _typed(content, "stream", str),
            "learner": _typed(content, "learner", str),
            "seed": _typed(content, "seed", int),
            "config": _typed(content, "config", dict),
            "data": _typed(content, "data", str),
            "seconds_train": _seconds(content["seconds_train"]),
            "seconds_eval": _seconds(content["seconds_eval"]),
            "seconds_wall": _seconds(content["seconds_wall"]),
        }
        meta = _typed(content, "meta", dict)
    except KeyError as error:
        raise CheckpointError(f"{path} is damaged: {error.args[0]!r} is missing") from None
    except (ValueError, TypeError, OverflowError) as error:
        raise CheckpointError(f"{path} is damaged: {error}") from None
    if name_of(position) != path.stem:
        raise CheckpointError(f"{path} is foreign: it says that it is {name_of(position)}")
    try:
        tensors = _tensors(path.with_suffix(".safetensors"), size, digest)
    except CheckpointError:
        if not path.with_suffix(_NEXT).exists():
            raise
        tensors = _tensors(path.with_suffix(_NEXT), size, digest)  # a writer was killed before it put them in place
    return Checkpoint(**plain, position=position, matrix=matrix, state={"tensors": tensors, "meta": meta})


def _content(path: Path) -> dict[str, Any]:
    """The JSON, checked against its own checksum and brought to this version's schema."""
    expected = Format("a checkpoint", "checkpoint", SCHEMA, CheckpointError, _LARGEST_JSON, newer=NewerCheckpointError)
    content = expected.read(path)
    schema = content["schema"]
    stored = content.pop("checksum", None)
    try:
        right = stored == checksum(content)
    except (ValueError, RecursionError):  # NaN, which Python's reader lets pass
        right = False
    if not right:
        raise CheckpointError(f"{path} is damaged: its checksum is another")
    for older in range(schema, SCHEMA):
        content = MIGRATIONS[older](content)
    return content


def _tensors(path: Path, size: object, digest: object) -> dict[str, Any]:
    try:
        actual = path.stat().st_size
        if actual != size:
            raise CheckpointError(f"{path} is damaged: it has {actual} bytes, expected {size}")
        data = path.read_bytes()
    except FileNotFoundError:
        raise CheckpointError(f"{path} does not exist, but its checkpoint's other half does") from None
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from None
    if hashlib.sha256(data).hexdigest() != digest:
        raise CheckpointError(f"{path} is damaged: its checksum is another")
    try:
        tensors: dict[str, Any] = safetensors.torch.load(data)
    except Exception as error:  # of many kinds; the file has the right checksum, so it was made wrong
        reason = " ".join(str(error).split())[:200]
        raise CheckpointError(f"{path} is not a safetensors file: {reason}") from None
    return tensors


def _named_position(path: Path) -> tuple[int, int]:
    match = _NAME.fullmatch(path.name)
    assert match
    return int(match[2]), int(match[3])


def _typed(content: dict[str, Any], key: str, kind: type) -> Any:
    value = content[key]
    if type(value) is not kind:
        raise ValueError(f"{key!r} is {str(value)[:40]!r}, which is not of type {kind.__name__}")
    return value


def _whole_numbers(values: Any, count: int) -> list[int]:
    if not isinstance(values, list) or len(values) != count or any(type(v) is not int or v < 0 for v in values):
        raise ValueError(f"{str(values)[:40]!r} is not a list of {count} whole numbers")
    return values


def _seconds(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        raise ValueError(f"{str(value)[:40]!r} is not a number of seconds")
    return float(value)


def _checked_matrix(matrix: Any) -> list[list[float | None]]:
    size = len(matrix) if isinstance(matrix, list) else 0
    if size == 0 or any(not isinstance(row, list) or len(row) != size for row in matrix):
        raise ValueError("the matrix is not square")
    for value in (v for row in matrix for v in row if v is not None):
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 100:
            raise ValueError(f"the matrix holds {str(value)[:40]!r}, which is not a percentage")
    return [list(row) for row in matrix]
