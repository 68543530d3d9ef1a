"""The tables of a section that hold our own numbers: results, overview, paired tests, memory, times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from scale_cl.errors import printable
from scale_cl.plugins import shown
from scale_cl.reports import paper
from scale_cl.reports.sections import ResultRow, Section, lane, learner_rank, main_rows, memory_rows, our_row
from scale_cl.reports.seed_statistics import PairedTest, holm, paired, smallest_wilcoxon
from scale_cl.reports.table import (
    LEARNER,
    Column,
    Table,
    TableCell,
    gap,
    interval_cell,
    mark_best,
    mean_cell,
    measure_cell,
    name_cell,
    number,
    seeds_cell,
    signed,
)
from scale_cl.reports.versus_paper import ablation_table, paper_table, sensitivity_table
from scale_cl.results import MEASURE_NAMES

ALONE, BESIDE = "alone", "beside other runs"  # how a time was measured
_MEASURES = ("acc", "fm")
_AT_ANY_TIME = {  # what it is, and whether more is better
    "aaa": ("average anytime accuracy: mean over evaluations of the mean over the tasks begun, percent", True),
    "wc_acc": ("worst-case accuracy: last task as it is, the others at their lowest since they ended, percent", True),
    "min_acc": ("mean over tasks of the lowest accuracy since the task ended, percent", True),
    "stability_gap": ("mean drop of the earlier tasks while a task is learnt, points", False),
    "prequential_acc": ("share of samples predicted correctly before they were learnt, percent", True),
}


def tables(section: Section) -> list[Table]:
    """All tables of a section that have content."""
    made = (
        results_table(section),
        anytime_table(section),
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
    """Learners by streams, as the paper's main table; None for a single stream."""
    if len(parts) < 2:
        return None
    plain = {row.learner: row for section in parts for row in section.rows if not row.differences}
    learners = [row.learner for row in sorted(plain.values(), key=learner_rank)]
    columns: list[Column] = [LEARNER]
    bodies: list[list[TableCell]] = [[TableCell(printable(shown(learner)))] for learner in learners]
    names = [section.short_title for section in parts]
    for section in parts:
        name = section.short_title if names.count(section.short_title) == 1 else section.title
        rows = [section.find(learner) for learner in learners]
        for measure, arrow in (("acc", "↑"), ("fm", "↓")):
            columns.append(Column(f"{name} {measure.upper()}\N{NO-BREAK SPACE}{arrow}", section.title))
            cells = [gap("no result") if row is None else measure_cell(row, measure) for row in rows]
            competing = [row is not None and not row.is_bound for row in rows]
            for body, cell in zip(bodies, mark_best(cells, highest=measure == "acc", competing=competing), strict=True):
                body.append(cell)
    note = "Learners with their default settings; mean ± sample deviation over seeds, best in bold."
    return Table("overview", "All streams", tuple(columns), tuple(map(tuple, bodies)), note) if learners else None


def results_table(section: Section) -> Table:
    """ACC, FM, LA and BWT of every learner, with deviations and confidence intervals."""
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
        note += " Joint training sees all data at once: an upper bound, not a competitor."
    return Table("results", "Results", columns, bodies, note)


def anytime_table(section: Section) -> Table | None:
    """Measures of evaluations within tasks and of predictions before learning; None if no row has any."""
    rows = [row for row in main_rows(section) if any(seed.optional_measures for seed in row.seeds)]
    found = [measure for measure in _AT_ANY_TIME if any(row.summary(measure) for row in rows)]
    if not found:
        return None
    competing = [not row.is_bound for row in rows]
    columns = [
        mark_best([measure_cell(row, measure) for row in rows], highest=_AT_ANY_TIME[measure][1], competing=competing)
        for measure in found
    ]
    bodies = zip([name_cell(row) for row in rows], [seeds_cell(row) for row in rows], *columns, strict=True)
    headings = [LEARNER, Column("Seeds", "number of seeds")]
    for measure in found:
        meaning, highest = _AT_ANY_TIME[measure]
        headings.append(Column(f"{MEASURE_NAMES[measure]} {'↑' if highest else '↓'}", meaning))
    note = (
        "Evaluations within tasks are on a sample of each test set. Mean ± sample deviation over seeds, best in bold."
    )
    return Table("anytime", "At any time", tuple(headings), tuple(bodies), note)


