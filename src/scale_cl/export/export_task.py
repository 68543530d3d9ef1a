"""One task of a learner, ready for export: its network on raw samples, and the names of its inputs and outputs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_weights

import scale_cl
from scale_cl.errors import ExportError, InputError, UnknownTaskError
from scale_cl.learners import Compute, Learner
from scale_cl.nets import Inputs, ReducedResNet18
from scale_cl.nets.kernels.norm import BatchNorm, Then, followed
from scale_cl.training.checkpointing import on_this_device
from scale_cl.training.kept_model import KeptModel, kept_model

Label = str | int | float | bool


class FittedClassifier(Protocol):
    """What export needs of an estimator; a fitted `ScaleClassifier` or `ContinualClassifier` has it."""

    learner_: Learner
    layout: Any  # "NHWC": images have their channels last

    @property
    def input_origin(self) -> NDArray[np.float64] | None:
        """What is subtracted from features first."""

    def task_classes(self, task: Any) -> NDArray[Any]:
        """The labels of a task in the order of its head's outputs."""


@dataclass(frozen=True, eq=False)
class Subject:
    """One task of a learner, as the exported file presents it."""

    learner: Learner  # on the CPU
    task: str
    classes: tuple[Label, ...]  # the label of each logit
    origin: Tensor | None = None  # [F] float64, subtracted from raw features
    channels_last: bool = False  # raw images are [B, H, W, C]
    preprocess: str | None = None  # how an image file becomes a raw sample, if that is known

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one raw sample."""
        shape = tuple(self.learner.spec.shape)
        return (*shape[1:], shape[0]) if self.channels_last else shape

    @property
    def dtype(self) -> torch.dtype:
        """Type of a raw sample; features with an origin are float64, because their last digits may matter."""
        if self.learner.spec.pixel_max is not None:
            return torch.uint8
        return torch.float32 if self.origin is None else torch.float64

    def raw(self, x: Tensor) -> Tensor:
        """The learner's samples as raw samples."""
        if self.origin is not None:
            x = x.double() + self.origin
        return x.permute(0, 2, 3, 1).contiguous() if self.channels_last else x

    def taken(self, raw: Tensor) -> Tensor:
        """Raw samples as the learner's samples; the inverse of `raw` up to rounding in float64."""
        x = raw.permute(0, 3, 1, 2).contiguous() if self.channels_last else raw
        return x if self.origin is None else (x - self.origin).float()

    def net(self) -> RawTaskNet:
        """The network to export: a copy."""
        net = self.learner.predicting_net()
        preparation = Preparation(net.inputs, origin=self.origin, channels_last=self.channels_last)
        network = net.for_task(self.learner.tasks.index(self.task))
        if self.learner.config.average_flips and len(self.learner.spec.shape) == 3:
            network = MeanOfFlips(network)
        return RawTaskNet(preparation, network, len(self.classes))

    def metadata(self) -> dict[str, Any]:
        """What users of the exported model must know."""
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
    """One task of a learner, or of a fitted estimator, which knows the names of its classes."""
    learner = model if isinstance(model, Learner) else getattr(model, "learner_", None)
    if not isinstance(learner, Learner):
        what = "is not fitted yet" if hasattr(model, "partial_fit") else "is neither a learner nor a fitted classifier"
        raise InputError(f"{type(model).__name__} {what}: there is nothing to export")
    name = _name(learner, task)
    learner = _on_cpu(learner)
    width = _outputs(learner, name)
    if isinstance(model, Learner):
        names = tuple(range(width)) if classes is None else tuple(classes)
        if len(names) != width:
            raise InputError(f"{len(names)} class names for task {name!r}, which has {width} classes; give one each")
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


def _on_cpu(learner: Learner) -> Learner:
    """The learner itself, or a copy on the CPU in float32: predictions on a GPU have lower precision than the file."""
    if learner.device.type == "cpu":
        return learner
    given: dict[str, Any] = {"seed": learner.seed, "backbone": learner.engine.given_backbone}
    copy = type(learner)(learner.spec, learner.config, compute=Compute("fp32"), **given)
    copy.name = learner.name
    copy.load_state_dict(on_this_device(learner.state_dict(), copy))
    return copy


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
    """The number of classes of a task: the width of a prediction."""
    dtype = torch.float32 if learner.spec.pixel_max is None else torch.uint8
    return int(learner.predict(torch.zeros(1, *learner.spec.shape, dtype=dtype), task).shape[1])


class MeanOfFlips(nn.Module):
    """The mean of a network's outputs for images and mirror images."""

    def __init__(self, network: nn.Module) -> None:
        """Take over `network`."""
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        """Prepared images [B, C, H, W] to logits [B, classes]."""
        logits: Tensor = (self.network(x) + self.network(x.flip(-1))) / 2
        return logits


