"""Small problems on which estimators are tried."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Pair = tuple[NDArray[Any], NDArray[Any]]


def blobs(names: tuple[str, ...], *, seed: int = 0, n: int = 120, width: int = 6, spread: float = 0.4) -> Pair:
    """Clouds of points, one for each label, each task's seed its own centres."""
    random = np.random.default_rng(seed)
    centres = random.normal(size=(len(names), width)) * 2
    which = np.arange(n) % len(names)
    return centres[which] + spread * random.normal(size=(n, width)), np.array(names)[which]


def pictures(*, seed: int = 0, n: int = 40, channels: int = 3) -> Pair:
    """Images [n, 8, 8, channels] that are bright above or below."""
    random = np.random.default_rng(seed)
    which = np.arange(n) % 2
    pixels = random.integers(0, 60, (n, 8, 8, channels))
    for i in range(n):
        rows = slice(0, 4) if which[i] == 0 else slice(4, 8)
        pixels[i, rows] += 150
    return pixels.astype(np.uint8), np.array(["above", "below"])[which]
