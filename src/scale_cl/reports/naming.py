"""Names for people, for files and for anchors."""

from __future__ import annotations

import json
from collections.abc import Iterable

from scale_cl.reports.collection import printable


def assignment(name: str, value: object) -> str:
    """`memory=100`, with JSON's words for values."""
    return printable(f"{name}={value if isinstance(value, str) else json.dumps(value)}")


def slug(text: str) -> str:
    """Letters, digits and dashes only, for names of files and anchors."""
    kept = "".join(c if c.isascii() and c.isalnum() else "-" for c in text.lower())
    return "-".join(part for part in kept.split("-") if part) or "x"


def distinct(texts: Iterable[str]) -> list[str]:
    """A slug for every text, numbered where two would be the same."""
    taken: list[str] = []
    for text in texts:
        wanted = candidate = slug(text)
        number = 1
        while candidate in taken:
            number += 1
            candidate = f"{wanted}-{number}"
        taken.append(candidate)
    return taken