def memory_table(section: Section, measure: str) -> Table | None:
    """A measure against the number of memory slots per task."""
    found = memory_rows(section)
    if not found:
        return None
    sizes = sorted({size for rows in found.values() for size in rows})
    columns = []
    for size in sizes:
        rows = [by_size.get(size) for by_size in found.values()]
        cells = [gap("no result") if row is None else measure_cell(row, measure) for row in rows]
        columns.append(mark_best(cells, highest=measure == "acc", competing=[True] * len(cells)))
    names = [TableCell(printable(shown(learner))) for learner in found]
    bodies = tuple(zip(names, *columns, strict=True))
    headings = (LEARNER, *(Column(f"{size} slots", f"{size} samples kept of each task") for size in sizes))
    note = "Memory slots per task; best in bold."
    return Table(f"memory-{measure}", f"{measure.upper()} against memory", headings, bodies, note)


def times_table(section: Section) -> Table | None:
    """Seconds per seed, relative to SCALE, and the paper's times."""
    rows = main_rows(section)
    if all(row.summary("seconds_train") is None for row in rows):
        return None
    printed = paper.SECONDS.get(section.stream, {}) if section.is_the_papers else {}
    base = our_row(section)
    bodies = []
    for row in rows:
        mixed = f"seeds were timed on several devices: {', '.join(row.timing_devices)}"
        seconds = [row.summary(f"seconds_{part}") for part in ("train", "eval")]
        cells = [name_cell(row), *(mean_cell(s, source=row.anchor, why_none=mixed) for s in seconds)]
        measured = TableCell(BESIDE, hover="other runs may have slowed it down")
        if row.is_timed_alone:
            measured = TableCell(ALONE, hover=f"{len(row.timed)} seeds, one run at a time, nothing beside it")
        cells += [_ratio_cell(row, base), measured, TableCell(", ".join(row.timing_devices))]
        if printed:
            cells += _printed_cells(row, printed)
        bodies.append(tuple(cells))
    columns = [
        LEARNER,
        Column("Training, s", "seconds per seed; its share where seeds ran side by side"),
        Column("Testing, s", "seconds per seed"),
        Column("× SCALE", "training time relative to SCALE's, on the same device, measured the same way"),
        Column("Measured", "whether other runs may have run at the same time", numeric=False),
        Column("Device", numeric=False),
    ]
    note = "Seconds per seed; its share where seeds ran side by side. Compare only runs on the same device."
    if not all(row.is_timed_alone for row in rows):
        note += f" Those marked as {BESIDE} were not taken alone, as by scale-cl reproduce time, and may be too long."
    if printed:
        columns += [Column("Paper, s", f"on an {paper.SECONDS_DEVICE}"), Column("Paper × SCALE", "relative to SCALE's")]
        note += f" The paper's times are from an {paper.SECONDS_DEVICE}; it does not state whether testing is included."
    return Table("times", "Execution times", tuple(columns), tuple(bodies), note)


def _ratio_cell(row: ResultRow, base: ResultRow | None) -> TableCell:
    alike = base and (row.timing_devices, row.is_timed_alone) == (base.timing_devices, base.is_timed_alone)
    ours = base.summary("seconds_train") if base and alike else None
    train = row.summary("seconds_train")
    if ours is None or train is None or ours.mean <= 0:
        return gap("no SCALE run on the same device, measured the same way")
    return TableCell(number(train.mean / ours.mean), train.mean / ours.mean, source=row.anchor)


