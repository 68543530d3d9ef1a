"""BOCL and RCL: a search per task decides how many units each layer is given; what earlier tasks use is frozen.

Xu, Ma, Gao and Zhu, "Adaptive Progressive Continual Learning", 2021 (BOCL); Xu and Zhu, "Reinforced Continual
Learning", 2018 (RCL). SCALE's paper says of it: "Similar approach is designed in [it] but with the use of Bayesian
optimization approach rather than the NAS concept". A new unit reads all units of the layer below, old and new; an old
one reads old ones only, so that nothing is forgotten. How many units to add is what a search maximises: the accuracy on
samples held back, less a cost of the parameters added. With `search=bayesian` (BOCL) a Gaussian process of the rewards
so far proposes where their expected improvement is largest; with `search=controller` (RCL) an LSTM draws a number per
layer, and learns from the rewards of all tasks by policy gradient.

Adapted to one pass: an evaluation is a training, of which there are many over a task's whole data in the original. Here
the first `search_steps` batches train the new head on the units that there are and are stored. Then `trials` candidates
are trained shortly on these, and judged by those of the stored samples that were held back. The best is taken as it is,
learns the samples that were held back, and goes on with the stream; the stored samples are dropped. The kernel of the
Gaussian process is fixed, as a handful of rewards says little about it. For MLPs: the sums of a ResNet tie the filters
of its layers, so that there is no number per layer to be chosen. The first task has the network as it is.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from scipy.stats import norm
from torch import Tensor, nn

from scale_cl.engine import Batch, Engine, Samples
from scale_cl.learners.growing_units import GrowingConfig, GrowingLearner
from scale_cl.learners.learner import StepSize
from scale_cl.losses import cross_entropy
from scale_cl.memory import Budget
from scale_cl.nets.growing_parameter import linear_rows
from scale_cl.settings import setting

Search = Literal["bayesian", "controller"]
_HELD_BACK = 4  # every fourth stored sample
_AT_ONCE = 10  # stored samples per step
_MOST_POINTS = 1000  # candidates that the Gaussian process is asked about
_FIRST = 3  # candidates that are drawn before there are rewards to go by
_LENGTH, _NOISE = 0.5, 1e-3  # of the Gaussian process: length scale in shares of the most units, variance of the noise
_DIVERGED = -1.0  # reward of a candidate whose weights did not stay finite; it is never taken
_STATE = 32  # width of the controller


@dataclass(frozen=True)
class BoclConfig(GrowingConfig):
    """Settings of BOCL and RCL."""

    search: Search = setting("bayesian", "how candidates are proposed: bayesian (BOCL) or controller (RCL)")
    units: int = setting(128, "most units added per layer and task", low=1)
    levels: int = setting(5, "numbers of units to choose from, evenly from 0 to the most", low=2)
    trials: int = setting(6, "candidates that are tried per task", low=1)
    cost: float = setting(0.02, "accuracy that as many more parameters as the first task has must gain", low=0)
    search_steps: int = setting(20, "batches of a task after which the search begins", low=1)
    memory: int = setting(200, "samples of these batches that are stored for it; dropped afterwards", low=2)
    passes: int = setting(3, "passes over the stored samples in which a candidate is trained", low=1)
    controller_lr: float = setting(0.05, "learning rate of the controller", above=0)
    epochs: int = setting(1, "passes over a task's data; the authors make many, an online learner one", low=1)
    memory_budget: ClassVar[Budget] = "total"


class Controller(nn.Module):
    """An LSTM that draws a level per layer, each after the one drawn before; with a mean of rewards."""

    running_mean: Tensor

    def __init__(self, layers: int, levels: int, *, generator: torch.Generator) -> None:
        """Draw the weights; all levels are equally likely at first."""
        super().__init__()
        self.layers, self.levels = layers, levels
        weight, bias = linear_rows((4 * _STATE,), levels + 1 + _STATE, xavier=False, generator=generator)
        self.cell, self.cell_bias = nn.Parameter(weight), nn.Parameter(bias)
        self.out, self.out_bias = nn.Parameter(torch.zeros(levels, _STATE)), nn.Parameter(torch.zeros(levels))
        self.register_buffer("running_mean", torch.zeros(2))  # mean reward, and of how many

    def forward(self, levels: list[int]) -> Tensor:
        """Log-probabilities [layers, levels], of each layer given the levels before."""
        h = c = self.cell.new_zeros(_STATE)
        found = []
        for last in [self.levels, *levels][: self.layers]:  # the first follows none
            before = torch.arange(self.levels + 1, device=h.device) == last
            i, f, g, o = (self.cell @ torch.cat([before.to(h), h]) + self.cell_bias).chunk(4)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
            found.append((self.out @ h + self.out_bias).log_softmax(0))
        return torch.stack(found)

    @torch.no_grad()
    def drawn(self, generator: np.random.Generator) -> list[int]:
        """A level per layer."""
        levels: list[int] = []
        for layer in range(self.layers):
            chances = self([*levels, *[0] * (self.layers - layer)])[layer].double().exp().cpu().numpy()
            levels.append(int(generator.choice(self.levels, p=chances / chances.sum())))
        return levels

    def score(self, levels: list[int], reward: float) -> Tensor:
        """What policy gradient descends: -(reward - mean reward) * log-probability; the mean takes the reward in."""
        mean, count = self.running_mean.tolist()
        self.running_mean.copy_(torch.tensor([mean + (reward - mean) / (count + 1), count + 1]))
        chosen = self(levels)[range(self.layers), levels].sum()
        loss: Tensor = -(reward - (mean if count else reward)) * chosen
        return loss


class Bocl(GrowingLearner):
    """CE(batch) on units of the task's own, as many per layer as a search on its first batches finds."""

    config_class = BoclConfig
    config: BoclConfig
    smaller = ("fewer new units", "units")

    def build(self, engine: Engine) -> None:
        """Declare the network, the samples that candidates are tried on, and perhaps a controller."""
        super().build(engine)
        c, layers = self.config, len(self.trunk.biases)
        self.memory = engine.memory("memory", c.memory, budget="total")
        self.controller = engine.part(
            "controller",
            lambda: Controller(layers, c.levels, generator=engine.weights_rng),
            when=c.search == "controller",
        )

    def spare_units(self) -> int:
        """The most that a candidate may have."""
        return self.config.units

    def update(self, batch: Batch) -> None:
        """Descend CE(batch); before the search, the batch is stored."""
        self.log(loss=self.step(self.engine.samples(batch)))
        if self.engine.host.ask(lambda: self.is_new):
            self.memory.write(batch)

    def step(self, samples: Samples) -> Tensor:
        """One step of SGD on the task's own units and head; the loss before it."""
        base = self.network.base
        loss = cross_entropy(self.network(samples).logits, samples.y)
        gradient = dict(zip(base.named, base.gradient(loss), strict=True))
        for i in range(len(self.trunk.biases)):
            own = self.trunk.trained(i)
            gradient[f"backbone.weights.{i}"] *= own.unsqueeze(1)
            gradient[f"backbone.biases.{i}"] *= own
        base.move(list(gradient.values()), self.config.lr)
        return loss.detach()

    # ---- between steps -----------------------------------------------------------------------------------------------

    @torch.no_grad()
    def task_began(self, task: int) -> None:
        """The first task trains all units, a new one its head; one that comes back its own units, if no other has."""
        last = task == self.trunk.tasks - 1
        for i in range(len(self.trunk.biases)):
            uses = self.trunk.uses(i)
            own = uses[task] - (uses[task - 1] if task else 0)
            self.trunk.trained(i).copy_(own if last and not self.is_new else torch.zeros_like(own))

    def pauses(self, step: int) -> bool:
        """After the first batches of a new task."""
        return self.is_new and step >= self.config.search_steps

    def pause(self, step: int) -> None:
        """Search, and go on with the best."""
        self.search()

    def task_ended(self, task: int) -> None:
        """A task shorter than the search is searched at its end."""
        if self.is_new:
            self.search()

    def search(self) -> None:
        """Try candidates and become the best; drop what it does not need."""
        rows = self.memory.rows_of(self.engine.open_task)
        held = torch.arange(len(rows), device=rows.device) % _HELD_BACK == _HELD_BACK - 1
        train, judge = (rows, rows) if len(rows) < _HELD_BACK else (rows[~held], rows[held])
        start, best = self.network.base.copy(), (-np.inf, [0] * len(self.trunk.biases), self.network.base.copy())
        rewards: dict[tuple[int, ...], float] = {}
        seed = int(torch.randint(2**31, (), generator=self.engine.weights_rng))
        generator = np.random.default_rng(seed)
        for _ in range(self.config.trials if len(rows) > 0 else 0):
            levels = self.proposal(rewards, generator)
            if levels is None:
                break
            self.network.base.set(start)
            reward = self.tried(levels, train, judge)
            rewards[tuple(levels)] = max(reward, _DIVERGED)
            if self.controller:
                assert isinstance(self.controller.module, Controller)
                self.controller.descend(
                    self.controller.module.score(levels, rewards[tuple(levels)]), self.config.controller_lr
                )
            if reward > best[0]:
                best = reward, levels, self.network.base.copy()
        self.use(best[1])
        self.network.base.set(best[2])
        if len(rows) >= _HELD_BACK:
            self.learn(judge)
        self.drop_spare()
        self.memory.clear()

    def proposal(self, rewards: dict[tuple[int, ...], float], generator: np.random.Generator) -> list[int] | None:
        """The levels to try next: of the controller, drawn, or those with the largest expected improvement.

        None if all were tried.
        """
        layers, levels = len(self.trunk.biases), self.config.levels
        if self.controller:
            assert isinstance(self.controller.module, Controller)
            return self.controller.module.drawn(generator)
        points = [point for point in grid(layers, levels, generator) if point not in rewards]
        if not points:
            return None
        if len(rewards) < _FIRST:
            return list(points[int(generator.integers(len(points)))])
        known = np.array(list(rewards)) / (levels - 1)
        gain = expected_improvement(known, np.array(list(rewards.values())), np.array(points) / (levels - 1))
        return list(points[int(gain.argmax())])

    def tried(self, levels: list[int], train: Tensor, judge: Tensor) -> float:
        """The reward of a candidate: its accuracy after a short training, less the cost of its parameters.

        It is -inf if the training diverged.
        """
        self.use(levels)
        for _ in range(self.config.passes):
            self.learn(train)
        if not all(bool(p.isfinite().all()) for p in self.network.base.tensors):
            return -np.inf
        right = self.engine.evaluated(self.memory.x[judge], self.memory.task[judge]).logits.argmax(1)
        accuracy = float((right == self.memory.y[judge]).double().mean())
        return accuracy - self.config.cost * self.added(levels) / self.first_size()

    def learn(self, rows: Tensor) -> None:
        """One pass over stored samples, a few at a time."""
        with self.engine.autocast():
            for some in rows.split(_AT_ONCE):
                self.step(self.memory.samples(some))

    @torch.no_grad()
    def use(self, levels: list[int]) -> None:
        """Let the open task use as many of the spare units per layer as these levels say, and train them."""
        for i, level in enumerate(levels):
            spare = self.trunk.is_spare(i)
            first = len(spare) - self.trunk.spare_units
            chosen = spare & (torch.arange(len(spare), device=spare.device) < first + self.units_of(level))
            self.row(i).copy_(~spare | chosen)
            self.trunk.trained(i).copy_(chosen)

    def units_of(self, level: int) -> int:
        """How many units a level stands for."""
        return round(level * self.config.units / (self.config.levels - 1))

    def added(self, levels: list[int]) -> int:
        """Parameters that a candidate adds to the layers."""
        below, total = 0, 0
        for i, level in enumerate(levels):
            inputs = self.trunk.weights[i].shape[1] - (self.trunk.spare_units if i else 0) + below
            below = self.units_of(level)
            total += below * (inputs + 1)
        return total

    def first_size(self) -> int:
        """Parameters of the layers of the first task."""
        total, inputs = 0, self.trunk.weights[0].shape[1]
        for i in range(len(self.trunk.biases)):
            units = int(self.trunk.uses(i)[0].sum())
            total, inputs = total + units * (inputs + 1), units
        return total

    @classmethod
    def step_size(cls, config: Any, batch: int, stored: int, tasks: int) -> StepSize:
        """The batch; a gradient, and the weights that the search begins with, tries and likes best."""
        return StepSize(batch, copies=6)


def grid(layers: int, levels: int, generator: np.random.Generator) -> list[tuple[int, ...]]:
    """All choices of a level per layer, or many if there are more than can be looked at."""
    if levels**layers <= _MOST_POINTS:
        return list(itertools.product(range(levels), repeat=layers))
    return [tuple(point) for point in generator.integers(levels, size=(_MOST_POINTS, layers)).tolist()]


def expected_improvement(known: np.ndarray, rewards: np.ndarray, points: np.ndarray) -> np.ndarray:
    """Of points [n, layers] over the best of the rewards [m] of known points [m, layers], by a Gaussian process."""
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import Matern

    scale = float(rewards.std()) or 1.0
    scaled = (rewards - rewards.mean()) / scale
    process = GaussianProcessRegressor(Matern(_LENGTH, nu=2.5), alpha=_NOISE, optimizer=None).fit(known, scaled)
    mean, deviation = process.predict(points, return_std=True)
    gain = mean - scaled.max()
    z = gain / np.maximum(deviation, 1e-12)
    found: np.ndarray = scale * (gain * norm.cdf(z) + deviation * norm.pdf(z))
    return found
