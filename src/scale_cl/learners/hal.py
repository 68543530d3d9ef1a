"""HAL: Hindsight Anchor Learning. Replay that keeps the outputs on anchors, the points forgotten most, where they are.

Chaudhry, Gordo, Dokania, Torr and Lopez-Paz, "Using Hindsight to Anchor Past Knowledge in Continual Learning", 2021.
SCALE's paper says of it: "HAL proposes the idea of anchor samples maximizing the forgetting metric and constructed in
the meta-learning manner". A step looks ahead: theta~ is what ER's step would make of theta, and the step taken descends
ER's loss and the distance between the outputs of theta and theta~ on anchors. theta~ is a function of theta: with
`second_order`, the gradient flows through the step, as in the authors' code; else only that step's gradient is a
constant. An anchor per class comes in addition to the memory's slots.

On networks with batch norm the outputs on anchors use the statistics of the drawn anchors, as all forwards in training
use those of their batch. With running statistics, which lag behind the weights, runs can collapse within a task.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from scale_cl.engine import Batch, Engine, ReplayConfig, Samples, Weights
from scale_cl.engine.weights import AheadWeights, clipped
from scale_cl.learners.class_tables import ClassTables
from scale_cl.learners.learner import ReplayLearner, StepSize, replay_memory
from scale_cl.losses import NO_CLASS, cross_entropy
from scale_cl.nets import Outputs
from scale_cl.settings import setting

_BETA1, _BETA2, _EPSILON = 0.9, 0.999, 1e-8  # Adam's


@dataclass(frozen=True)
class HalConfig(ReplayConfig):
    """Settings of HAL."""

    lr: float = setting(0.03, "learning rate", above=0)
    updates: int = setting(1, "gradient steps per batch, each with a fresh replay draw", low=1)
    anchoring: float = setting(0.3, "weight of the distance on anchors: lambda", low=0)
    drawn_anchors: int = setting(10, "anchors drawn in a step", low=1)
    second_order: bool = setting(True, "differentiate through the step ahead")
    decay: float = setting(
        0.5, "share of a class's mean features that stays when a batch has the class: b", low=0, below=1
    )
    attraction: float = setting(0.1, "weight of an anchor's distance from its class's mean features: gamma", low=0)
    forgetting_steps: int = setting(50, "steps on earlier tasks after which forgetting is measured", low=1)
    anchor_steps: int = setting(100, "steps in which an anchor is optimised", low=0)
    anchor_lr: float = setting(0.001, "learning rate of an anchor's pixels, by Adam", above=0)
    clip: float = setting(0.0, "scale longer gradients down to this norm; 0: off (the authors)", low=0)
    anchor_statistics: Literal["batch", "running"] = setting(
        "batch", "batch-norm statistics for the distance on anchors: those of the drawn anchors, or the running ones"
    )
    replay_current: bool = setting(False, "replay samples of the current task too, not only of finished ones")


class Anchors(ClassTables):
    """An anchor per class and task, and running means of the open task's classes."""

    x: Tensor  # [tasks, classes, *shape] prepared inputs
    exists: Tensor  # [tasks, classes] bool
    running_features: Tensor  # [classes, width]
    running_image: Tensor  # [classes, *shape]
    running_count: Tensor  # [classes] samples seen of each class

    def __init__(self, shape: tuple[int, ...], width: int) -> None:
        """No task yet."""
        super().__init__()
        self.table("x", "tc", *shape)
        self.table("exists", "tc", dtype=torch.bool)
        self.table("running_features", "c", width)
        self.table("running_image", "c", *shape)
        self.table("running_count", "c")

    def begin(self) -> None:
        """Running means of the classes of a task begin."""
        for mean in (self.running_features, self.running_image, self.running_count):
            mean.zero_()

    @torch.no_grad()
    def note(self, x: Tensor, y: Tensor, features: Tensor, decay: float) -> None:
        """Take a batch of the open task into the running means of its classes."""
        classes = torch.arange(len(self.running_count), device=y.device)
        own = (classes.unsqueeze(1) == y).to(features.dtype)  # [classes, B]
        count = own.sum(1, keepdim=True)
        total = self.running_count.unsqueeze(1) + count
        image = self.running_image.flatten(1)
        image += (own @ x.flatten(1) - count * image) / total.clamp(min=1)
        share = torch.where(self.running_count.unsqueeze(1) > 0, 1 - decay, 1.0) * (count > 0)
        self.running_features.lerp_(own @ features / count.clamp(min=1), share.to(features))
        self.running_count += count.squeeze(1)


