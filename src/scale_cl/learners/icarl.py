"""iCaRL: replay with distillation, and prediction by the nearest mean of exemplars.

Rebuffi et al., "iCaRL: Incremental Classifier and Representation Learning", 2017. The paper: "iCaRL exemplifies such
approach where the KD approach is performed with the nearest exemplar classification strategy". Cross-entropy takes the
place of the authors' sigmoids, as in comparisons with one pass. Herding ranks what the slots hold when a task ends,
because one pass has no larger buffer to choose from; it decides what leaves a memory with `memory_budget` "total".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from scale_cl.engine import MEMORY_POLICY, Batch, Engine, ReplayConfig
from scale_cl.learners.learner import ReplayLearner, StepSize, Traits, replay_memory
from scale_cl.losses import cross_entropy_of_parts, distillation
from scale_cl.memory import PolicyName
from scale_cl.nets import ContinualNet, Outputs
from scale_cl.nets.model import TaskNet, Wrt
from scale_cl.settings import setting

_NO_MEAN = -5.0  # score of a class without exemplars: below that of any other, which is at least -4
_AT_ONCE = 256  # exemplars in one forward when a task ends


@dataclass(frozen=True)
class IcarlConfig(ReplayConfig):
    """Settings of iCaRL."""

    memory_policy: PolicyName = setting("herding", MEMORY_POLICY)
    lr: float = setting(0.03, "learning rate", above=0)
    updates: int = setting(1, "gradient steps per batch, each with a fresh replay draw", low=1)
    distillation: float = setting(1.0, "weight of the divergence from the stored outputs", low=0)
    temperature: float = setting(2.0, "temperature that softens the outputs in that divergence", above=0)


class Icarl(ReplayLearner):
    """CE(batch) + CE(exemplars) + T^2 KL(stored outputs || outputs); the class with the nearest mean is predicted."""

    config_class = IcarlConfig
    config: IcarlConfig
    traits = Traits(episodic_memory=True, history_in_training=True)

    def build(self, engine: Engine) -> None:
        """Declare the network, and exemplars with the outputs that they had."""
        self.network = engine.network()
        self.memory = replay_memory(engine, self.config, logits=("class",))

    def update(self, batch: Batch) -> None:
        """Descend the loss, then offer the batch to the memory."""
        c = self.config
        for samples in self.memory.replay_with(batch, c.replay, times=c.updates):
            logits = self.network(samples).logits
            loss = cross_entropy_of_parts(logits, samples.y, samples.parts)
            self.log(ce=loss)
            if samples.rows is not None:
                stored, exists = self.memory.stored_logits(samples.rows, logits.shape[1])
                divergence = distillation(samples.from_memory(logits), stored, exists, c.temperature)
                loss = loss + c.distillation * divergence
                self.log(divergence=divergence)
            self.network.base.descend(loss, c.lr)
            self.log(loss=loss)
        self.memory.write(batch.x, batch.y)

    @torch.no_grad()
    def task_ended(self, task: int) -> None:
        """Store the outputs of all exemplars by the current network: those before the next task."""
        for number, classes in enumerate(self.engine.classes):
            for rows in self.memory.rows_of(number).split(_AT_ONCE):
                if len(rows) > 0:
                    logits = self.engine.evaluated(self.memory.x[rows], self.memory.task[rows]).logits
                    self.memory.keep_logits("class", rows, logits[:, :classes])

    # ---- prediction --------------------------------------------------------------------------------------------------

    def scores(self, x: Tensor, task: Tensor) -> Tensor:
        """-|phi(x) - mu_y|^2 for each class of the task."""
        means, exists = self.means(task[:1])
        return nearest_mean_scores(self.engine.evaluated(x, task).features, means, exists)

    @torch.no_grad()
    def means(self, task: Tensor) -> tuple[Tensor, Tensor]:
        """Mean features mu [classes, width] of a task's exemplars by the current network, and which of them exist.

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
        """A copy of the network that predicts by the means of each task's exemplars as they are now."""
        numbers = torch.arange(len(self.engine.classes), device=self.device)
        means = [self.means(numbers[k : k + 1]) for k in range(len(numbers))]
        return NearestMeanNet(super().predicting_net(), means)

    @classmethod
    def step_size(cls, config: Any, batch: int, stored: int, tasks: int) -> StepSize:
        """Batch and exemplars; when a task ends, many exemplars without a graph."""
        return StepSize(batch + min(config.replay, stored) + min(stored, _AT_ONCE) // 4, config.updates, copies=1)


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
