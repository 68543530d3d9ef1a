"""Online continual learning: tasks arrive one after another, one pass, a small memory, no forgetting.

The public names below are imported on first use, so that `import scale_cl` and `scale-cl --help` stay quick.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scale_cl import learners, metrics, streams
    from scale_cl.errors import ScaleClError
    from scale_cl.estimator import ContinualClassifier, ScaleClassifier
    from scale_cl.estimator.saved_model import evaluate, info, predict
    from scale_cl.learners.scale import Scale, ScaleConfig
    from scale_cl.nets import CustomBackbone
    from scale_cl.results import RunResult, SeedResult
    from scale_cl.streams import InputSpec, Stream, Task, TaskInfo
    from scale_cl.training import train, train_many
    from scale_cl.training.config import Config, resolve
    from scale_cl.training.kept_model import learn
    from scale_cl.training.run import run

__version__ = "0.1.0"

_HOMES = {
    "errors": ("ScaleClError",),
    "estimator": ("ContinualClassifier", "ScaleClassifier"),
    "estimator.saved_model": ("evaluate", "info", "predict"),
    "learners.scale": ("Scale", "ScaleConfig"),
    "nets": ("CustomBackbone",),
    "results": ("RunResult", "SeedResult"),
    "streams": ("InputSpec", "Stream", "Task", "TaskInfo"),
    "training": ("train", "train_many"),
    "training.config": ("Config", "resolve"),
    "training.kept_model": ("learn",),
    "training.run": ("run",),
}
_MODULES = ("learners", "metrics", "streams")

__all__ = [
    "Config",
    "ContinualClassifier",
    "CustomBackbone",
    "InputSpec",
    "RunResult",
    "Scale",
    "ScaleClError",
    "ScaleClassifier",
    "ScaleConfig",
    "SeedResult",
    "Stream",
    "Task",
    "TaskInfo",
    "__version__",
    "evaluate",
    "info",
    "learn",
    "learners",
    "metrics",
    "predict",
    "resolve",
    "run",
    "streams",
    "train",
    "train_many",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"scale_cl.{name}")
    for home, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(f"scale_cl.{home}"), name)
    raise AttributeError(f"module 'scale_cl' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
