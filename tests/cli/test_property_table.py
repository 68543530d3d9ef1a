"""`scale-cl list learners` prints the property table of the supplement."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from scale_cl.cli.catalog import property_lines
from scale_cl.learners import registry


def test_every_learner_has_a_line_with_its_ticks_and_its_size() -> None:
    lines = {line.split()[0]: line.split() for line in property_lines() if line}
    assert all(name in lines for name in registry.names())
    assert lines["scale"] == ["scale", "all", "-", "all", *("yes",) * 4, "-", "353,052", "+273", "1,140,891", "+1,030"]
    assert lines["acl"][1:9] == ["all", "needed", "all", "-", "yes", "yes", "-", "yes"]
    assert [name for name in registry.names() if lines[name][3] == "few"] == ["kiera", "adcn"]


def test_columns_stand_under_their_titles() -> None:
    title, *table = property_lines()[: 1 + len(registry.names())]
    column = title.index("task-specific")
    assert {line[column : column + 3].strip() for line in table} == {"yes", "-"}
    assert {len(line) for line in table} == {len(title)}


def test_what_differs_from_the_paper_is_marked_and_explained() -> None:
    lines = property_lines()
    marked = {line.split()[0] for line in lines if "*" in line and not line.startswith("*")}
    explained = {line.split()[1].rstrip(",") for line in lines if line.startswith("* ")}
    assert marked == explained == {"er", "mer", "gem"}


def test_the_list_of_learners_ends_with_the_table(command: Callable[..., Any]) -> None:
    finished = command("list", "learners")
    assert finished.code == 0
    assert finished.out.rstrip().endswith("\n".join(property_lines()))
