"""The tables of a matched comparison: results over class orders and seeds with what each method costs, and tests.

A lane is one class order with one seed. Two methods are compared lane by lane: in the same lane they see the same
samples in the same order.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from scale_cl import files
from scale_cl.bench.cost import Cost, Size
from scale_cl.experiments.definitions import JOINT_TRAINING, OURS
from scale_cl.reports.seed_statistics import PairedTest, paired, summarise
from scale_cl.reports.table import (
    LEARNER,
    UNDEFINED,
    Column,
    Table,
    TableCell,
    gap,
    mark_best,
    markdown_escape,
    markdown_lines,
    mean_cell,
    number,
)
from scale_cl.reports.tables import paired_columns, paired_rows
from scale_cl.results import SeedResult

_MEASURES = ("acc", "fm", "la")
_COSTS = (
    Column("Forward", "images through the network per batch"),
    Column("Backward", "images per batch whose gradient is taken"),
    Column("Cost", "forward + 2 x backward"),
)
_COSTS_NOTE = (
    "Forward and backward: images per batch in the middle of the stream, with the work at the end of a task; cost: "
    "forward + 2 × backward; predictions apart."
)
_SIZES = (
    Column("Parameters", "of all networks in the first task"),
    Column("Per task", "parameters more with each further task, at most"),
)
_SIZES_NOTE = "Parameters: of all networks in the first task, and how many more with each further task, at most."
Lanes = Mapping[tuple[Any, int], SeedResult]


@dataclass(frozen=True)
class MatchedRow:
    """One method: its finished lanes by class order and seed, what it costs or how large it is, and its settings."""

    learner: str
    lanes: Lanes
    cost: Cost | None  # None: not known on this stream
    settings: Mapping[str, object]
    size: Size | None = None  # given in place of the cost where methods are compared by their sizes

    def values(self, measure: str) -> dict[Hashable, float]:
        """A measure by lane, where it is defined."""
        found = {lane: getattr(result, measure) for lane, result in self.lanes.items()}
        return {lane: value for lane, value in found.items() if value is not None}


def write_matched(stream: str, rows: Sequence[MatchedRow], base: Path) -> list[Path]:
    """Write the tables as Markdown and their numbers as JSON to `BASE.md` and `BASE.json`."""
    lines = [f"# {markdown_escape(stream)}", ""]
    for table in (cost_table(rows), tests_table(rows)):
        if table is not None:
            lines += [f"## {table.title}", "", *markdown_lines(table), "", markdown_escape(table.note), ""]
    written = [base.with_name(f"{base.name}{suffix}") for suffix in (".md", ".json")]
    files.write_text(written[0], "\n".join(lines))
    kind = "sizes" if any(row.size is not None for row in rows) else "matched"
    files.write_json(written[1], {"schema": 1, "kind": kind, "stream": stream, "rows": _numbers(rows)})
    return written


def cost_table(rows: Sequence[MatchedRow]) -> Table:
    """ACC, FM and LA over all lanes, images forward and backward per batch or parameters, bytes and seconds."""
    competing = [row.learner not in JOINT_TRAINING for row in rows]
    sized = any(row.size is not None for row in rows)
    found = {}
    for measure in _MEASURES:
        every = [summarise([getattr(lane, measure) for lane in row.lanes.values()]) for row in rows]
        cells = [mean_cell(summary, source="", why_none=UNDEFINED[measure]) for summary in every]
        found[measure] = mark_best(cells, highest=measure != "fm", competing=competing)
    bodies = []
    for at, row in enumerate(rows):
        seconds = summarise([lane.seconds_train for lane in row.lanes.values()])
        cells = [TableCell(row.learner), TableCell(str(len(row.lanes)), len(row.lanes))]
        cells += [found[measure][at] for measure in _MEASURES]
        cells += _size_cells(row.size) if sized else _cost_cells(row.cost)
        bodies.append((*cells, mean_cell(seconds, source="", why_none="no result")))
    columns = (
        LEARNER,
        Column("Runs", "finished: class orders x seeds"),
        Column("ACC ↑", "mean accuracy over all tasks at the end, percent"),
        Column("FM ↓", "mean drop from a task's best accuracy to the end, points"),
        Column("LA ↑", "mean accuracy right after learning each task, percent"),
        *(_SIZES if sized else _COSTS),
        Column("KiB", "kept beside one network with its heads: samples, logits, importances, further networks"),
        Column("Seconds", "of training per run"),
    )
    note = (
        f"Mean ± sample deviation over class orders and seeds, best in bold. {_SIZES_NOTE if sized else _COSTS_NOTE} "
        "KiB: what is kept beside one network with its heads, when all tasks are learnt. Seconds: of training; runs "
        "side by side on a GPU have even shares of its time."
    )
    return Table("matched", "Results", columns, tuple(bodies), note)


def _cost_cells(cost: Cost | None) -> list[TableCell]:
    if cost is None:
        return [gap("not known on this stream")] * 4
    counts = [TableCell(number(value, 1), value) for value in (cost.forward, cost.backward, cost.images)]
    return [*counts, TableCell(number(cost.bytes / 1024, 0), cost.bytes)]


def _size_cells(size: Size | None) -> list[TableCell]:
    if size is None:
        return [gap("not known on this stream")] * 3
    counts = [TableCell(number(value, 0), value) for value in (size.parameters, size.growth)]
    return [*counts, TableCell(number(size.bytes / 1024, 0), size.bytes)]


def tests_table(rows: Sequence[MatchedRow]) -> Table | None:
    """Paired tests of our method against every other one, lane by lane; None if there is no pair."""
    ours = _ours(rows)
    others = [row for row in rows if row is not ours and row.learner not in JOINT_TRAINING]
    if ours is None or not others:
        return None
    shared = [len(ours.lanes.keys() & row.lanes.keys()) for row in others]
    leads = [(TableCell(row.learner), TableCell(str(n), n)) for row, n in zip(others, shared, strict=True)]
    bodies = paired_rows(leads, [[paired(ours.values(m), row.values(m)) for row in others] for m in ("acc", "fm")])
    columns = (Column(f"{ours.learner} against", numeric=False), Column("Runs", "that both have"), *paired_columns())
    note = f"Paired by class order and seed; differences: {ours.learner} minus the other. Holm's correction over rows."
    return Table("tests", "Paired tests", columns, tuple(bodies), note)


def _ours(rows: Sequence[MatchedRow]) -> MatchedRow | None:
    return next((row for name in OURS for row in rows if row.learner == name), None)


def _numbers(rows: Sequence[MatchedRow]) -> list[dict[str, Any]]:
    ours = _ours(rows)
    return [
        {
            "learner": row.learner,
            "settings": dict(row.settings),
            "lanes": [
                {"order": order, "seed": seed, **{m: getattr(lane, m) for m in (*_MEASURES, "seconds_train")}}
                for (order, seed), lane in row.lanes.items()
            ],
            "cost": None if row.cost is None else {**vars(row.cost), "images": row.cost.images},
            "size": None if row.size is None else dict(vars(row.size)),
            "acc_difference": None if ours is None or row is ours else _difference(ours, row),
        }
        for row in rows
    ]


def _difference(ours: MatchedRow, row: MatchedRow) -> dict[str, Any] | None:
    test: PairedTest | None = paired(ours.values("acc"), row.values("acc"))
    return None if test is None else asdict(test)
