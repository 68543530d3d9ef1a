"""What is exported: a learner, one of its tasks, and what its outputs and raw inputs are called outside."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

import scale_cl
from scale_cl.errors import ExportError, InputError, UnknownTaskError
from scale_cl.export.task_net import Preparation, TaskNet
from scale_cl.learners import Learner

Label = str | int | float | bool


class FittedClassifier(Protocol):
    """What export asks of an estimator; `ScaleClassifier` and `ContinualClassifier` have it once they are fitted."""

    learner_: Learner
    layout: Any  # "NHWC": images come with their channels last

    @property
    def input_origin(self) -> NDArray[np.float64] | None:
        """What is subtracted from features first."""
        ...

    def task_classes(self, task: Any) -> NDArray[Any]:
        """The labels of a task in the order of its head's outputs."""
        ...


@dataclass(frozen=True, eq=False)
class Subject:
    """One task of a learner, as the outside sees it."""

    learner: Learner
    task: str
    classes: tuple[Label, ...]  # what each logit stands for
    origin: Tensor | None = None  # [F] float64, subtracted from raw features
    channels_last: bool = False  # raw images are [B, H, W, C]
    preprocess: str | None = None  # how an image file becomes a raw sample, where that is known

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one raw sample."""
        shape = tuple(self.learner.spec.shape)
        return (*shape[1:], shape[0]) if self.channels_last else shape

    @property
    def dtype(self) -> torch.dtype:
        """Type of a raw sample; features with an origin come in 64 bits, as their last digits may matter."""
        if self.learner.spec.pixel_max is not None:
            return torch.uint8
        return torch.float32 if self.origin is None else torch.float64

    def raw(self, x: Tensor) -> Tensor:
        """Samples as the learner takes them, as the outside has them."""
        if self.origin is not None:
            x = x.double() + self.origin
        return x.permute(0, 2, 3, 1).contiguous() if self.channels_last else x

    def taken(self, raw: Tensor) -> Tensor:
        """Raw samples as the learner takes them; digits that 64 bits cannot hold were lost on the way out."""
        x = raw.permute(0, 3, 1, 2).contiguous() if self.channels_last else raw
        return x if self.origin is None else (x - self.origin).float()

    def net(self) -> TaskNet:
        """The network to export, on the CPU and in 32 bits, whatever the learner's device and precision are."""
        net = self.learner.predicting_net().to(device="cpu")
        net.backbone.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
        preparation = Preparation(net.inputs, origin=self.origin, channels_last=self.channels_last)
        return TaskNet(net, self.learner.tasks.index(self.task), len(self.classes), preparation)

    def metadata(self) -> dict[str, Any]:
        """What whoever runs the exported model must know."""
        batch = ["batch", *self.shape]
        preprocess = {} if self.preprocess is None else {"preprocess": self.preprocess}
        return {
            "task": self.task,
            "classes": list(self.classes),
            "input_shape": batch,
            "input_dtype": str(self.dtype).removeprefix("torch."),
            **preprocess,
            "learner": self.learner.name,
            "scale_cl": scale_cl.__version__,
        }


def subject_of(model: Learner | FittedClassifier, task: Any = None, classes: Iterable[Label] | None = None) -> Subject:
    """One task of a learner or of a fitted estimator, which knows the names of its classes itself."""
    learner = model if isinstance(model, Learner) else getattr(model, "learner_", None)
    if not isinstance(learner, Learner):
        what = "is not fitted yet" if hasattr(model, "partial_fit") else "is neither a learner nor a fitted classifier"
        raise InputError(f"{type(model).__name__} {what}: there is nothing to export")
    name = _name(learner, task)
    width = _outputs(learner, name)
    if isinstance(model, Learner):
        names = tuple(range(width)) if classes is None else tuple(classes)
        if len(names) != width:
            raise InputError(
                f"{len(names)} class names for task {name!r}, which has {width} classes; give one for each"
            )
        return Subject(learner, name, names)
    if classes is not None:
        raise InputError("a classifier knows the names of its classes; leave `classes` out")
    origin = model.input_origin
    return Subject(
        learner,
        name,
        tuple(model.task_classes(name).tolist()),
        None if origin is None else torch.from_numpy(origin),
        len(learner.spec.shape) == 3 and model.layout == "NHWC",
    )


def _name(learner: Learner, task: Any) -> str:
    tasks = learner.tasks
    if not tasks:
        raise ExportError("the learner has seen no task yet: there is nothing to export")
    if task is None and len(tasks) > 1:
        raise InputError(f"several tasks were seen ({', '.join(map(repr, tasks))}); say which one to export, task=...")
    name = tasks[0] if task is None else str(task)
    if name not in tasks:
        raise UnknownTaskError(f"task {name!r} was never seen; tasks seen: {', '.join(map(repr, tasks))}")
    return name


def _outputs(learner: Learner, task: str) -> int:
    """Classes of a task: as many as a prediction has."""
    dtype = torch.float32 if learner.spec.pixel_max is None else torch.uint8
    return int(learner.predict(torch.zeros(1, *learner.spec.shape, dtype=dtype), task).shape[1])