def _printed_cells(row: ResultRow, printed: dict[str, float]) -> list[TableCell]:
    if row.learner not in printed or row.differences:
        return [gap("not in the paper")] * 2
    seconds, share = printed[row.learner], printed[row.learner] / printed[paper.METHOD]
    return [TableCell(number(seconds), seconds), TableCell(number(share), share)]


def tests_table(section: Section) -> Table | None:
    """Paired tests of SCALE against every other learner of the main table; None if there is no pair."""
    ours = our_row(section)
    others = [row for row in main_rows(section) if row is not ours]
    if ours is None or not others:
        return None
    tests = [[_paired(ours, row, measure) for row in others] for measure in _MEASURES]
    leads = []
    for row, *found in zip(others, *tests, strict=True):
        shared = max(len(test.difference.values) if test else 0 for test in found)
        leads.append((name_cell(row), TableCell(str(shared), shared)))
    bodies = paired_rows(leads, tests)
    names = Column(f"{ours.label} against", numeric=False), Column("Seeds", "seeds that both learners have")
    return Table("tests", "Paired tests", (*names, *paired_columns()), tuple(bodies), _test_note(bodies))


def paired_columns() -> list[Column]:
    """The headings over the cells of `paired_rows` for ACC, then for FM."""
    columns = []
    for name in ("ACC", "FM"):
        columns += [
            Column(f"{name} difference", f"{name} of SCALE minus that of the other learner, per seed"),
            Column("p (t)", f"{name}: paired t-test, two-sided"),
            Column("p (Holm)", f"{name}: the t-test, corrected by Holm's method for the number of learners"),
            Column("p (Wilcoxon)", f"{name}: signed-rank test, two-sided"),
        ]
    return columns


def _paired(ours: ResultRow, other: ResultRow, measure: str) -> PairedTest | None:
    """Pair only seeds for which both learners saw the same tasks."""
    tasks = {lane(seed): seed.tasks for seed in ours.seeds}
    same = {lane(seed) for seed in other.seeds if seed.tasks == tasks.get(lane(seed))}
    return paired(ours.by_lane(measure), {key: v for key, v in other.by_lane(measure).items() if key in same})


def paired_rows(
    leads: Sequence[tuple[TableCell, ...]], tests: Sequence[Sequence[PairedTest | None]]
) -> list[tuple[TableCell, ...]]:
    """Rows that begin with these cells, and have the tests of each measure, corrected over the rows."""
    rows = list(leads)
    for found in tests:
        each = zip(rows, found, holm([test.t if test else None for test in found]), strict=True)
        rows = [(*row, *_paired_cells(test, p, row[0].source)) for row, test, p in each]
    return rows


def _paired_cells(test: PairedTest | None, corrected: float | None, source: str) -> list[TableCell]:
    """The difference and the p values of a test, uncorrected, corrected, and by ranks."""
    if test is None:
        return [gap("no seed in common, or not defined")] * 4
    mean, deviation = test.difference.mean, test.difference.deviation
    text = signed(mean) if deviation is None else f"{signed(mean)} ± {number(deviation)}"
    change = replace(mean_cell(test.difference, source=source, why_none=""), text=text)
    return [change, _p_cell(test.t), _p_cell(corrected), _p_cell(test.wilcoxon)]


def _p_cell(p: float | None) -> TableCell:
    if p is None:
        return gap("one seed, or the same difference for all seeds")
    return TableCell("< 0.001" if p < 0.001 else f"{p:.3f}", p, hover=f"{p:.3g}")


def _test_note(bodies: list[tuple[TableCell, ...]]) -> str:
    note = "Paired by seed: with the same seed all learners see the same stream. Differences are SCALE minus the other."
    fewest = int(min(row[1].value or 0 for row in bodies))
    if fewest < 2:
        return f"{note} One seed gives no test."
    return f"{note} With {fewest} seeds, Wilcoxon's p cannot be below {smallest_wilcoxon(fewest):.2g}."
