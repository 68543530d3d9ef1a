"""The tables of a section: results, beside the paper, paired tests, ablations, memory, sensitivity, times."""

from __future__ import annotations

from collections.abc import Sequence

from scale_cl.reports import paper
from scale_cl.reports.collection import printable
from scale_cl.reports.experiment_rows import OURS, main_rows, memory_rows
from scale_cl.reports.paired_tests import tests_table
from scale_cl.reports.rows import Row
from scale_cl.reports.sections import Section, learner_rank
from scale_cl.reports.table import (
    LEARNER,
    Cell,
    Column,
    Table,
    gap,
    interval_cell,
    mark_best,
    mean_cell,
    measure_cell,
    name_cell,
    number,
    seeds_cell,
)
from scale_cl.reports.versus_paper import ablation_table, paper_table, sensitivity_table

ALONE, BESIDE = "alone", "beside other runs"  # how a time was measured


def tables(section: Section) -> list[Table]:
    """All tables of a section for which there is something to show."""
    made = (
        results_table(section),
        paper_table(section),
        tests_table(section),
        ablation_table(section),
        memory_table(section, "acc"),
        memory_table(section, "fm"),
        sensitivity_table(section),
        times_table(section),
    )
    return [table for table in made if table is not None]


def overview_table(parts: Sequence[Section]) -> Table | None:
    """The learners down, the streams across, as in the paper's main table; None for one stream."""
    if len(parts) < 2:
        return None
    plain = {row.learner: row for section in parts for row in section.rows if not row.differences}
    learners = sorted(plain, key=learner_rank)
    columns: list[Column] = [LEARNER]
    bodies: list[list[Cell]] = [[Cell(printable(learner))] for learner in learners]
    for section in parts:
        rows = [section.find(learner) for learner in learners]
        for measure, arrow in (("acc", "↑"), ("fm", "↓")):
            columns.append(Column(f"{section.short_title} {measure.upper()}\N{NO-BREAK SPACE}{arrow}", section.title))
            cells = [gap("no result") if row is None else measure_cell(row, measure) for row in rows]
            competing = [row is not None and not row.is_bound for row in rows]
            for body, cell in zip(bodies, mark_best(cells, highest=measure == "acc", competing=competing), strict=True):
                body.append(cell)
    note = "Learners with their usual settings; mean ± sample deviation over seeds, best in bold."
    return Table("overview", "All streams", tuple(columns), tuple(map(tuple, bodies)), note) if learners else None


def results_table(section: Section) -> Table:
    """ACC, FM, LA and BWT of every learner with deviations and intervals."""
    rows = main_rows(section)
    competing = [not row.is_bound for row in rows]
    acc = mark_best([measure_cell(row, "acc") for row in rows], highest=True, competing=competing)
    fm = mark_best([measure_cell(row, "fm") for row in rows], highest=False, competing=competing)
    bodies = tuple(
        (
            name_cell(row),
            seeds_cell(row),
            acc[at],
            interval_cell(row.summary("acc"), source=row.anchor),
            fm[at],
            interval_cell(row.summary("fm"), source=row.anchor),
            measure_cell(row, "la"),
            measure_cell(row, "bwt"),
        )
        for at, row in enumerate(rows)
    )
    columns = (
        LEARNER,
        Column("Seeds", "number of seeds"),
        Column("ACC ↑", "mean accuracy over all tasks at the end, percent"),
        Column("ACC 95 %", "95 % confidence interval of the mean, Student's t"),
        Column("FM ↓", "mean drop from a task's best accuracy to the end, points"),
        Column("FM 95 %", "95 % confidence interval of the mean, Student's t"),
        Column("LA ↑", "mean accuracy right after learning each task, percent"),
        Column("BWT ↑", "mean change from right after learning a task to the end, points"),
    )
    note = "Mean ± sample deviation over seeds (one seed has none), and 95 % intervals of the mean. Best in bold."
    if not all(competing):
        note += " Joint training sees all data at once: a bound, not a competitor."
    return Table("results", "Results", columns, bodies, note)


