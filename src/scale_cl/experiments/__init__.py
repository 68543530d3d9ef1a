"""Experiments: each table and figure of the paper as data, planned into runs and carried out by an engine."""

from scale_cl.experiments.definitions import EXPERIMENTS, Experiment, chosen, grid
from scale_cl.experiments.engine import Engine, Listener, Outcome
from scale_cl.experiments.local import LocalEngine
from scale_cl.experiments.planning import Cell, Plan, PlannedRun, Request, plan

__all__ = [
    "EXPERIMENTS",
    "Cell",
    "Engine",
    "Experiment",
    "Listener",
    "LocalEngine",
    "Outcome",
    "Plan",
    "PlannedRun",
    "Request",
    "chosen",
    "grid",
    "plan",
]
