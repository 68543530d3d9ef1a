"""Prediction by the nearest class mean: what methods share that classify by the features of their stored samples."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from scale_cl.learners.learner import ReplayLearner
from scale_cl.nets import ContinualNet, Outputs
from scale_cl.nets.model import TaskNet, Wrt

_AT_ONCE = 1024  # stored samples in one forward
_NO_MEAN = -5.0  # score of a class without stored samples: below that of any other, which is at least -4


class NearestMeanLearner(ReplayLearner):
    """A learner that predicts the class whose stored samples have the nearest mean, by the current network."""

    def scores(self, x: Tensor, task: Tensor) -> Tensor:
        """-|phi(x) - mu_y|^2 for each class of the task."""
        means, exists = self.engine.derived["means"], self.engine.derived["exists"]  # [tasks or 1, classes, ...]
        own = torch.zeros_like(task) if self.net.heads.shared else task
        scores = nearest_mean_scores(self.engine.evaluated(x, task).features, means.flatten(0, 1), exists.flatten())
        by_task: Tensor = scores.unflatten(1, exists.shape)  # [B, tasks or 1, classes]
        return by_task[torch.arange(len(own), device=own.device), own]

    def derived(self) -> dict[str, Tensor]:
        """Means mu of the features of stored samples by the current network, and which of them exist.

        With a head per task [tasks, classes, width]; with one for all, of all tasks [1, classes, width]. Both phi and
        mu have length one.
        """
        memory, heads = self.memory, self.net.heads
        rows = torch.cat([memory.finished(), memory.open_rows])
        is_open = torch.arange(len(rows), device=self.device) >= len(rows) - len(memory.open_rows)
        rows = rows[memory.stored[rows] & (memory.replayable[rows] != is_open)]  # some are there twice
        tasks, classes = 1 if heads.shared else len(self.engine.classes), heads.bias.data.shape[1]
        own = memory.y[rows] if heads.shared else memory.task[rows] * classes + memory.y[rows]
        of_class = torch.arange(tasks * classes, device=self.device).unsqueeze(1) == own  # [tasks * classes, rows]
        means = self.network.base.tensors[0].new_zeros(tasks * classes, heads.width)
        if len(rows) > 0:
            phi = F.normalize(torch.cat([self.features_of(some) for some in rows.split(_AT_ONCE)]))
            means = F.normalize(of_class.to(phi.dtype) @ phi)
        exists = of_class.any(1).unflatten(0, (tasks, classes))
        return {"means": means.unflatten(0, (tasks, classes)), "exists": exists}

    def features_of(self, rows: Tensor) -> Tensor:
        """Features of stored samples."""
        return self.engine.evaluated(self.memory.x[rows], self.memory.task[rows]).features

    def predicting_net(self) -> ContinualNet:
        """A copy of the network that predicts by the means of each task's stored samples as they are now."""
        net = super().predicting_net()
        means, exists = self.engine.derived["means"], self.engine.derived["exists"]
        own = [0 if self.net.heads.shared else k for k in range(len(self.engine.classes))]
        return NearestMeanNet(net, [(means[k].clone(), exists[k].clone()) for k in own])


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
