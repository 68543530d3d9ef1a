"""A trained learner for one task as a file that runs without this package: ONNX, or a program of `torch.export`."""

from scale_cl.export.export_files import METADATA, Exported, to_onnx, to_torch_export
from scale_cl.export.export_task import FittedClassifier

__all__ = ["METADATA", "Exported", "FittedClassifier", "to_onnx", "to_torch_export"]
