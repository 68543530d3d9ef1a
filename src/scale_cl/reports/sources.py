"""Provenance: for every row, the files, commands, versions, revision and device behind its numbers."""

from __future__ import annotations

import json
from dataclasses import dataclass

from scale_cl.reports.collection import Run, printable
from scale_cl.reports.rows import Row, device, is_alone
from scale_cl.reports.sections import Section

_UNKNOWN = "not recorded"


@dataclass(frozen=True)
class Source:
    """What made the numbers of one row."""

    anchor: str
    title: str
    facts: tuple[tuple[str, str], ...]
    seeds: tuple[tuple[str, ...], ...]  # seed, ACC, FM, LA, BWT, seconds of training, seconds of testing
    config: str


def source(section: Section, row: Row) -> Source:
    """The provenance of a row."""
    facts: list[tuple[str, str]] = []
    for run in row.sources:
        facts += _facts(run)
    config = json.dumps(row.seeds[0].config, indent=2, ensure_ascii=False)
    seeds = tuple(
        (
            str(seed.seed),
            *("–" if v is None else f"{v:.4f}" for v in (seed.acc, seed.fm, seed.la, seed.bwt)),
            f"{seed.seconds_train:.1f}",
            f"{seed.seconds_eval:.1f}",
        )
        for seed in row.seeds
    )
    return Source(row.anchor, f"{row.label} on {section.title}", tuple(facts), seeds, config)


def _facts(run: Run) -> list[tuple[str, str]]:
    made = run.result.environment
    versions = [f"{name} {made[name]}" for name in ("scale_cl", "python", "torch", "numpy") if made.get(name)]
    revision = str(made.get("git_revision") or _UNKNOWN)
    if made.get("git_changed"):
        revision += ", with uncommitted changes"
    where = device(run) + (f" ({made['device']})" if made.get("device") else "")
    if made.get("threads"):
        where += f", threads: {made['threads']}"
    facts = [
        ("File", run.name),
        ("Seeds", ", ".join(str(seed.seed) for seed in run.result.seeds)),
        ("Command", str(made.get("command") or _UNKNOWN)),
        ("Versions", ", ".join(versions) or _UNKNOWN),
        ("Revision", revision),
        ("Device", where),
        ("Platform", str(made.get("platform") or _UNKNOWN)),
        ("Whole run", f"{run.result.seconds_wall:.1f} s"),
        ("Beside it", "nothing: its times count" if is_alone(run) else "perhaps other runs"),
    ]
    return [(name, printable(value)) for name, value in facts]
