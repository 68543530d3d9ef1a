"""The hook by which long work says how far it got."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Called now and then while something long goes on."""

    def __call__(self, done: int, total: int) -> None:
        """`done` of `total` pieces are done."""
