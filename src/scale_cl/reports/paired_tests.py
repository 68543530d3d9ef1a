"""The table of paired tests: SCALE against every other learner, seed by seed."""

from __future__ import annotations

from dataclasses import replace

from scale_cl.reports.experiment_rows import main_rows, our_row
from scale_cl.reports.rows import Row
from scale_cl.reports.sections import Section
from scale_cl.reports.seed_statistics import PairedTest, holm, paired, smallest_wilcoxon
from scale_cl.reports.table import Cell, Column, Table, gap, mean_cell, name_cell, number, signed

_MEASURES = ("acc", "fm")


def tests_table(section: Section) -> Table | None:
    """SCALE against every other learner of the main table; None if there is nothing to pair."""
    ours = our_row(section)
    others = [row for row in main_rows(section) if row is not ours]
    if ours is None or not others:
        return None
    tests = {measure: [_paired(ours, row, measure) for row in others] for measure in _MEASURES}
    corrected = {measure: holm([test.t if test else None for test in tests[measure]]) for measure in _MEASURES}
    bodies = []
    for at, row in enumerate(others):
        shared = max(len(test.difference.values) if test else 0 for test in (tests[m][at] for m in _MEASURES))
        cells = [name_cell(row), Cell(str(shared), shared)]
        for measure in _MEASURES:
            cells += _cells(tests[measure][at], corrected[measure][at], row)
        bodies.append(tuple(cells))
    columns = [Column(f"{ours.label} against", numeric=False), Column("Seeds", "seeds that both have")]
    for name in ("ACC", "FM"):
        columns += [
            Column(f"{name} difference", f"{name} of SCALE minus that of the other, seed by seed"),
            Column("p (t)", f"{name}: paired t-test, two-sided"),
            Column("p (Holm)", f"{name}: the t-test, corrected by Holm's method for the number of learners"),
            Column("p (Wilcoxon)", f"{name}: signed-rank test, two-sided"),
        ]
    return Table("tests", "Paired tests", tuple(columns), tuple(bodies), _note(bodies))


def _paired(ours: Row, other: Row, measure: str) -> PairedTest | None:
    """Only seeds at which both saw the same tasks make a pair."""
    tasks = {seed.seed: seed.tasks for seed in ours.seeds}
    same = {seed.seed for seed in other.seeds if seed.tasks == tasks.get(seed.seed)}
    return paired(ours.by_seed(measure), {s: v for s, v in other.by_seed(measure).items() if s in same})


def _cells(test: PairedTest | None, corrected: float | None, row: Row) -> list[Cell]:
    if test is None:
        return [gap("no seed in common, or not defined")] * 4
    mean, deviation = test.difference.mean, test.difference.deviation
    text = signed(mean) if deviation is None else f"{signed(mean)} ± {number(deviation)}"
    change = replace(mean_cell(test.difference, source=row.anchor, why_none=""), text=text)
    return [change, _p_cell(test.t), _p_cell(corrected), _p_cell(test.wilcoxon)]


def _p_cell(p: float | None) -> Cell:
    if p is None:
        return gap("one seed, or the same difference at all seeds")
    return Cell("< 0.001" if p < 0.001 else f"{p:.3f}", p, hover=f"{p:.3g}")


def _note(bodies: list[tuple[Cell, ...]]) -> str:
    note = (
        "Paired across seeds: at the same seed all learners see the same stream. Differences are SCALE minus the other."
    )
    fewest = int(min(row[1].value or 0 for row in bodies))
    if fewest < 2:
        return f"{note} One seed gives no test."
    return f"{note} With {fewest} seeds, Wilcoxon's p cannot be below {smallest_wilcoxon(fewest):.2g}."
