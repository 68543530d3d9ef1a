"""Benchmarks: how fast a learner is against the floor that its network sets, and what it keeps as tasks arrive."""

from scale_cl.bench.suite import PARTS, BenchSettings, measure

__all__ = ["PARTS", "BenchSettings", "measure"]
