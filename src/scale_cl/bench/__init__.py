"""Benchmarks: how fast a learner is against the floor that its network sets, and how its state grows with tasks."""

from scale_cl.bench.suite import (
    PARTS,
    SCHEMA,
    BenchEntry,
    BenchSettings,
    append_history,
    comparison,
    draw,
    measure,
    read_history,
)

__all__ = [
    "PARTS",
    "SCHEMA",
    "BenchEntry",
    "BenchSettings",
    "append_history",
    "comparison",
    "draw",
    "measure",
    "read_history",
]
