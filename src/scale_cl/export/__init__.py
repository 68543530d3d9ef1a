"""A trained learner for one task as a file that runs without this package: ONNX, or a program of `torch.export`."""

from scale_cl.export.subject import FittedClassifier
from scale_cl.export.writing import METADATA, Exported, to_onnx, to_torch_export

__all__ = ["METADATA", "Exported", "FittedClassifier", "to_onnx", "to_torch_export"]