class Hal(ReplayLearner):
    """CE(batch and replay) + lambda * mean over anchors of |f_theta(e) - f_theta~(e)|^2."""

    config_class = HalConfig
    needs_boundaries = True
    config: HalConfig

    def build(self, engine: Engine) -> None:
        """Declare the network, the memory and the anchors."""
        self.network = engine.network(statistics="joint", twice=self.config.second_order)
        self.memory = replay_memory(engine, self.config)
        self.anchors = engine.part("anchors", lambda: Anchors(engine.spec.shape, engine.backbone.feature_width))
        self.forget, self.climb = engine.record(self.forgetting_step), engine.record(self.anchor_step)

    def update(self, batch: Batch) -> None:
        """Steps that look ahead."""
        c = self.config
        for samples in self.memory.replay_with(batch, c.replay, times=c.updates, current=c.replay_current):
            out = self.network(samples)
            self.step(cross_entropy(out.logits, samples.y), anchored=samples.replayed)
        kept, n = self.kept_anchors(), samples.n
        kept.note(samples.x[:n], samples.y[:n], out.features.detach()[:n], c.decay)
        self.memory.write(batch)

    def step(self, loss: Tensor, *, anchored: bool) -> None:
        """Descend ER's loss and, if a task is finished, the distance on anchors."""
        c, base = self.config, self.network.base
        gradient = base.gradient(loss, create_graph=anchored and c.second_order)
        direction = [g.detach() for g in gradient]
        if anchored:
            theta_ahead = base.ahead(gradient if c.second_order else direction, c.lr)
            e, counts = self.drawn()
            now, then = (self.held(e, theta).logits for theta in (base, theta_ahead))
            distance = distance_on_anchors(now, then, counts)
            direction = list(torch._foreach_add(direction, base.gradient(distance), alpha=c.anchoring))
            self.log(ce=loss, anchors=distance)
            loss = loss + c.anchoring * distance
        self.log(loss=loss)
        base.move(clipped(direction, c.clip) if c.clip > 0 else direction, c.lr)

    def held(self, e: Samples, theta: Weights) -> Outputs:
        """Outputs whose distance on anchors is held."""
        if self.config.anchor_statistics == "batch":
            return self.network(e, theta, keep_statistics=True)
        return self.network.in_evaluation(e, theta)

    def drawn(self) -> tuple[Samples, Tensor]:
        """Anchors drawn without replacement, and which of them exist [n]."""
        kept = self.kept_anchors()
        exists = kept.exists.flatten()
        chance = torch.rand(len(exists), generator=self.engine.rng, device=self.device)
        rows = torch.where(exists, chance, chance - 1).topk(min(self.config.drawn_anchors, len(exists))).indices
        counts = exists[rows]
        rows = torch.where(counts, rows, rows[0])  # where too few exist: the first again, which does not count
        classes = kept.exists.shape[1]
        x, y, task = kept.x.flatten(0, 1)[rows], rows % classes, rows // classes
        return Samples(x, y, task, (len(rows),)), counts

    def kept_anchors(self) -> Anchors:
        """The anchors' module."""
        assert isinstance(self.anchors.module, Anchors)
        return self.anchors.module

    # ---- the end of a task -------------------------------------------------------------------------------------------

    def task_began(self, task: int) -> None:
        """Means of the task's classes begin."""
        self.kept_anchors().begin()

    def task_ended(self, task: int) -> None:
        """Make an anchor per class of the task: a stored sample in the first task, else the point forgotten most."""
        kept, rows = self.kept_anchors(), self.memory.rows_of(task)
        earlier = self.memory.finished()
        earlier = earlier[self.memory.task[earlier] != task]
        seen = kept.running_count > 0
        y = seen.nonzero().flatten()
        if len(y) == 0:
            return
        if len(earlier) > 0:
            x = self.forgotten_most(kept.running_image[y], y, task, earlier)
        else:
            labels = self.memory.y[rows]
            stored = [rows[labels == label] for label in y]
            raw = [
                self.net.inputs(self.memory.x[own[:1]]) if len(own) else kept.running_image[k : k + 1]
                for k, own in zip(y.tolist(), stored, strict=True)
            ]
            x = torch.cat(raw)
        finite = x.flatten(1).isfinite().all(1)  # not so where the steps on earlier tasks diverged
        y, x = y[finite], x[finite]
        kept.x[task, y], kept.exists[task, y] = x.to(kept.x), True

    def forgotten_most(self, start: Tensor, y: Tensor, task: int, earlier: Tensor) -> Tensor:
        """Maximise l(f_theta_M(e), y) - l(f_theta(e), y) - gamma * cosine distance(phi(e), mean phi) over e, by Adam.

        theta_M is theta after some steps on earlier tasks: what it loses on e is what e is forgotten by.
        """
        c, theta_m = self.config, self.after_earlier_tasks(earlier)
        mean, tasks = self.kept_anchors().running_features[y], torch.full_like(y, task)
        e, m, v = start.clone(), torch.zeros_like(start), torch.zeros_like(start)
        for step in range(1, c.anchor_steps + 1):
            rate = torch.full((), c.anchor_lr / (1 - _BETA1**step), device=self.device, dtype=e.dtype)
            scale = torch.full((), (1 - _BETA2**step) ** 0.5, device=self.device, dtype=e.dtype)
            made = self.climb((len(y),), e, m, v, rate, scale, y, tasks, mean, *theta_m)
            e, m, v = made["e"], made["m"], made["v"]
        return e.clone()

    def anchor_step(
        self,
        e: Tensor,
        m: Tensor,
        v: Tensor,
        rate: Tensor,
        scale: Tensor,
        y: Tensor,
        tasks: Tensor,
        mean: Tensor,
        *theta_m: Tensor,
    ) -> dict[str, Tensor]:
        """One step of Adam up the objective; m and v are its moments, rate and scale have their corrections.

        Adam is written out, because what a recorded step changes must be its inputs and outputs.
        """
        base, e = self.network.base, e.detach().requires_grad_()
        anchors = Samples(e, y, tasks, (len(y),))
        now = self.network.in_evaluation(anchors, base)
        after = self.network.in_evaluation(anchors, AheadWeights(base, dict(zip(base.named, theta_m, strict=True))))
        lost = F.cross_entropy(after.logits, y, reduction="sum") - F.cross_entropy(now.logits, y, reduction="sum")
        apart = (1 - F.cosine_similarity(now.features, mean)).sum()
        (down,) = torch.autograd.grad(self.config.attraction * apart - lost, e)
        with torch.no_grad():
            m, v = m.lerp(down, 1 - _BETA1), (v * _BETA2).addcmul(down, down, value=1 - _BETA2)
            return {"e": e - rate * m / (v.sqrt() / scale + _EPSILON), "m": m, "v": v}

    def after_earlier_tasks(self, rows: Tensor) -> list[Tensor]:
        """The weights after steps of SGD on stored samples of earlier tasks; the network stays as it is."""
        c, base = self.config, self.network.base
        before = base.copy()
        drawn = torch.randint(
            len(rows), (c.forgetting_steps, min(c.replay, len(rows))), generator=self.engine.rng, device=self.device
        )
        for some in rows[drawn]:
            self.forget((len(some),), some)
        after = base.copy()
        base.set(before)  # a copy: nothing is left of steps that diverged
        return after

    def forgetting_step(self, rows: Tensor) -> dict[str, Tensor]:
        """One step of SGD on stored samples."""
        samples, base = self.memory.samples(rows), self.network.base
        loss = cross_entropy(self.network(samples, keep_statistics=True).logits, samples.y)
        base.descend(loss, self.config.lr, average=False)
        return {"loss": loss.detach()}

    @classmethod
    def step_size(cls, config: Any, batch: int, stored: int, tasks: int) -> StepSize:
        """Batch and replay, and anchors twice; the step ahead and its graph."""
        samples = (1 + config.second_order) * (batch + min(config.replay, stored)) + 2 * config.drawn_anchors
        return StepSize(samples, config.updates, copies=5 + 2 * config.second_order)


def distance_on_anchors(now: Tensor, then: Tensor, counts: Tensor) -> Tensor:
    """Mean over the anchors that count [n] of the squared distance of logits [n, C], over the classes of each head."""
    difference = torch.where(now == NO_CLASS, torch.zeros_like(now), now - then)
    each = difference.square().sum(1) * counts
    return each.sum() / counts.sum().clamp(min=1)
