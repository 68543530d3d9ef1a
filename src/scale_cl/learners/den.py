"""DEN: Dynamically Expandable Networks. Units that a task needs are retrained; more are added if that does not suffice.

Yoon, Yang, Lee and Hwang, "Lifelong Learning with Dynamically Expandable Networks", 2018. SCALE's paper says of it:
"[It] puts forward a network growing condition based on a loss criterion with the selective retraining strategy". The
first task is learnt with an L1 penalty. In a later task:

1. The task's new head alone is learnt with an L1 penalty. Following weights that are not zero from the head down to the
   inputs selects units.
2. These are retrained, near to what they were. If the loss stays above `threshold`,
3. units are added to every layer and learnt with a group lasso, and those that it sets to zero are dropped;
4. units that moved by more than `drift` are split: the task gets a copy and others get the old unit back.

Each task keeps which units it uses, so that units that came later do not disturb it.

Adapted to one pass: the authors pass over the task's data in each of these phases; here each has its own share of the
task's batches, `head_steps`, `retrain_steps` and `expand_steps` batches, and what is left retrains all units of the
task. The new head starts at zero, where so few steps leave some weights, and the threshold is higher. At most `splits`
units per layer are split, those that moved most. If no unit is added, retraining goes on. With `epochs` and more steps
per phase it is the authors' form. For MLPs, as the sums of a ResNet tie the units of its layers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from scale_cl.engine import Batch, Engine
from scale_cl.learners.growing_units import GrowingConfig, GrowingLearner
from scale_cl.losses import cross_entropy
from scale_cl.settings import setting

_SPARSE = ("first", "head")  # phases with an L1 penalty


@dataclass(frozen=True)
class DenConfig(GrowingConfig):
    """Settings of DEN."""

    l1: float = setting(1e-4, "weight of the L1 penalty on the first task's weights and on new heads", low=0)
    l2: float = setting(1e-4, "weight of the squared weights of units that are retrained", low=0)
    stay: float = setting(0.25, "weight of the squared distance of retrained units from what they were", low=0)
    zero: float = setting(1e-4, "weights up to this size count as zero where units are selected", low=0)
    threshold: float = setting(0.3, "mean loss while retraining, above which units are added; the authors: 0.01", low=0)
    expansion: int = setting(10, "most units added per layer and task", low=1)
    group_lasso: float = setting(1e-3, "weight of the group lasso on units that are added", low=0)
    drift: float = setting(0.05, "distance from which on a unit that moved is split", low=0)
    splits: int = setting(10, "most units split per layer and task", low=0)
    head_steps: int = setting(40, "batches of a task for its head alone", low=1)
    retrain_steps: int = setting(80, "batches after these for the selected units", low=1)
    expand_steps: int = setting(60, "batches after these for units that are added", low=1)
    epochs: int = setting(1, "passes over a task's data; the authors make many, an online learner one", low=1)


class Den(GrowingLearner):
    """Selective retraining, expansion, and splitting of units that drift."""

    config_class = DenConfig
    config: DenConfig
    smaller = ("fewer new units", "expansion")

    def build(self, engine: Engine) -> None:
        """Declare the network, its weights before the task, which units are selected, and what retraining lost."""
        super().build(engine)
        self.held = engine.weights(lambda: dict(self.trunk.named_parameters()))
        self.before = engine.like("before", self.held, changes="task")
        self.expanding = engine.tensor("expanding", torch.zeros(()), changes="step")  # 1 while added units are learnt
        self.lost = engine.tensor("lost", torch.zeros(2), changes="step")  # sum of losses in retraining, and how many

    def spare_units(self) -> int:
        """Units to add, and copies of units that are split."""
        return self.config.expansion + self.config.splits

    def phase(self) -> str:
        """What the next step does: learn the first task, a head, or units."""
        if not self.is_new:
            return "first" if self.trunk.tasks == 1 else "units"
        return "head" if self.engine.task_steps < self.config.head_steps else "units"

    def update(self, batch: Batch) -> None:
        """One step of SGD on the weights that are being trained, followed by what makes weights zero."""
        c, samples, base = self.config, self.engine.samples(batch), self.network.base
        phase = self.engine.host.ask(self.phase)
        ce = cross_entropy(self.network(samples).logits, samples.y)
        gradient = dict(zip(base.named, base.gradient(ce), strict=True))
        with torch.no_grad():
            self.lost += torch.stack([ce.detach(), torch.ones_like(ce)]).to(self.lost)
            penalty = torch.zeros_like(ce)
            for name, mask in self.masks().items():
                g, p = gradient[f"backbone.{name}"], self.held.named[name]
                if phase == "units":
                    way = (p - self.before.named[name]) * mask
                    penalty += c.stay * way.square().sum() + c.l2 * (p * mask).square().sum()
                    g += 2 * (c.stay * way + c.l2 * p)
                g *= mask
            base.move(list(gradient.values()), c.lr)
            if phase in _SPARSE:
                self.shrink(phase)
            else:
                self.shrink_groups()
            self.log(ce=ce, penalty=penalty, loss=ce + penalty)

    def masks(self) -> dict[str, Tensor]:
        """What is trained: weights between trained units; while units are added, all weights into or out of these."""
        found, below = {}, torch.ones(self.trunk.weights[0].shape[1], device=self.device)
        inputs = 0 * below  # of which none was added
        for i in range(len(self.trunk.biases)):
            own = self.trunk.trained(i)
            between = own.unsqueeze(1) * below
            into_or_out = torch.maximum(own.unsqueeze(1), below if i else inputs)
            found[f"weights.{i}"] = torch.lerp(between, into_or_out.expand_as(between), self.expanding.to(own))
            found[f"biases.{i}"] = own
            below = own
        return found

    def shrink(self, phase: str) -> None:
        """The proximal step of the L1 penalty: on the open task's head and, in the first task, on all weights."""
        c, heads = self.config, self.net.heads
        own = (torch.arange(heads.weight.capacity, device=self.device) == self.engine.task).view(-1, 1, 1)
        heads.weight.data.copy_(_soft(heads.weight.data, c.lr * c.l1 * own))
        if phase == "first":
            for weight in self.trunk.weights:
                weight.copy_(_soft(weight, torch.full((), c.lr * c.l1, device=self.device)))

    def shrink_groups(self) -> None:
        """The proximal step of the group lasso: on the weights into each unit that is being added."""
        for i, weight in enumerate(self.trunk.weights):
            size = weight.norm(dim=1).clamp(min=torch.finfo(weight.dtype).tiny)
            share = self.config.lr * self.config.group_lasso * self.expanding * self.trunk.trained(i) / size
            weight.mul_((1 - share).clamp(min=0).to(weight).unsqueeze(1))

    # ---- between steps -----------------------------------------------------------------------------------------------

    @torch.no_grad()
    def task_began(self, task: int) -> None:
        """In a first task everything is trained, in a new one the head, else the units that the task uses."""
        self.expanding.zero_()
        self.lost.zero_()
        self.before.set(self.held.tensors)
        for i in range(len(self.trunk.biases)):
            self.trunk.trained(i).copy_(torch.zeros_like(self.row(i)) if self.is_new else self.row(i))
        if self.is_new:
            self.net.heads.weight.data[task, :, : -self.trunk.spare_units] = 0

    def pauses(self, step: int) -> bool:
        """Where another phase of a new task begins."""
        return self.is_new and step in self.phases()

    @torch.no_grad()
    def pause(self, step: int) -> None:
        """Begin the phase."""
        self.phases()[step]()

    def phases(self) -> dict[int, Callable[[], None]]:
        """What happens before which step."""
        c = self.config
        retrained = c.head_steps + c.retrain_steps
        return {c.head_steps: self.select, retrained: self.expand, retrained + c.expand_steps: self.split}

    def select(self) -> None:
        """Follow weights that are not zero from the head down; the units that they lead to are retrained."""
        task, zero = self.engine.open_task, self.config.zero
        reached = (self.net.heads.weight.data[task].abs() > zero).any(0)
        for i in reversed(range(len(self.trunk.biases))):
            own = reached & (self.row(i) > 0)
            self.trunk.trained(i).copy_(own)
            reached = (self.trunk.weights[i][own].abs() > zero).any(0)
        self.lost.zero_()

    def expand(self) -> None:
        """If retraining has lost too much, put spare units to use and train only them."""
        total, steps = self.lost.tolist()
        if total <= self.config.threshold * steps:
            return
        self.expanding.fill_(1)
        for i in range(len(self.trunk.biases)):
            added = self.trunk.is_spare(i)
            added[len(added) - self.config.splits :] = False  # these are for copies
            self.row(i)[added] = 1
            self.trunk.trained(i).copy_(added)

    def split(self) -> None:
        """Drop added units that are zero, split units that drifted, and retrain all that the task uses."""
        if float(self.expanding) == 0:
            return
        self.expanding.zero_()
        for i, weight in enumerate(self.trunk.weights):
            added = (self.trunk.trained(i) > 0) & (weight.norm(dim=1) > 0)
            self.row(i)[self.trunk.is_spare(i) & ~added] = 0
            self.split_layer(i)
            self.trunk.trained(i).copy_(self.row(i))

    def split_layer(self, i: int) -> None:
        """Give the open task copies of the units of layer `i` that moved most; the units become what they were."""
        weight, bias, before = self.trunk.weights[i], self.trunk.biases[i], self.before.named
        way = weight - before[f"weights.{i}"]
        if i:
            way = way[:, ~self.trunk.is_spare(i - 1)]  # weights from added units and copies are no drift
        moved = way.norm(dim=1).masked_fill(self.trunk.is_spare(i), 0)
        most = moved.topk(min(self.config.splits, len(moved)))
        units = most.indices[most.values > self.config.drift]
        copies = torch.arange(len(bias) - len(units), len(bias), device=units.device)
        weight[copies], bias[copies] = weight[units], bias[units]
        weight[units], bias[units] = before[f"weights.{i}"][units], before[f"biases.{i}"][units]
        if i + 1 < len(self.trunk.weights):
            above: Tensor = self.trunk.weights[i + 1]
        else:
            above = self.net.heads.weight.data[self.engine.open_task]
        above[:, copies] = above[:, units]
        self.row(i)[copies] = 1
        self.row(i)[units] = 0

    def task_ended(self, task: int) -> None:
        """Drop spare units that were not used."""
        if self.is_new:
            self.drop_spare()


def _soft(weight: Tensor, threshold: Tensor) -> Tensor:
    """Weights, nearer to zero by the threshold; zero if they were nearer already."""
    return weight.sign() * (weight.abs() - threshold.to(weight)).clamp(min=0)
