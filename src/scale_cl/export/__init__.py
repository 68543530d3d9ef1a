"""Export of one task of a trained learner as a file that runs without this package: ONNX, or `torch.export` (.pt2)."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from scale_cl.export.export_files import METADATA, Exported, write
from scale_cl.export.export_task import FittedClassifier, Label, subject_of
from scale_cl.learners import Learner

__all__ = ["METADATA", "Exported", "FittedClassifier", "to_onnx", "to_torch_export"]


def to_onnx(
    model: Learner | FittedClassifier,
    path: str | os.PathLike[str],
    *,
    task: Any = None,
    classes: Iterable[Label] | None = None,
    force: bool = False,
) -> Exported:
    """Write the model of one task as ONNX: raw samples [batch, ...] in, logits [batch, classes] out.

    Raw samples are what the learner's `predict` takes: uint8 pixels or float32 features. For a classifier they are
    images [batch, C, H, W] (channels last if its layout is "NHWC") or features, float64 if they are standardised.

    Before the file is put in place, onnxruntime runs it and its logits are compared with the learner's. Its metadata
    holds the task, the classes (a JSON list in the order of the logits), the shape and type of the input and the
    version of this package.

    Args:
        model: a learner, or a fitted `ScaleClassifier` or `ContinualClassifier`.
        path: the file to write.
        task: name of the task; optional if there is only one.
        classes: names of the task's classes in the order of its labels; not for a classifier, which knows them.
        force: replace an existing file.

    Examples:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from sklearn.datasets import load_iris
        >>> from scale_cl import ScaleClassifier
        >>> from scale_cl.export import to_onnx
        >>> X, y = load_iris(return_X_y=True)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     exported = to_onnx(ScaleClassifier().fit(X, y), Path(folder) / "iris.onnx")
        >>> exported.classes
        (0, 1, 2)
    """
    return write(subject_of(model, task, classes), Path(path), "onnx", force=force)


def to_torch_export(
    model: Learner | FittedClassifier,
    path: str | os.PathLike[str],
    *,
    task: Any = None,
    classes: Iterable[Label] | None = None,
    force: bool = False,
) -> Exported:
    """As `to_onnx`, but for `torch.export.load` (.pt2); the metadata is in the extra file metadata.json."""
    return write(subject_of(model, task, classes), Path(path), "torch", force=force)
