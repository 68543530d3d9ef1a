"""Trackers: curves, the accuracy matrix, config and result of a run in TensorBoard, MLflow or Weights & Biases."""

from scale_cl.trackers.backend import NAMES, About, Backend, parse, without_passwords
from scale_cl.trackers.tracking import EVERY, Tracked, Tracking, forget, read, tracking

__all__ = [
    "EVERY",
    "NAMES",
    "About",
    "Backend",
    "Tracked",
    "Tracking",
    "forget",
    "parse",
    "read",
    "tracking",
    "without_passwords",
]
