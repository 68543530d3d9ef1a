"""Prediction by the nearest class mean: what methods share that classify by the features of their stored samples."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from scale_cl.learners.learner import ReplayLearner
from scale_cl.nets import ContinualNet, Outputs
from scale_cl.nets.model import TaskNet, Wrt

_NO_MEAN = -5.0  # score of a class without stored samples: below that of any other, which is at least -4


class NearestMeanLearner(ReplayLearner):
    """A learner that predicts the class whose stored samples have the nearest mean, by the current network."""

    def scores(self, x: Tensor, task: Tensor) -> Tensor:
        """-|phi(x) - mu_y|^2 for each class of the task."""
        means, exists = self.means(task[:1])
        return nearest_mean_scores(self.engine.evaluated(x, task).features, means, exists)

    @torch.no_grad()
    def means(self, task: Tensor) -> tuple[Tensor, Tensor]:
        """Mean features mu [classes, width] of a task's stored samples by the current network, and which of them exist.

        With a head per task, those of task number `task` [1]; with one head for all, those of all tasks. Both phi and
        mu have length one.
        """
        memory = self.memory
        rows = torch.cat([memory.finished(), memory.open_rows])
        is_open = torch.arange(len(rows), device=self.device) >= len(rows) - len(memory.open_rows)
        counts = memory.stored[rows] & (memory.replayable[rows] != is_open)  # a row of a closed task is there twice
        if not self.net.heads.shared:
            counts &= memory.task[rows] == task
        if self.engine.is_cpu:  # no shape to keep: only what counts has a forward
            rows, counts = rows[counts], counts[counts]
        classes = self.net.heads.bias.data.shape[1]
        own = (torch.arange(classes, device=self.device).unsqueeze(1) == memory.y[rows]) & counts  # [classes, rows]
        if len(rows) == 0:
            return self.network.base.tensors[0].new_zeros(classes, self.net.heads.width), own.any(1)
        phi = F.normalize(self.engine.evaluated(memory.x[rows], memory.task[rows]).features)
        return F.normalize(own.to(phi.dtype) @ phi), own.any(1)

    def predicting_net(self) -> ContinualNet:
        """A copy of the network that predicts by the means of each task's stored samples as they are now."""
        numbers = torch.arange(len(self.engine.classes), device=self.device)
        means = [self.means(numbers[k : k + 1]) for k in range(len(numbers))]
        return NearestMeanNet(super().predicting_net(), means)


def nearest_mean_scores(features: Tensor, means: Tensor, exists: Tensor) -> Tensor:
    """-|phi - mu|^2 [B, classes] = 2 phi mu - 2, as both have length one."""
    scores = 2 * F.normalize(features) @ means.T.to(features.dtype) - 2
    return torch.where(exists, scores, torch.full_like(scores, _NO_MEAN))


class NearestMeanNet(ContinualNet):
    """The network with fixed class means in place of heads, for export."""

    def __init__(self, net: ContinualNet, means: list[tuple[Tensor, Tensor]]) -> None:
        """Take over the parts of `net`; `means` are those of each task, and which of them exist."""
        super().__init__(net.inputs, net.backbone, net.heads, net.generator)
        self.tasks = nn.ModuleList(
            _NearestMean(TaskNet(net.backbone, net.heads, None, k), *m) for k, m in enumerate(means)
        )
        self.eval()

    def forward(self, x: Tensor, task: Tensor, *, parts: tuple[int, ...] = (), wrt: Wrt = "all") -> Outputs:
        """As the common network, with scores in place of logits, of samples that are all of one task."""
        out = super().forward(x, task)
        return Outputs(out.common, out.features, self.tasks[int(task[0])](x))

    def for_task(self, task: int) -> nn.Module:
        """Prepared inputs to scores of one task."""
        return self.tasks[task]


class _NearestMean(nn.Module):
    means: Tensor
    exists: Tensor

    def __init__(self, net: TaskNet, means: Tensor, exists: Tensor) -> None:
        super().__init__()
        self.net = net
        self.register_buffer("means", means[: net.head.out_features])
        self.register_buffer("exists", exists[: net.head.out_features])

    def forward(self, x: Tensor) -> Tensor:
        return nearest_mean_scores(self.net.features(x), self.means, self.exists)
