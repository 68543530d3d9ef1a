"""MIR: replay of the samples that the coming step would hurt most.

Aljundi et al., "Online Continual Learning with Maximally Interfered Retrieval", 2019. As in the authors' code the
scores are computed in training mode; the running statistics of batch norm are left alone meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from scale_cl.engine import Batch, ReplayConfig, Samples, Weights
from scale_cl.learners.learner import FORWARD, ReplayLearner, StepSize
from scale_cl.losses import cross_entropy
from scale_cl.settings import setting


@dataclass(frozen=True)
class MirConfig(ReplayConfig):
    """Settings of MIR."""

    lr: float = setting(0.03, "learning rate, of the virtual step too", above=0)
    updates: int = setting(3, "gradient steps per batch, each with a fresh selection", low=1)
    candidates: int = setting(
        50, "samples drawn from the memory, of which the `replay` most interfered are replayed", low=1
    )
    forward: Literal["separate", "joint"] = setting("separate", FORWARD)


class Mir(ReplayLearner):
    """CE(batch) + CE(most interfered of the candidates)."""

    config_class = MirConfig
    config: MirConfig

    def update(self, batch: Batch) -> None:
        """Steps along the gradient of both cross-entropies."""
        c, base = self.config, self.network.base
        for samples in self.memory.replay_with(batch, c.candidates, times=c.updates):
            loss = cross_entropy(self.network(samples.batch).logits, samples.batch.y)
            gradient = base.gradient(loss)
            self.log(loss=loss)
            if samples.replayed:
                chosen = self.most_interfered(samples.replay, gradient)
                gradient = self.gradient(samples, chosen, gradient)
            base.move(gradient, c.lr)
        self.memory.write(batch)

    def gradient(self, samples: Samples, chosen: Tensor, of_batch: list[Tensor]) -> list[Tensor]:
        """The gradient of both cross-entropies; in one forward, that of the batch is taken anew."""
        n, base = samples.n, self.network.base
        if self.config.forward == "separate":
            replay = samples.replay[chosen]
            replayed = cross_entropy(self.network(replay).logits, replay.y)
            torch._foreach_add_(of_batch, base.gradient(replayed))
            self.log(replay=replayed)
            return of_batch
        both = samples[torch.cat([torch.arange(n, device=chosen.device), n + chosen])]
        logits = self.network(both).logits
        loss, replayed = (cross_entropy(logits[part], both.y[part]) for part in (slice(n), slice(n, None)))
        self.log(loss=loss, replay=replayed)
        return base.gradient(loss + replayed)

    @torch.no_grad()
    def most_interfered(self, candidates: Samples, gradient: Sequence[Tensor]) -> Tensor:
        """Positions of the candidates whose loss a step along the batch's gradient raises most."""
        after = self.losses(candidates, self.network.base.ahead(gradient, self.config.lr))
        interference = after - self.losses(candidates, self.network.base)
        return interference.topk(min(self.config.replay, len(candidates))).indices

    def losses(self, samples: Samples, theta: Weights) -> Tensor:
        """Each sample's cross-entropy by these weights."""
        logits = self.network(samples, theta, keep_statistics=True).logits
        return F.cross_entropy(logits, samples.y, reduction="none")

    @classmethod
    def step_size(cls, config: Any, batch: int, stored: int, tasks: int) -> StepSize:
        """Candidates follow the batch; gradients and virtual weights."""
        return StepSize(batch + min(max(config.replay, config.candidates), stored), config.updates, copies=4)
