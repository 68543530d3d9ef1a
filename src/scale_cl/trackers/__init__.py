"""Trackers: curves, the matrix, config and result of a run in TensorBoard, MLflow or Weights & Biases."""

from scale_cl.trackers.backend import About, Backend
from scale_cl.trackers.catalog import NAMES, parse
from scale_cl.trackers.note import Tracked, forget, read
from scale_cl.trackers.tracking import EVERY, Tracking, tracking

__all__ = ["EVERY", "NAMES", "About", "Backend", "Tracked", "Tracking", "forget", "parse", "read", "tracking"]
