"""A learner as the model of an Avalanche strategy: samples and labels as Avalanche has them, in and out.

A learner has one head per task, whose outputs count from 0, or one head for all tasks; Avalanche numbers the classes of
all tasks together. Which output stands for which label is recorded as labels appear.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from scale_cl.errors import InputError
from scale_cl.estimator.tasks import ClassBook
from scale_cl.learners import Compute, Learner, LearnerConfig, registry
from scale_cl.nets.custom_backbone import BackboneLike
from scale_cl.streams import InputSpec, TaskInfo
from scale_cl.streams.stream import Scenario

_GREY = ("1", "L", "LA")


class Collate:
    """The collate function of a data set, applied after PIL images are converted to tensors."""

    def __init__(self, collate: Callable[[list[Any]], Any]) -> None:
        """Wrap the data set's own function."""
        self.collate = collate

    def __call__(self, samples: Sequence[Sequence[Any]]) -> Any:
        """Make one batch of samples (x, y, ..., task label)."""
        if not isinstance(samples[0][0], Image.Image):
            return self.collate(list(samples))
        pixels = [pixels_of(sample[0]) for sample in samples]
        shapes = sorted({tuple(image.shape) for image in pixels})
        if len(shapes) > 1:
            raise InputError(
                f"images of shapes {list(shapes[0])} and {list(shapes[1])} are in one batch; "
                "give the benchmark a transform that makes them equal"
            )
        return self.collate([(image, *sample[1:]) for image, sample in zip(pixels, samples, strict=True)])


def pixels_of(image: Image.Image) -> Tensor:
    """A PIL image as uint8 [1, H, W] if it is grey, else [3, H, W]."""
    if image.mode.startswith(("I", "F")):
        what = f"an image has pixels of more than 8 bits (mode {image.mode})"
        raise InputError(f"{what}; give 8 bits per channel, or a tensor")
    pixels = np.array(image.convert("L" if image.mode in _GREY else "RGB"), dtype=np.uint8)
    return torch.from_numpy(pixels.reshape(image.height, image.width, -1)).permute(2, 0, 1).contiguous()


def as_inputs(x: Any) -> Tensor:
    """A batch as [n, f] or [n, c, h, w], uint8 or float32; images without a channel get one."""
    if not isinstance(x, Tensor):
        raise InputError(f"a batch is a {type(x).__name__}; give tensors, arrays or PIL images")
    if x.dtype != torch.uint8 and not x.is_floating_point():
        raise InputError(f"a batch is of {x.dtype}; give uint8 pixels or floats")
    if x.ndim not in (2, 3, 4):
        raise InputError(f"a batch has shape {list(x.shape)}; give features [n, f] or images [n, h, w] or [n, c, h, w]")
    raw: Tensor = x if x.dtype == torch.uint8 else x.float()
    return raw.unsqueeze(1) if raw.ndim == 3 else raw


def as_labels(y: Any, samples: int) -> Tensor:
    """Class or task labels as [n] int64, none below 0."""
    if not isinstance(y, Tensor) or y.is_floating_point() or y.shape != (samples,):
        found = f"{y.dtype} of shape {list(y.shape)}" if isinstance(y, Tensor) else type(y).__name__
        raise InputError(f"labels are {found}; give {samples} whole numbers")
    labels: Tensor = y.long()
    if int(labels.min()) < 0:
        raise InputError(f"label {int(labels.min())} is below 0; labels count up from 0")
    return labels


_BELOW = 1000.0  # how far the scores of other tasks' classes are below a task's own: probability 0, but a finite loss


@dataclass(frozen=True)
class Recipe:
    """Everything that defines a learner except the inputs, which the first batch shows."""

    name: str | type[Learner]
    config: LearnerConfig
    scenario: Scenario
    classes: int  # minimum number of outputs of a head; in a shared head they stand for the labels from 0 on
    pixel_max: float
    seed: int
    device: torch.device
    compute: Compute | None
    backbone: BackboneLike | None

    def spec_of(self, x: Tensor) -> InputSpec:
        """The input spec of a batch."""
        return InputSpec(tuple(x.shape[1:]), self.pixel_max if x.dtype == torch.uint8 else None, self.scenario)

    def learner(self, spec: InputSpec) -> Learner:
        """A new learner for these inputs."""
        made = {"seed": self.seed, "device": self.device, "compute": self.compute, "backbone": self.backbone}
        return registry.make(self.name, spec, self.config, **made)  # type: ignore[arg-type]


