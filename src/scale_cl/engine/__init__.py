"""The engine: what makes any method run, and knows none by name."""

from scale_cl.engine.engine import STREAM, Engine, Method
from scale_cl.engine.network import Network
from scale_cl.engine.owned import plain_copy
from scale_cl.engine.parts import Part, TaskModules, TaskPart, TaskShape, Teacher
from scale_cl.engine.replay import Batch, ReplayMemory, Samples
from scale_cl.engine.settings import (
    MEMORY_POLICY,
    NORM_ON_MEMORY,
    Compute,
    LearnerConfig,
    MemoryConfig,
    ReplayConfig,
    Setup,
    State,
    StepStats,
)
from scale_cl.engine.turns import Turns, in_turn
from scale_cl.engine.weights import Weights, WeightState

__all__ = [
    "MEMORY_POLICY",
    "NORM_ON_MEMORY",
    "STREAM",
    "Batch",
    "Compute",
    "Engine",
    "LearnerConfig",
    "MemoryConfig",
    "Method",
    "Network",
    "Part",
    "ReplayConfig",
    "ReplayMemory",
    "Samples",
    "Setup",
    "State",
    "StepStats",
    "TaskModules",
    "TaskPart",
    "TaskShape",
    "Teacher",
    "Turns",
    "WeightState",
    "Weights",
    "in_turn",
    "plain_copy",
]
