"""A row: one learner with one set of settings on one stream. Times are those of runs that had nothing beside them."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Any

from scale_cl.experiments.identity import section
from scale_cl.experiments.result_index import ALONE
from scale_cl.reports.collection import Run, printable
from scale_cl.reports.naming import slug
from scale_cl.reports.seed_statistics import Summary, summarise
from scale_cl.results import SeedResult

BOUNDS = ("joint",)  # what sees all data at once is no competitor


@dataclass(frozen=True)
class Row:
    """All seeds, from one run or several."""

    label: str
    learner: str
    differences: dict[str, Any]  # what sets it apart from the paper's settings, or from its siblings
    runs: tuple[Run, ...]
    seeds: tuple[SeedResult, ...]
    timed: tuple[tuple[Run, SeedResult], ...] = ()  # seeds that were run alone, to be timed

    @property
    def anchor(self) -> str:
        """Where the report says what made this row's numbers."""
        name = self.runs[0].name
        return f"source-{slug(name)}-{zlib.crc32(name.encode('utf-8', 'replace')):08x}"

    @property
    def is_bound(self) -> bool:
        """Whether it sees all data at once and so is no competitor."""
        return self.learner in BOUNDS

    @property
    def is_timed_alone(self) -> bool:
        """Whether its times are of runs that had nothing beside them; if not, other runs may have slowed them."""
        return bool(self.timed)

    def summary(self, measure: str) -> Summary | None:
        """One of acc, fm, la, bwt, seconds_train, seconds_eval over the seeds; no mean of times of several devices."""
        if measure.startswith("seconds"):
            values = [getattr(seed, measure) for seed in ([s for _, s in self.timed] or self.seeds)]
            return summarise(values) if len(self.timing_devices) == 1 and min(values) >= 0 else None
        return summarise([getattr(seed, measure) for seed in self.seeds])

    def by_seed(self, measure: str) -> dict[int, float]:
        """A measure of every seed for which it is defined."""
        values = {seed.seed: getattr(seed, measure) for seed in self.seeds}
        return {seed: value for seed, value in values.items() if value is not None}

    @property
    def devices(self) -> list[str]:
        """The devices that its runs were made on."""
        return sorted({device(run) for run in self.runs})

    @property
    def timing_devices(self) -> list[str]:
        """The devices that its times are of."""
        return sorted({device(run) for run, _ in self.timed}) or self.devices

    @property
    def sources(self) -> tuple[Run, ...]:
        """All runs that its numbers are of, each once."""
        return (*self.runs, *{run.name: run for run, _ in self.timed if run not in self.runs}.values())

    def setting(self, name: str) -> Any:
        """A setting of the learner; None if it has none of that name."""
        return section(self.seeds[0].config, "learner").get(name)


def device(run: Run) -> str:
    """The device a run was made on, in words."""
    environment = run.result.environment
    return printable(environment.get("device_name") or environment.get("device") or "unknown device")


def is_alone(run: Run) -> bool:
    """Whether nothing ran beside it, so that its times count."""
    return run.result.environment.get(ALONE) is True