class LearnerModule(nn.Module):
    """A module around a learner that is created with the first batch; its network is the submodule `net`."""

    def __init__(self, recipe: Recipe) -> None:
        """No learner and no classes yet."""
        super().__init__()
        self.recipe = recipe
        self.learner: Learner | None = None
        self.book = ClassBook(shared=recipe.scenario == "domain")
        self.width = 0  # columns of the scores: the largest label seen, plus one
        self._begun: dict[str, int] = {}  # outputs of each task's head when it was last begun

    # ---- learning ----------------------------------------------------------------------------------------------------
    def expect(self, task: int, labels: Iterable[int]) -> None:
        """Add these labels to the task's head, from its next batch on."""
        foreseen = range(self.recipe.classes if self.book.shared else 0)
        found = np.array(sorted({*labels, *foreseen}), dtype=np.int64)
        if len(found):
            self.book.add(str(task), found)
            self.widen(int(found[-1]))

    def widen(self, label: int) -> None:
        """Make sure that the scores have a column for this label."""
        self.width = max(self.width, label + 1)

    def learn(self, x: Tensor, y: Tensor, task: int) -> Tensor:
        """One step of the learner; begins the task if necessary, and returns the loss that the step reports.

        Args:
            x: [n, *shape] uint8 or float32.
            y: [n] int64 labels of Avalanche, on the CPU.
            task: task label of Avalanche, the same for all samples.
        """
        name = str(task)
        self.expect(task, set(y.tolist()))
        if self.learner is None:
            self.learner = self.recipe.learner(self.recipe.spec_of(x))
            self.net = self.learner.net
        outputs = max(self.recipe.classes, self.book.size(name))
        if self.learner.current_task != name or outputs > self._begun[name]:
            self.learner.begin_task(TaskInfo(name, outputs))
            self._begun[name] = outputs
        return self.learner.observe(x, self.book.outputs(name, y.numpy()))["loss"].clone()

    def end_task(self) -> None:
        """End the current task, if there is one."""
        if self.learner is not None:
            self.learner.end_task()

    # ---- prediction --------------------------------------------------------------------------------------------------
    def forward(self, x: Tensor, task_labels: Tensor | list[int]) -> Tensor:
        """Scores [n, width] of samples with their task labels [n]: one column per class label of Avalanche.

        Classes that the sample's task does not have get scores far below its own. For a task that was never trained,
        all scores are 0.
        """
        tasks = task_labels.tolist() if isinstance(task_labels, Tensor) else task_labels
        different = list(dict.fromkeys(tasks))
        if len(different) == 1:
            return self._scores(x, different[0])
        scores = torch.zeros(len(x), self.width, device=self.recipe.device)
        for task in different:
            rows = torch.tensor([own == task for own in tasks])
            scores[rows.to(scores.device)] = self._scores(x[rows.to(x.device)], task)
        return scores

    def _scores(self, x: Tensor, task: int) -> Tensor:
        name = str(task)
        if self.learner is None or name not in self.learner.tasks:
            return torch.zeros(len(x), self.width, device=self.recipe.device)
        logits = self.learner.predict(x, name)
        labels = torch.from_numpy(self.book.classes[self.book.columns(name)]).to(logits.device, non_blocking=True)
        known = min(len(labels), logits.shape[1])  # there may be labels without an output, and outputs without a label
        scores = (logits.amin(1, keepdim=True) - _BELOW).repeat(1, self.width)
        return scores.index_copy_(1, labels[:known], logits[:, :known])

    # ---- copies ------------------------------------------------------------------------------------------------------
    def __getstate__(self) -> dict[str, Any]:
        """All attributes, with the learner as its spec and state."""
        state = dict(self.__dict__)
        if self.learner is not None:
            state["learner"] = (self.learner.spec, self.learner.state_dict())
            state["_modules"] = {}
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        packed = state["learner"]
        super().__setstate__({**state, "learner": None})  # type: ignore[no-untyped-call]
        if packed is not None:
            self.learner = self.recipe.learner(packed[0])
            self.learner.load_state_dict(packed[1])
            self.net = self.learner.net
