"""The tables that compare our numbers with the paper's: the difference, and whether it is within the deviations."""

from __future__ import annotations

from scale_cl.reports import paper
from scale_cl.reports.paper import PrintedValue, Target
from scale_cl.reports.sections import ResultRow, Section, ablation_rows, sensitivity_rows
from scale_cl.reports.seed_statistics import Summary
from scale_cl.reports.table import (
    LEARNER,
    Column,
    Table,
    TableCell,
    Tone,
    gap,
    mean_text,
    measure_cell,
    name_cell,
    seeds_cell,
    signed,
)

_COLUMNS = (
    Column("Seeds", "number of our seeds; the paper has five"),
    Column("ACC ↑", "mean accuracy over all tasks at the end, percent"),
    Column("Paper ACC"),
    Column("Difference", "ACC, ours minus the paper's"),
    Column("Verdict", "ACC: within the deviations, better or worse", numeric=False),
    Column("FM ↓", "mean drop from a task's best accuracy to the end, points"),
    Column("Paper FM"),
    Column("Difference", "FM, ours minus the paper's"),
    Column("Verdict", "FM: within the deviations, better or worse", numeric=False),
)


def verdict(ours: Summary, theirs: PrintedValue, *, higher_is_better: bool) -> tuple[str, Tone]:
    """`within` if the means differ by at most the sum of both deviations; unknown for one seed."""
    if ours.deviation is None:
        return "one seed", "gap"
    difference = ours.mean - theirs.mean
    if abs(difference) <= ours.deviation + theirs.deviation:
        return "within", "good"
    return ("better", "good") if (difference > 0) == higher_is_better else ("worse", "bad")


def beside(row: ResultRow | None, target: Target | None) -> tuple[TableCell, ...]:
    """The cells that compare a row with the paper's numbers; either may be missing."""
    cells = [gap("no result with these settings") if row is None else seeds_cell(row)]
    for measure in ("acc", "fm"):
        theirs = None if target is None else getattr(target, measure)
        ours = None if row is None else row.summary(measure)
        cells.append(gap("no result with these settings") if row is None else measure_cell(row, measure))
        cells.append(gap("not in the paper") if theirs is None else TableCell(mean_text(theirs), theirs.mean))
        if ours is None or theirs is None or row is None:
            cells += [gap("nothing to compare")] * 2
        else:
            difference = ours.mean - theirs.mean
            cells.append(TableCell(signed(difference), difference, source=row.anchor))
            word, tone = verdict(ours, theirs, higher_is_better=measure == "acc")
            cells.append(TableCell(word, tone=tone))
    return tuple(cells)


def paper_table(section: Section) -> Table | None:
    """The main table compared with the paper's; a learner of the paper that was not run is a gap. None if none was."""
    if not section.is_the_papers:
        return None
    bodies = []
    for name, target in paper.MAIN[section.stream].items():
        printed = paper.printed_settings(name, section.stream)
        rows = [row for row in section.rows if row.learner == name and row.differences in ({}, printed)]
        bodies += [(name_cell(row), *beside(row, target)) for row in rows]
        if not rows:
            bodies.append((name_cell(None, name), *beside(None, target)))
    if all(cells[1].value is None for cells in bodies):
        return None
    note = (
        "Within: the two means differ by at most the sum of their two deviations. Compared are runs with the default "
        "settings or those of the preset paper. The paper has five seeds"
    )
    if section.stream in paper.SPLIT:
        order = section.variant.get("class_order", "default")
        note += f" and does not settle the order of the classes; here it is {order}"
    return Table("paper", "Beside the paper", (LEARNER, *_COLUMNS), tuple(bodies), f"{note}.")


def ablation_table(section: Section) -> Table | None:
    """SCALE without one of its components."""
    found = ablation_rows(section)
    if not found:
        return None
    targets = paper.ABLATION_TARGETS.get(section.stream, {}) if section.is_the_papers else {}
    whole = paper.MAIN[section.stream][paper.METHOD] if section.is_the_papers else None
    base = section.find(paper.METHOD)
    bodies = [(name_cell(base, "SCALE"), *beside(base, whole))]
    for letter, (_, words) in paper.ABLATIONS.items():
        row = found.get(letter)
        bodies.append((name_cell(row, f"{letter}: {words}"), *beside(row, targets.get(letter))))
    return _shown("ablation", "Ablations of SCALE", (LEARNER,), bodies)


def sensitivity_table(section: Section) -> Table | None:
    """SCALE over a grid of loss weights."""
    found = sensitivity_rows(section)
    if not found:
        return None
    targets = paper.SENSITIVITY.get(section.stream, {}) if section.is_the_papers else {}
    bodies = []
    for weights in sorted({*found, *targets}):
        first, third = (TableCell(f"{weight:g}", weight) for weight in weights)
        bodies.append((first, third, *beside(found.get(weights), targets.get(weights))))
    return _shown("sensitivity", "Sensitivity of SCALE", (Column("λ1 = λ2"), Column("λ3")), bodies)


def _shown(key: str, title: str, lead: tuple[Column, ...], bodies: list[tuple[TableCell, ...]]) -> Table:
    """The table, without the columns of the paper if it has no number for any row."""
    columns = (*lead, *_COLUMNS)
    start = len(lead)
    if all(row[start + 2].value is None for row in bodies):
        keep = [*range(start), start, start + 1, start + 5]
        columns = tuple(columns[at] for at in keep)
        bodies = [tuple(row[at] for at in keep) for row in bodies]
    return Table(key, title, columns, tuple(bodies))
