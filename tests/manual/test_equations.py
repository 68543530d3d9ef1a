"""The page that leads from the paper to the code: its targets exist and name the equation they are to hold."""

from __future__ import annotations

import importlib
import re
from functools import reduce
from types import ModuleType
from typing import Any, NamedTuple

import pytest

from tests.manual.blocks import DOCS

_ROW = re.compile(r"^\| (?P<label>[^|]+) \| \[`(?P<target>[\w.]+)`\]\((?P<link>[^)]+)\) \|", re.M)
_MENTION = re.compile(r"[Ee]q(?:uation(?P<plural>s)?)? (?P<numbers>\d(?:(?:, | and | to )\d)*)")


class Row(NamedTuple):
    label: str
    target: str
    link: str

    @property
    def number(self) -> int:
        return int(self.label.partition(":")[0])


def rows(section: str) -> list[Row]:
    text = (DOCS / "equations.md").read_text(encoding="utf-8").partition(f"## {section}\n")[2].partition("\n## ")[0]
    found = [Row(**match.groupdict()) for match in _ROW.finditer(text)]
    lines = [line for line in text.splitlines() if line.startswith("| ")][1:]  # without the head
    assert len(found) == len(lines) > 0, f"a row of {section} names no function"
    return found


def thing(target: str) -> tuple[ModuleType, Any]:
    """What a dotted name below `scale_cl` stands for, and the module that it is in."""
    parts = ["scale_cl", *target.split(".")]
    for length in range(len(parts), 0, -1):
        try:
            module = importlib.import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        return module, reduce(getattr, parts[length:], module)
    raise AssertionError(target)


def numbers_in(docstring: str) -> set[int]:
    """The equations that a docstring names, as "equation 3", "equations 3 and 8" or "equations 4 to 6"."""
    found: set[int] = set()
    for mention in _MENTION.finditer(docstring):
        numbers = mention["numbers"]
        found |= {int(n) for n in re.findall(r"\d", numbers)}
        for first, last in re.findall(r"(\d) to (\d)", numbers):
            found |= set(range(int(first), int(last) + 1))
    return found


def test_mentions_are_read() -> None:
    assert numbers_in("Equation 3: a sum; equations 5 and 6, then equations 1, 2 and 8") == {1, 2, 3, 5, 6, 8}
    assert numbers_in("equations 4 to 6") == {4, 5, 6}
    assert numbers_in("Algorithm 1; 7 outputs") == set()


def test_the_page_has_every_equation_and_every_line() -> None:
    assert {row.number for row in rows("Equations")} == set(range(1, 9))
    assert [row.number for row in rows("Algorithm 1")] == list(range(1, 11))


@pytest.mark.parametrize("section", ["Equations", "Algorithm 1", "Symbols"])
def test_every_target_exists_in_the_file_that_is_linked(section: str) -> None:
    for row in rows(section):
        module, target = thing(row.target)
        assert callable(target), row
        assert (DOCS / row.link).resolve().samefile(str(module.__file__)), row


@pytest.mark.parametrize("row", rows("Equations"), ids=lambda row: row.label)
def test_the_docstring_of_the_function_has_the_number_of_the_equation(row: Row) -> None:
    assert row.number in numbers_in(thing(row.target)[1].__doc__), row.target


def test_the_write_to_the_memory_is_found_by_the_algorithm() -> None:
    last = rows("Algorithm 1")[-1]
    assert last.target.endswith("EpisodicMemory.write")
    assert "algorithm 1" in thing(last.target)[1].__doc__
    assert "Algorithm 1" in thing("learners.scale.Scale.update")[1].__doc__
