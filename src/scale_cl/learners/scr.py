"""SCR: supervised contrastive replay, and prediction by the nearest class mean.

Mai, Li, Kim and Sanner, "Supervised Contrastive Replay: Revisiting the Nearest Class Mean Classifier in Online
Class-Incremental Continual Learning", 2021. Batch and replay are seen in two views, of which `augment` draws at least
the second; projections of samples of one class attract each other, those of other classes repel each other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from scale_cl.engine import Batch, Engine, ReplayConfig, Samples
from scale_cl.learners.learner import StepSize, Traits
from scale_cl.learners.nearest_mean import NearestMeanLearner
from scale_cl.nets.growing_parameter import BlankLinear, linear_rows
from scale_cl.nets.inputs import Augmentation
from scale_cl.settings import setting


@dataclass(frozen=True)
class ScrConfig(ReplayConfig):
    """Settings of SCR; rate, replay and temperature are those that a survey of online learning found for it."""

    replay: int = setting(100, "samples replayed with each batch, at most as many as are stored", low=1)
    replay_current: bool = setting(True, "replay samples of the current task too, not only of finished ones")
    augment: Augmentation = setting("crop-flip", "random changes of training images: none, flip, crop-flip")
    lr: float = setting(0.1, "learning rate", above=0)
    updates: int = setting(1, "gradient steps per batch, each with a fresh replay draw", low=1)
    temperature: float = setting(0.1, "temperature of the contrastive loss", above=0)
    projection: int = setting(128, "outputs of the projection", low=1)
    trains_outputs: ClassVar[bool] = False


class Scr(NearestMeanLearner):
    """Supervised contrastive loss over batch and replay, two views each."""

    config_class = ScrConfig
    traits = Traits(episodic_memory=True)
    config: ScrConfig

    def build(self, engine: Engine) -> None:
        """Declare network and memory, and a projection that only training uses; heads are not trained."""
        super().build(engine)
        width = engine.backbone.feature_width
        self.projection = engine.part("projection", lambda: Projection(width, self.config.projection, engine))
        self.trained = engine.weights(self.trained_parameters)

    def trained_parameters(self) -> Mapping[str, Tensor]:
        """The trunk and the projection."""
        trunk = {name: p for name, p in self.network.base.named.items() if not name.startswith("heads.")}
        return trunk | {f"projection.{name}": p for name, p in self.projection.weights.named.items()}

    def update(self, batch: Batch) -> None:
        """Descend the contrastive loss several times, each with a fresh draw."""
        c = self.config
        for first in self.memory.replay_with(batch, c.replay, times=c.updates, current=c.replay_current):
            raw = batch.x if first.rows is None else torch.cat([batch.x, self.memory.x[first.rows]])
            second = self.engine.prepared(raw)
            y, task = first.y.repeat(2), first.task.repeat(2)
            views = Samples(torch.cat([first.x, second]), y, task, (len(y),))
            z = F.normalize(self.projection(self.network(views).features))
            same = y.unsqueeze(1) == y
            if not self.net.heads.shared:
                same &= task.unsqueeze(1) == task
            loss = contrastive_loss(z, same, c.temperature)
            self.trained.descend(loss, c.lr)
            self.network.base.follow()
            self.log(loss=loss)
        self.memory.write(batch)

    @classmethod
    def step_size(cls, config: Any, batch: int, stored: int, tasks: int) -> StepSize:
        """Two views of batch and replay."""
        return StepSize(2 * (batch + min(config.replay, stored)), config.updates, copies=1)


class Projection(nn.Module):
    """Two linear layers with a ReLU between them."""

    def __init__(self, width: int, outputs: int, engine: Engine) -> None:
        """Draw the weights from the engine's generator."""
        super().__init__()
        self.layers = nn.ModuleList([BlankLinear(width, width), BlankLinear(width, outputs)])
        for layer, size in zip(self.layers, (width, outputs), strict=True):
            weight, bias = linear_rows((size,), width, xavier=False, generator=engine.weights_rng)
            layer.load_state_dict({"weight": weight, "bias": bias})

    def forward(self, features: Tensor) -> Tensor:
        """[B, width] -> [B, outputs]."""
        first, second = self.layers
        out: Tensor = second(torch.relu(first(features)))
        return out


def contrastive_loss(z: Tensor, same: Tensor, temperature: float) -> Tensor:
    """Mean over anchors of -mean over the others of the same class of log softmax(z z' / temperature).

    Khosla et al., "Supervised Contrastive Learning", 2020, equation 2: outputs `z` [N, width] have length one, `same`
    [N, N] says which have the same class; no sample is compared with itself.
    """
    itself = torch.eye(len(z), dtype=torch.bool, device=z.device)
    log_p = (z @ z.T / temperature).masked_fill(itself, -torch.inf).log_softmax(1).masked_fill(itself, 0.0)
    others = (same & ~itself).to(z.dtype)
    return -((log_p * others).sum(1) / others.sum(1).clamp(min=1)).mean()