def memory_table(section: Section, measure: str) -> Table | None:
    """A measure against the slots of memory a task."""
    found = memory_rows(section)
    if not found:
        return None
    sizes = sorted({size for rows in found.values() for size in rows})
    columns = []
    for size in sizes:
        rows = [by_size.get(size) for by_size in found.values()]
        cells = [gap("no result") if row is None else measure_cell(row, measure) for row in rows]
        columns.append(mark_best(cells, highest=measure == "acc", competing=[True] * len(cells)))
    bodies = tuple((Cell(printable(learner)), *(column[at] for column in columns)) for at, learner in enumerate(found))
    headings = (LEARNER, *(Column(f"{size} slots", f"{size} samples kept of each task") for size in sizes))
    name = measure.upper()
    return Table(f"memory-{measure}", f"{name} against memory", headings, bodies, "Slots a task; best in bold.")


def times_table(section: Section) -> Table | None:
    """Seconds a seed, and relative to SCALE, beside the paper's."""
    rows = main_rows(section)
    if all(row.summary("seconds_train") is None for row in rows):
        return None
    printed = paper.SECONDS.get(section.stream, {}) if section.is_the_papers else {}
    base = section.find(OURS)
    bodies = []
    for row in rows:
        mixed = f"seeds were timed on several devices: {', '.join(row.timing_devices)}"
        seconds = [row.summary(f"seconds_{part}") for part in ("train", "eval")]
        cells = [name_cell(row), *(mean_cell(s, source=row.anchor, why_none=mixed) for s in seconds)]
        cells += [_ratio_cell(row, base), _measured_cell(row), Cell(", ".join(row.timing_devices))]
        if printed:
            cells += _printed_cells(row, printed)
        bodies.append(tuple(cells))
    columns = [
        LEARNER,
        Column("Training, s", "seconds a seed; its share where seeds ran side by side"),
        Column("Testing, s", "seconds a seed"),
        Column("× SCALE", "training time relative to SCALE's, on the same device and measured alike"),
        Column("Measured", "whether something may have run beside it", numeric=False),
        Column("Device", numeric=False),
    ]
    note = (
        "Seconds a seed; where seeds ran side by side on one device, its share. Only runs on the same device compare."
    )
    if not all(row.is_timed_alone for row in rows):
        note += f" Those marked as {BESIDE} were not taken alone, as scale-cl reproduce time does, and may be too long."
    if printed:
        columns += [Column("Paper, s", f"on an {paper.SECONDS_DEVICE}"), Column("Paper × SCALE", "relative to SCALE's")]
        note += f" The paper's are of an {paper.SECONDS_DEVICE} and do not say whether testing counts."
    return Table("times", "Execution times", tuple(columns), tuple(bodies), note)


def _measured_cell(row: Row) -> Cell:
    if row.is_timed_alone:
        return Cell(ALONE, hover=f"{len(row.timed)} seeds, one run after another, nothing beside it")
    return Cell(BESIDE, hover="other runs may have taken time from it")


def _ratio_cell(row: Row, base: Row | None) -> Cell:
    alike = base and (row.timing_devices, row.is_timed_alone) == (base.timing_devices, base.is_timed_alone)
    ours = base.summary("seconds_train") if base and alike else None
    train = row.summary("seconds_train")
    if ours is None or train is None or ours.mean <= 0:
        return gap("no SCALE on the same device that was measured alike")
    return Cell(number(train.mean / ours.mean), train.mean / ours.mean, source=row.anchor)


def _printed_cells(row: Row, printed: dict[str, float]) -> list[Cell]:
    if row.learner not in printed or row.differences:
        return [gap("not in the paper")] * 2
    seconds, share = printed[row.learner], printed[row.learner] / printed[OURS]
    return [Cell(number(seconds), seconds), Cell(number(share), share)]
