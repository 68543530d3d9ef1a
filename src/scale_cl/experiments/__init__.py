"""Experiments: each table and figure of the paper as data, planned into runs and carried out by an engine.

The names below are imported on first use: `identity`, which reports import, needs no torch, and nobody needs Ray who
does not ask for it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scale_cl.experiments.definitions import EXPERIMENTS, Experiment, chosen, grid
    from scale_cl.experiments.engine import Engine, Listener, Outcome
    from scale_cl.experiments.local import LocalEngine
    from scale_cl.experiments.planning import Cell, Plan, PlannedRun, Request, plan
    from scale_cl.experiments.ray_cluster import Cluster
    from scale_cl.experiments.ray_engine import RayEngine

_HOMES = {
    "EXPERIMENTS": "definitions",
    "Cell": "planning",
    "Cluster": "ray_cluster",
    "Engine": "engine",
    "Experiment": "definitions",
    "Listener": "engine",
    "LocalEngine": "local",
    "Outcome": "engine",
    "Plan": "planning",
    "PlannedRun": "planning",
    "RayEngine": "ray_engine",
    "Request": "planning",
    "chosen": "definitions",
    "grid": "definitions",
    "plan": "planning",
}

__all__ = [
    "EXPERIMENTS",
    "Cell",
    "Cluster",
    "Engine",
    "Experiment",
    "Listener",
    "LocalEngine",
    "Outcome",
    "Plan",
    "PlannedRun",
    "RayEngine",
    "Request",
    "chosen",
    "grid",
    "plan",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f"scale_cl.experiments.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'scale_cl.experiments' has no attribute {name!r}")
