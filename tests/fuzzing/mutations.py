"""Mutations drawn by a seed: of bytes, of JSON content and of the header of a safetensors file."""

from __future__ import annotations

import copy
import json
from random import Random
from typing import Any

VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 7, 255, 256, 65_536, 5_000_000, 2**31, 2**63, -(2**63), 2**64, 10**400),
    *(0.0, -0.0, 0.5, 1e-300, 1e300, -1e300, 3e38, 1.5, 99.99),
    *("", " ", "a", "er", "scale", "0", "nan", "../..", "/dev/zero", "a\x00b", "\x1b[31m", "\u202e", "x" * 3000),
    *("digits", "folder:", "csv:", "resnet18", "mlp", "mlp-999999999-9", "[1, 2]", "1e9", "\ud800", "!!python/name:os"),
    *([], {}, [[]], [1, 2, 3], [None], {"a": 1}, [0] * 300),
)
PIECES = (b"", b"\x00", b"\xff", b"\xff\xff\xff\xff", b"\x00" * 8, b"\n", b"{", b"}", b'"', b",", b"-", b"9" * 40)


def mutated_bytes(data: bytes, draw: Random) -> bytes:
    """One to four changes of the bytes: single bits, pieces replaced, put in, cut out or repeated, or the end lost."""
    changed = bytearray(data)
    for _ in range(draw.choice((1, 1, 1, 2, 4))):
        at = draw.randrange(len(changed) + 1)
        long = draw.choice((1, 1, 2, 4, 8, 64))
        how = draw.randrange(7)
        if how == 0 and at < len(changed):
            changed[at] ^= 1 << draw.randrange(8)
        elif how == 1:
            changed[at : at + long] = draw.randbytes(long)
        elif how == 2:
            changed[at:at] = draw.choice(PIECES)
        elif how == 3:
            del changed[at : at + long]
        elif how == 4:
            changed[at:at] = changed[at : at + long] * draw.randrange(1, 5)
        elif how == 5:
            piece = draw.choice(PIECES)
            changed[at : at + len(piece)] = piece
        elif draw.random() < 0.3:
            del changed[at:]
    return bytes(changed)


def mutated_json(content: Any, draw: Random) -> Any:
    """A copy with one to three values replaced, nudged, removed, renamed, doubled or swapped."""
    content = json.loads(json.dumps(content))
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        inner, key = _place(content, draw)
        if inner is None:
            return copy.deepcopy(draw.choice(VALUES))
        how = draw.randrange(8)
        if how <= 2:
            inner[key] = copy.deepcopy(draw.choice(VALUES))  # further changes are of this one alone
        elif how == 3:
            inner[key] = _nudged(inner[key], draw)
        elif how == 4:
            del inner[key]
        elif how == 5 and isinstance(inner, dict):
            inner[draw.choice(("", "a", str(key) + "x", "x" * 300, "\x1b[2J"))] = inner.pop(key)
        elif how == 5:
            inner.insert(key, inner[key])
        elif how == 6:
            inner[key] = [inner[key]] * draw.choice((1, 2, 50))
        else:
            other, at = _place(content, draw)
            if other is not None:
                inner[key], other[at] = json.loads(json.dumps(other[at])), json.loads(json.dumps(inner[key]))
    return content


def _place(content: Any, draw: Random) -> tuple[Any, Any]:
    """A container in JSON content and one of its keys; None if there is none."""
    inner, key = None, None
    while isinstance(content, dict | list) and content and (inner is None or draw.random() < 0.8):
        inner, key = content, draw.choice(list(content)) if isinstance(content, dict) else draw.randrange(len(content))
        content = inner[key]
    return inner, key


def _nudged(value: Any, draw: Random) -> Any:
    """A value of the same type that is a little off."""
    if isinstance(value, bool) or value is None:
        return not value
    if isinstance(value, int):
        return value + draw.choice((-1, 1, 2, 100)) if draw.random() < 0.7 else -value
    if isinstance(value, float):
        return value * draw.choice((-1.0, 0.5, 1e6, 1e-6))
    if isinstance(value, str):
        return value[:-1] if draw.random() < 0.5 else value + draw.choice(("x", "\n", "\u00e9", "0"))
    return value[:-1] if isinstance(value, list) else {}


def mutated_tensors(data: bytes, draw: Random) -> bytes:
    """A safetensors file with other entries in its header, or other bytes in its tensors; the rest fits together."""
    size = int.from_bytes(data[:8], "little")
    header, body = json.loads(data[8 : 8 + size]), data[8 + size :]
    if draw.random() < 0.25:
        return data[: 8 + size] + mutated_bytes(body, draw)[: len(body)].ljust(len(body), b"\0")
    names = [name for name in header if name != "__metadata__"]
    name = draw.choice(names)
    entry = header[name]
    how = draw.randrange(5)
    if how == 0:
        del header[name]
    elif how == 1:
        header[draw.choice(names)], header[name] = entry, header[draw.choice(names)]
    elif how == 2:
        entry["dtype"] = draw.choice(("F32", "F64", "I64", "U8", "BOOL", "I32", "F16", "BF16", "X"))
    elif how == 3:
        entry["shape"] = draw.choice(([], [0], [-1], [5_000_000], entry["shape"][::-1], [1, *entry["shape"]], [2**62]))
    else:
        header[name] = mutated_json(entry, draw)
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + body
