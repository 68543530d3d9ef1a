"""torchvision and Avalanche, imported once, where torchvision's library does not fit this torch.

It then lacks two operators, and declarations of these are enough for the import. They are taken back afterwards, so
that whoever else needs them can declare them too.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import warnings
from pathlib import Path

import torch


def imported(name: str) -> None:
    """Import `name`, which needs torchvision."""
    if name in sys.modules:
        return
    declared = _declared()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the packages that it imports
        importlib.import_module(name)
    if declared is not None:
        declared._destroy()


def _declared() -> torch.library.Library | None:
    if "torchvision" in sys.modules:
        return None
    found = importlib.util.find_spec("torchvision")
    assert found is not None
    assert found.origin is not None
    try:
        for library in Path(found.origin).parent.glob("_C.*"):
            torch.ops.load_library(library)
    except OSError:
        declared = torch.library.Library("torchvision", "FRAGMENT")
        for operator in ("nms", "qnms"):
            declared.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        return declared
    return None
