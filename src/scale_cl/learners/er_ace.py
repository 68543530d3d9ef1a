"""ER-ACE: experience replay with an asymmetric cross-entropy, so that new classes do not push old ones aside.

Caccia et al., "New Insights on Reducing Abrupt Representation Change in Online Continual Learning", 2022. The batch
competes among the classes that are present in it; replayed samples compete among all classes seen.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from scale_cl.engine import Samples
from scale_cl.learners.er import Er, ErConfig
from scale_cl.losses import NO_CLASS, cross_entropy
from scale_cl.settings import setting


@dataclass(frozen=True)
class ErAceConfig(ErConfig):
    """Settings of ER-ACE."""

    replay_current: bool = setting(True, "replay samples of the current task too: only so new classes meet old ones")
    replay_weight: float = setting(1.0, "weight of the cross-entropy on replayed samples", low=0)


class ErAce(Er):
    """CE(batch, among its own classes) + CE(replay, among all classes)."""

    config_class = ErAceConfig
    config: ErAceConfig

    def loss(self, logits: Tensor, samples: Samples) -> Tensor:
        """Both cross-entropies, each a mean."""
        n, y = samples.n, samples.y
        present = torch.zeros(logits.shape[1], dtype=torch.bool, device=logits.device)
        present = present.index_fill(0, y[:n], True)
        loss = cross_entropy(logits[:n].masked_fill(~present, NO_CLASS), y[:n])
        self.log(ce=loss)
        if not samples.replayed:
            return loss
        replayed = cross_entropy(logits[n:], y[n:])
        self.log(replay=replayed)
        return loss + self.config.replay_weight * replayed
