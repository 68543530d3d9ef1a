"""Which results make a row: those of the same run, a seed once. What was run alone gives the row its times."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from scale_cl.experiments.identity import identities
from scale_cl.reports.collection import Gap, Run
from scale_cl.reports.rows import device, is_alone
from scale_cl.results import SeedResult


@dataclass
class Pool:
    """The seeds of a row, and the runs that they are of."""

    runs: list[Run] = field(default_factory=list)
    seeds: list[SeedResult] = field(default_factory=list)
    timed: list[tuple[Run, SeedResult]] = field(default_factory=list)

    def agrees(self, run: Run) -> bool:
        """Whether seeds that are there already have the same accuracies; on a GPU a run alone has about the same."""
        if is_alone(run) and str(run.result.environment.get("device")).startswith("cuda"):
            return True
        known = {seed.seed: seed for seed in self.seeds}
        twice = [(s, known[s.seed]) for s in run.result.seeds if s.seed in known]
        return all(s.matrix == other.matrix and s.tasks == other.tasks for s, other in twice)

    def add(self, run: Run, gaps: list[Gap]) -> None:
        """Take what is new; what is there already counts once, and that is said unless it was for its time."""
        known = {seed.seed for seed in self.seeds}
        twice = [s.seed for s in run.result.seeds if s.seed in known]
        if twice and not is_alone(run):
            listed = ", ".join(map(str, twice))
            gaps.append(Gap(run.name, f"repeats seed {listed} of {self.runs[0].name}; counted once"))
        fresh = [s for s in run.result.seeds if s.seed not in known]
        if fresh:
            self.runs.append(run)
            self.seeds.extend(fresh)
        if is_alone(run):
            timed = {(seed.seed, device(other)) for other, seed in self.timed}
            self.timed += [(run, s) for s in run.result.seeds if (s.seed, device(run)) not in timed]


def pools(runs: list[Run], gaps: list[Gap]) -> list[Pool]:
    """The rows of a stream; a seed that disagrees with its double makes a row of its own, and that is said."""
    made: list[Pool] = []
    for same in _grouped(runs):
        own: list[Pool] = []
        for run in sorted(same, key=is_alone):  # accuracies are of the others, where there are any
            pool = next((pool for pool in own if pool.agrees(run)), None)
            if pool is None:
                if own:
                    first = own[0].runs[0].name
                    gaps.append(
                        Gap(run.name, f"has the settings and seeds of {first} but other accuracies; a row of its own")
                    )
                own.append(pool := Pool())
            pool.add(run, gaps)
        made += own
    return made


def _grouped(runs: list[Run]) -> Iterable[list[Run]]:
    """Results of the same run; they are of one stream with one number of tasks."""
    configs = [run.result.seeds[0].config for run in runs]
    groups: dict[tuple[str, str], list[Run]] = {}
    for run, key in zip(runs, identities(configs, len(runs[0].result.seeds[0].tasks)), strict=True):
        groups.setdefault((run.result.learner, key), []).append(run)
    return groups.values()
