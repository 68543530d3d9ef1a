"""A plan from beginning to end: what may run beside others first, then what must run alone; then the numbers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from scale_cl.experiments.definitions import EXPERIMENTS
from scale_cl.experiments.engine import Engine, Listener
from scale_cl.experiments.planning import Cell, Plan
from scale_cl.experiments.result_index import Finished, scan
from scale_cl.results import RunResult, percent


@dataclass(frozen=True)
class Line:
    """A cell of a table with the seeds that are there."""

    cell: Cell
    result: RunResult | None  # None: no seed has finished

    @property
    def values(self) -> tuple[str, str, str, str]:
        """ACC, FM, training seconds a seed, and how many of the seeds asked for are there."""
        if self.result is None:
            return "-", "-", "-", f"0 of {len(self.cell.seeds)}"
        seconds = [seed.seconds_train for seed in self.result.seeds]
        acc, fm = (percent(self.result.values(measure)) for measure in ("acc", "fm"))
        there, asked = len(seconds), len(self.cell.seeds)
        return acc, fm, percent(seconds), str(there) if there == asked else f"{there} of {asked}"


def carry_out(plan: Plan, engine: Engine, *, slots: int, listener: Listener) -> None:
    """Do the runs of a plan; the listener is told how they go."""
    for alone in (False, True):
        runs = [run for run in plan.runs if run.alone == alone]
        if runs:
            engine.execute(runs, slots=1 if alone else slots, listener=listener)


def finished(experiment: str, out: Path, *, gpu: bool) -> Finished:
    """The results that serve an experiment."""
    if EXPERIMENTS[experiment].alone:
        return scan(out / experiment, alone="cuda" if gpu else "cpu")
    return scan(out)


def lines(plan: Plan, experiment: str, done: Finished) -> list[Line]:
    """The numbers of an experiment as they are on disk now."""
    made = []
    for cell in plan.experiment(experiment):
        found = done.of(cell.key)
        seeds = tuple(found[seed].seed for seed in cell.seeds if seed in found)
        made.append(Line(cell, RunResult(seeds) if seeds else None))
    return made
