"""MIR: replay of the samples that the coming step would hurt most.

Aljundi et al., "Online Continual Learning with Maximally Interfered Retrieval", 2019. As in the authors' code the
scores are computed in training mode; the running statistics of batch norm are left alone meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call

from scale_cl.learners.base import StepStats
from scale_cl.learners.replay import ReplayConfig, ReplayLearner
from scale_cl.losses import cross_entropy
from scale_cl.settings import setting


@dataclass(frozen=True)
class MirConfig(ReplayConfig):
    """Settings of MIR; the defaults are the paper's for all streams."""

    lr: float = setting(0.03, "learning rate, of the virtual step too", above=0)
    updates: int = setting(3, "gradient steps a batch, each with a fresh selection", low=1)
    candidates: int = setting(
        50, "samples drawn of the memory, of which the `replay` most interfered are replayed", low=1
    )


class Mir(ReplayLearner):
    """CE(batch) + CE(most interfered of the candidates)."""

    config_class = MirConfig
    config: MirConfig

    def _update(self, x: Tensor, y: Tensor) -> StepStats:
        c, n, stats = self.config, len(y), StepStats()
        for samples in self._replay_batches(x, y, c.updates):
            loss = cross_entropy(self.net(samples.x[:n], samples.task[:n])[2], samples.y[:n])
            gradient = torch.autograd.grad(loss, self._base)
            stats["loss"] = loss.detach()
            if samples.rows is not None:
                candidates = samples.x[n:], samples.y[n:], samples.task[n:]
                chosen = self._most_interfered(*candidates, gradient)
                x_chosen, y_chosen, t_chosen = (t[chosen] for t in candidates)
                replayed = cross_entropy(self.net(x_chosen, t_chosen)[2], y_chosen)
                torch._foreach_add_(gradient, torch.autograd.grad(replayed, self._base))
                stats["replay"] = replayed.detach()
            with torch.no_grad():
                torch._foreach_add_(self._base, gradient, alpha=-c.lr)
            self._update_average()
        return stats

    @torch.no_grad()
    def _most_interfered(self, x: Tensor, y: Tensor, task: Tensor, gradient: tuple[Tensor, ...]) -> Tensor:
        """Where the candidates stand whose loss a step along the batch's gradient raises most."""
        virtual = torch._foreach_sub(self._base, torch._foreach_mul(gradient, self.config.lr))
        after = self._losses(x, y, task, dict(zip(self.net.base_parameters(), virtual, strict=True)))
        interference = after - self._losses(x, y, task, {})
        return interference.topk(min(self.config.replay, len(y))).indices

    def _losses(self, x: Tensor, y: Tensor, task: Tensor, parameters: Mapping[str, Tensor]) -> Tensor:
        statistics = {name: b.clone() for name, b in self.net.named_buffers() if "running" in name}
        logits = functional_call(self.net, {**parameters, **statistics}, (x, task))[2]
        return F.cross_entropy(logits, y, reduction="none")

    def _replay_size(self) -> int:
        return min(self.config.candidates, self.memory.available())
