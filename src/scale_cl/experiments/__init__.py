"""Experiments: each table and figure of the paper as data, planned into runs that an engine executes.

The names below are imported on first use: reports use `result_index` without torch; Ray is imported on request only.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scale_cl.experiments.definitions import EXPERIMENTS, Experiment, chosen, grid
    from scale_cl.experiments.engine import Engine, Listener, Outcome
    from scale_cl.experiments.local import LocalEngine
    from scale_cl.experiments.planning import ExperimentCell, ExperimentPlan, PlannedRun, Request, plan
    from scale_cl.experiments.ray_cluster import Cluster
    from scale_cl.experiments.ray_engine import RayEngine

_HOMES = {
    "EXPERIMENTS": "definitions",
    "Cluster": "ray_cluster",
    "Engine": "engine",
    "Experiment": "definitions",
    "ExperimentCell": "planning",
    "ExperimentPlan": "planning",
    "Listener": "engine",
    "LocalEngine": "local",
    "Outcome": "engine",
    "PlannedRun": "planning",
    "RayEngine": "ray_engine",
    "Request": "planning",
    "chosen": "definitions",
    "grid": "definitions",
    "plan": "planning",
}

__all__ = [
    "EXPERIMENTS",
    "Cluster",
    "Engine",
    "Experiment",
    "ExperimentCell",
    "ExperimentPlan",
    "Listener",
    "LocalEngine",
    "Outcome",
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
