"""A curve in a line of text."""

from __future__ import annotations

from collections.abc import Sequence

_BLOCKS = "▁▂▃▄▅▆▇█"
_MISSING = "·"


def sparkline(values: Sequence[float | None], low: float, high: float, *, longest: int = 30) -> str:
    """A block a value, its height between `low` and `high`; a dot where there is none; long curves are thinned."""
    if len(values) > longest:
        values = [values[round(at * (len(values) - 1) / (longest - 1))] for at in range(longest)]
    return "".join(_MISSING if value is None else _block(value, low, high) for value in values)


def _block(value: float, low: float, high: float) -> str:
    share = (value - low) / (high - low) if high > low else 1.0
    return _BLOCKS[min(len(_BLOCKS) - 1, max(0, int(share * len(_BLOCKS))))]
