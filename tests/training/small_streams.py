"""Streams of a second or so."""

from __future__ import annotations

import torch

from scale_cl import streams
from scale_cl.streams import Stream


def few_digits(seed: int = 0, tasks: int = 3, train: int = 60) -> Stream:
    """Permuted digits, fewer than the catalog's."""
    return streams.permuted(streams.load_arrays("digits"), tasks=tasks, train=train, test=50, seed=seed, name="few")


def colours(tasks: int = 2, train: int = 24) -> Stream:
    """Small random colour images, for the ResNet."""
    draw = torch.Generator().manual_seed(0)
    parts = []
    for _ in range(tasks):
        x = torch.randint(0, 256, (train + 20, 3, 16, 16), dtype=torch.uint8, generator=draw)
        y = torch.arange(train + 20) % 2
        parts.append((x[:train], y[:train], x[train:], y[train:]))
    return streams.from_arrays(parts, scenario="task", name="colours")
