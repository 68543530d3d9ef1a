"""A trained estimator as one safetensors file, with everything that is no tensor as JSON in its header.

One file is there whole or not at all; its checksum covers both. Reading runs no code of the file's.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
from torch import Tensor

import scale_cl
from scale_cl import files
from scale_cl.errors import CheckpointError

SCHEMA = 1
_KEY = "scale_cl_estimator"


@dataclass(frozen=True)
class Stored:
    """What a file holds."""

    content: dict[str, Any]
    tensors: dict[str, Tensor]


def write(path: str | os.PathLike[str], stored: Stored) -> None:
    """Write the file, whole or not at all."""
    tensors = {name: t.detach().cpu().contiguous() for name, t in stored.tensors.items()}
    content = {"schema": SCHEMA, "scale_cl": scale_cl.__version__, **stored.content}
    content["sha256"] = _checksum(content, tensors)
    header = json.dumps(content, allow_nan=False)
    files.write_bytes(path, safetensors.torch.save(tensors, metadata={_KEY: header}))


def read(path: str | os.PathLike[str]) -> Stored:
    """Read what `write` wrote; CheckpointError if it is missing, damaged, foreign or newer."""
    file = Path(path)
    if file.is_dir():
        raise CheckpointError(_about_directory(file))
    if not file.is_file():
        raise CheckpointError(f"{file} does not exist; give the file that save() wrote")
    try:
        with safetensors.safe_open(file, framework="pt") as opened:
            header = (opened.metadata() or {}).get(_KEY)
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 - it is no dict
    except (safetensors.SafetensorError, OSError, ValueError) as error:
        reason = " ".join(str(error).split())[:200]
        raise CheckpointError(f"{file} is damaged or no safetensors file: {reason}") from None
    if header is None:
        raise CheckpointError(f"{file} was not written by an estimator of scale-cl")
    try:
        content = json.loads(header)
        schema = content["schema"]
        if not isinstance(schema, int) or schema < 1:
            raise ValueError("schema")
        if schema > SCHEMA:
            raise CheckpointError(
                f"{file} has schema {schema}, this version reads up to {SCHEMA}: use a newer scale-cl"
            )
        right = content.pop("sha256") == _checksum(content, tensors)
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(f"{file} is damaged: its header cannot be read") from None
    if not right:
        raise CheckpointError(f"{file} is damaged: its checksum is another")
    return Stored(content, tensors)


def _about_directory(directory: Path) -> str:
    text = f"{directory} is a directory; give the file that save() wrote"
    if any((directory / name).is_file() for name in ("result.json", "run.json")):
        text += " (it looks like a run's: `scale-cl export` and `scale-cl resume` take those)"
    return text


def _checksum(content: dict[str, Any], tensors: dict[str, Tensor]) -> str:
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
    digest = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        t = tensors[name]
        digest.update(f"{name} {t.dtype} {list(t.shape)}".encode())
        digest.update(t.contiguous().flatten().view(-1).numpy().tobytes())
    return digest.hexdigest()
