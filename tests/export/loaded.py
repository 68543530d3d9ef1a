"""Exported files as somebody without this package runs them."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
from numpy.typing import NDArray


class OnnxFile:
    """A file in ONNX Runtime, with its metadata."""

    def __init__(self, path: Path) -> None:
        self._session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        self.metadata: dict[str, str] = self._session.get_modelmeta().custom_metadata_map
        self.classes: list[Any] = json.loads(self.metadata["classes"])
        (self.input,), (self.output,) = self._session.get_inputs(), self._session.get_outputs()

    def logits(self, x: Any, batch: int = 10**9) -> NDArray[np.float32]:
        """Of samples, so many at a time."""
        x = np.asarray(x)
        parts = [self._session.run(None, {self.input.name: x[i : i + batch]})[0] for i in range(0, len(x), batch)]
        return np.concatenate(parts)

    def labels(self, x: Any) -> list[Any]:
        """The class of each sample, by its name."""
        return [self.classes[k] for k in self.logits(x).argmax(1)]


def pt2_logits(path: Path, x: Any) -> NDArray[np.float32]:
    """Logits by a program of torch.export."""
    out: NDArray[np.float32] = torch.export.load(path).module()(torch.as_tensor(x)).numpy()
    return out


def operations(path: Path) -> Counter[str]:
    """How often each operation is in a file's graph."""
    return Counter(node.op_type for node in onnx.load(path).graph.node)


def constants(path: Path) -> list[tuple[int, ...]]:
    """Shapes of the weights in a file."""
    return [tuple(t.dims) for t in onnx.load(path).graph.initializer]
