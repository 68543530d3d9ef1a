"""Avalanche, imported once, when the first test needs it."""

from __future__ import annotations

import importlib.util
import warnings
from pathlib import Path

import pytest
import torch


@pytest.fixture(scope="session", autouse=True)
def avalanche() -> torch.library.Library:
    """Avalanche imports torchvision; where its library does not fit this torch, the import needs two names of it."""
    found = importlib.util.find_spec("torchvision")
    assert found is not None
    assert found.origin is not None
    names = torch.library.Library("torchvision", "FRAGMENT")
    try:
        for library in Path(found.origin).parent.glob("_C.*"):
            torch.ops.load_library(library)
    except OSError:
        for operator in ("nms", "qnms"):
            names.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the packages that it imports
        importlib.import_module("avalanche.training")
    return names  # they are there as long as this is