class Preparation(nn.Module):
    """Raw samples to prepared inputs, as `Inputs` does it, with the current input statistics as constants."""

    origin: Tensor | None
    mean: Tensor | None
    deviation: Tensor | None

    def __init__(self, inputs: Inputs, *, origin: Tensor | None = None, channels_last: bool = False) -> None:
        """For samples [B, *shape], or images [B, H, W, C]; `origin` is subtracted first, in float64."""
        super().__init__()
        self.channels_last, self.pixel_max = channels_last, inputs.pixel_max
        self.register_buffer("origin", origin)
        mean = deviation = None
        if inputs.standardise:
            mean, deviation = (t.float() for t in inputs.statistics())
        self.register_buffer("mean", mean)
        self.register_buffer("deviation", deviation)

    def forward(self, x: Tensor) -> Tensor:
        """[B, *shape] float32."""
        if self.channels_last:
            x = x.permute(0, 3, 1, 2)
        if self.origin is not None:
            x = x - self.origin
        x = x.to(torch.float32)
        if self.pixel_max is not None:
            x = x / self.pixel_max
        if self.mean is not None and self.deviation is not None:
            x = (x - self.mean) / self.deviation
        return x


class RawTaskNet(nn.Module):
    """The network of one task with its input preparation, in evaluation mode: raw samples to logits."""

    def __init__(self, preparation: Preparation, network: nn.Module, classes: int) -> None:
        """Take over `network`, a copy; if its head has more than `classes` outputs, the others are cut off."""
        super().__init__()
        self.preparation, self.network, self.classes = preparation, network, classes
        self.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
        self.requires_grad_(False)
        self.eval()
        _fold_batch_norms(network)

    def forward(self, x: Tensor) -> Tensor:
        """Logits [B, classes]."""
        logits: Tensor = self.network(self.preparation(x))
        return logits if logits.shape[1] == self.classes else logits[:, : self.classes]


def _fold_batch_norms(network: nn.Module) -> None:
    """Fold the batch norms of our own ResNet into the convolutions before them; in evaluation mode both are linear.

    A custom backbone is left as it is: other parts of it may use the output of a convolution.
    """
    for backbone in [module for module in network.modules() if isinstance(module, ReducedResNet18)]:
        for module in list(backbone.modules()):
            names = [name for name, _ in module.named_children()]
            for before, name in pairwise(names):
                conv, norm = module.get_submodule(before), module.get_submodule(name)
                if isinstance(conv, nn.Conv2d) and isinstance(norm, BatchNorm):
                    setattr(module, before, _folded(conv, norm))
                    setattr(module, name, _AfterNorm())


def _folded(conv: nn.Conv2d, norm: BatchNorm) -> nn.Conv2d:
    """The convolution with the batch norm's arithmetic, computed in float64 and rounded once."""
    bias = None if conv.bias is None else conv.bias.double()
    running = norm.running_mean.double(), norm.running_var.double()
    scale_and_shift = norm.weight.double(), norm.bias.double()
    weight, shift = fuse_conv_bn_weights(conv.weight.double(), bias, *running, norm.eps, *scale_and_shift)
    settings = {"stride": conv.stride, "padding": conv.padding, "dilation": conv.dilation, "groups": conv.groups}
    sizes = conv.in_channels, conv.out_channels, conv.kernel_size
    made = nn.Conv2d(*sizes, **settings, device="meta")  # type: ignore[arg-type]
    made.weight, made.bias = (nn.Parameter(t.to(conv.weight), requires_grad=False) for t in (weight, shift))
    return made


class _AfterNorm(nn.Module):
    """What remains of a folded batch norm: the shortcut and activation after it."""

    def forward(
        self, x: Tensor, parts: tuple[int, ...] = (), *, shortcut: Tensor | None = None, then: Then = "nothing"
    ) -> Tensor:
        return followed(x, shortcut, then)


# ---- of a run --------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, eq=False)
class Trained:
    """A learner on the CPU, and what its run has kept of it."""

    learner: Learner
    kept: KeptModel

    def subject(self, task: str) -> Subject:
        """One task, ready for export."""
        classes = {saved.name: saved.classes for saved in self.kept.model.tasks}
        return replace(subject_of(self.learner, task, classes.get(task)), preprocess=self.kept.preprocess)


def learner_of_run(directory: Path, *, seed: int | None = None) -> Trained:
    """The learner of one seed of a run, finished or not; its data is not needed."""
    kept = kept_model(directory, seed=seed, unfinished=True)
    return Trained(kept.learner(), kept)
