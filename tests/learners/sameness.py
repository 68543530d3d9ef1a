"""Whether two learners are the same, bit for bit, in all that decides what they do from here on."""

from __future__ import annotations

import torch
from torch import Tensor

from scale_cl.learners import Learner, State

_LAYOUT = ("flat", "start", "width")  # where stored logits lie is no part of what they are


def differences(one: Learner, other: Learner) -> list[str]:
    """Names of what differs; empty if nothing does."""
    a, b = content(one.state_dict()), content(other.state_dict())
    names = sorted(a.keys() | b.keys())
    found = [n for n in names if n not in a or n not in b or not _equal(a[n], b[n])]
    return found + [n for n, value in one.state_dict()["meta"].items() if other.state_dict()["meta"].get(n) != value]


def content(state: State) -> dict[str, Tensor]:
    """The tensors of a state, with stored logits laid out row by row."""
    tensors = dict(state["tensors"])
    for name in [n for n in tensors if n.startswith("memory.") and n.endswith(".flat")]:
        prefix = name.removesuffix("flat")
        flat, start, width = (tensors.pop(prefix + part) for part in _LAYOUT)
        for row in width.nonzero().flatten().tolist():
            tensors[f"{prefix}{row}"] = flat[int(start[row]) :][: int(width[row])]
    return tensors


def _equal(a: Tensor, b: Tensor) -> bool:
    return a.dtype == b.dtype and torch.equal(a, b)
