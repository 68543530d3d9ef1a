"""Tables as Markdown."""

from __future__ import annotations

import re

from scale_cl.reports.collection import Gap
from scale_cl.reports.sections import Section
from scale_cl.reports.sources import Source
from scale_cl.reports.table import Cell, Table

_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~&$])")


def escape(text: str) -> str:
    """Text that Markdown shows as it is."""
    return _SPECIAL.sub(r"\\\1", " ".join(text.split()))


def tables_md(
    title: str,
    overview: Table | None,
    parts: list[tuple[Section, list[Table]]],
    sources: list[Source],
    gaps: list[Gap],
) -> str:
    """The whole of `tables.md`."""
    lines = [f"# Results: {escape(title)}", ""]
    if gaps:
        lines += ["## Gaps", "", *(f"- {escape(gap.name)}: {escape(gap.reason)}" for gap in gaps), ""]
    if overview is not None:
        lines += [f"## {escape(overview.title)}", "", *table_lines(overview), "", escape(overview.note), ""]
    for section, tables in parts:
        lines += [f"## {escape(section.title)}", ""]
        for table in tables:
            lines += [f"### {escape(table.title)}", "", *table_lines(table), ""]
            if table.note:
                lines += [escape(table.note), ""]
    lines += ["## What made these numbers", ""]
    for source in sources:
        lines += [
            f"- {escape(source.title)}",
            *(f"  - {escape(name)}: {escape(value)}" for name, value in source.facts),
        ]
    return "\n".join(lines).rstrip() + "\n"


def table_lines(table: Table) -> list[str]:
    """A pipe table, a line a row."""
    heads = [escape(column.title) for column in table.columns]
    rules = ["---:" if column.numeric else "---" for column in table.columns]
    return [_line(heads), _line(rules), *(_line([_cell(cell) for cell in row]) for row in table.rows)]


def _cell(cell: Cell) -> str:
    text = escape(cell.text)
    return f"**{text}**" if cell.best else text


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"
