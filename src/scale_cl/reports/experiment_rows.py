"""Which rows of a section make which experiment of the paper: main table, memory, ablations, sensitivity."""

from __future__ import annotations

from scale_cl.reports import paper
from scale_cl.reports.rows import Row
from scale_cl.reports.sections import Section

OURS = "scale"
_LAMBDAS = ("lambda1", "lambda2", "lambda3")


def main_rows(section: Section) -> list[Row]:
    """Rows of the main table: all but those that belong to a memory, ablation or sensitivity experiment."""
    apart = [*ablation_rows(section).values()]
    apart += [row for row in sensitivity_rows(section).values() if row.differences]
    apart += [row for by_memory in memory_rows(section).values() for row in by_memory.values() if row.differences]
    kept = [row for row in section.rows if not any(row is other for other in apart)]
    return kept or list(section.rows)


def memory_rows(section: Section) -> dict[str, dict[int, Row]]:
    """Learners that were run with several sizes of memory and nothing else changed."""
    found: dict[str, dict[int, Row]] = {}
    for row in section.rows:
        size = row.setting("memory")
        if isinstance(size, int) and row.differences.keys() <= {"memory"}:
            found.setdefault(row.learner, {})[size] = row
    return {learner: dict(sorted(rows.items())) for learner, rows in found.items() if len(rows) > 1}


def ablation_rows(section: Section) -> dict[str, Row]:
    """SCALE with one component off, by the paper's letter."""
    found = {letter: section.find(OURS, **{field: False}) for letter, (field, _) in paper.ABLATIONS.items()}
    return {letter: row for letter, row in found.items() if row is not None}


def sensitivity_rows(section: Section) -> dict[tuple[float, float], Row]:
    """SCALE with lambda1 = lambda2 and lambda3 changed and nothing else; empty unless there are two."""
    found = {}
    for row in section.rows:
        values = [row.setting(name) for name in _LAMBDAS]
        plain = row.learner == OURS and row.differences.keys() <= set(_LAMBDAS)
        if plain and all(isinstance(v, int | float) for v in values) and values[0] == values[1]:
            found[float(values[0]), float(values[2])] = row
    return dict(sorted(found.items())) if len(found) > 1 else {}


def our_row(section: Section) -> Row | None:
    """SCALE with the paper's settings, or the one SCALE there is."""
    rows = [row for row in main_rows(section) if row.learner == OURS]
    return section.find(OURS) or (rows[0] if len(rows) == 1 else None)
