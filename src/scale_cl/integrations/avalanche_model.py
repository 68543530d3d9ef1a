"""The strategy's model as Avalanche sees it: a module that speaks Avalanche's labels, with a learner inside.

A learner has a head a task whose outputs count up from 0, or one head for all; Avalanche numbers the classes of all
tasks together. Which output stands for which label is found out as labels come.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from scale_cl.estimator.tasks import ClassBook
from scale_cl.learners import Compute, Learner, LearnerConfig, registry
from scale_cl.nets.custom_backbone import BackboneLike
from scale_cl.streams import InputSpec, TaskInfo
from scale_cl.streams.stream import Scenario

_BELOW = 1000.0  # how far below a task's own scores those of other classes lie: no probability, but a finite loss


@dataclass(frozen=True)
class Recipe:
    """All that makes a learner, apart from what its inputs look like, which the first batch shows."""

    name: str
    config: LearnerConfig
    scenario: Scenario
    classes: int  # outputs that a head has at least; of a shared head they stand for the labels from 0 on
    pixel_max: float
    seed: int
    device: torch.device
    compute: Compute | None
    backbone: BackboneLike | None

    def spec_of(self, x: Tensor) -> InputSpec:
        """What the inputs of a batch look like."""
        return InputSpec(tuple(x.shape[1:]), self.pixel_max if x.dtype == torch.uint8 else None, self.scenario)

    def learner(self, spec: InputSpec) -> Learner:
        """A new learner for such inputs."""
        made = {"seed": self.seed, "device": self.device, "compute": self.compute, "backbone": self.backbone}
        return registry.make(self.name, spec, self.config, **made)  # type: ignore[arg-type]


class LearnerModule(nn.Module):
    """A learner that is made with the first batch; its network is the only submodule, `net`."""

    def __init__(self, recipe: Recipe) -> None:
        """No learner yet, and no class."""
        super().__init__()
        self.recipe = recipe
        self.learner: Learner | None = None
        self.book = ClassBook(shared=recipe.scenario == "domain")
        self.width = 0  # columns of the scores: one more than the largest label that was ever seen
        self._begun: dict[str, int] = {}  # outputs of each task's head when it was last opened

    # ---- learning ----------------------------------------------------------------------------------------------------

    def expect(self, task: int, labels: Iterable[int]) -> None:
        """Let these labels have outputs of the task's head, from its next batch on."""
        foreseen = range(self.recipe.classes if self.book.shared else 0)
        found = np.array(sorted({*labels, *foreseen}), dtype=np.int64)
        if len(found):
            self.book.add(str(task), found)
            self.widen(int(found[-1]))

    def widen(self, label: int) -> None:
        """Let the scores have a column for this label."""
        self.width = max(self.width, label + 1)

    def learn(self, x: Tensor, y: Tensor, task: int) -> Tensor:
        """A step of the learner, for which the task is opened if it is not; returns the loss that the step reports.

        Args:
            x: [n, *shape] uint8 or float32.
            y: [n] int64 Avalanche's labels, on the CPU.
            task: Avalanche's label of the task of all of them.
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
        """Close the open task, if one is."""
        if self.learner is not None:
            self.learner.end_task()

    # ---- prediction --------------------------------------------------------------------------------------------------

    def forward(self, x: Tensor, task_labels: Tensor | list[int]) -> Tensor:
        """Scores [n, width] of samples with their task labels [n]: a column for each of Avalanche's class labels.

        Classes that a sample's task does not have lie far below those that it has. Of a task that was never trained
        nothing is known: all its scores are 0.
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
        known = min(len(labels), logits.shape[1])  # labels may be new, and outputs may have no label yet
        scores = (logits.amin(1, keepdim=True) - _BELOW).repeat(1, self.width)
        return scores.index_copy_(1, labels[:known], logits[:, :known])

    # ---- copies ------------------------------------------------------------------------------------------------------

    def __getstate__(self) -> dict[str, Any]:
        """A learner does not travel; what it is made of does."""
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
