"""Benchmarks: how fast a learner is against the floor that its network sets, and how its state grows with tasks."""

PARTS = ("steps", "streams", "seeds", "growth", "cost")
