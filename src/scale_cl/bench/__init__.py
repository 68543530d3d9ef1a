"""Benchmarks: how fast a learner is against the floor that its network sets, how its state grows, and what it costs."""

PARTS = ("steps", "streams", "seeds", "growth", "cost")
