"""Steps of GEM against a plain re-computation, and what GEM promises of a step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy import optimize
from torch import Tensor

from scale_cl.learners import Finetune, FinetuneConfig, Gem, GemConfig
from scale_cl.learners.gem import inner_products
from scale_cl.streams import InputSpec, TaskInfo
from tests.learners.plain import IMAGE, SPLIT, VECTOR, PlainNet, gradients, in_double, pixels, put, with_heads
from tests.learners.tiny import batch, teach


class PlainGem:
    """GEM as its description has it: python lists, one gradient at a time, scipy's solver."""

    def __init__(self, learner: Gem) -> None:
        self.config, self.net = learner.config, PlainNet(learner)
        self.memory: dict[int, list[tuple[Tensor, int]]] = {}
        self.written: dict[int, int] = {}
        self.violations = 0

    def begin_task(self, learner: Gem, task: int) -> None:
        self.net.meet(learner)
        self.task = task
        self.memory.setdefault(task, [])
        self.written.setdefault(task, 0)

    def observe(self, x: Tensor, y: list[int]) -> None:
        for _ in range(self.config.updates):
            self._update(x, y)
        for sample in zip(x, y, strict=True):
            place = self.written[self.task] % self.config.memory
            put(self.memory[self.task], place, sample)
            self.written[self.task] += 1

    def _update(self, x: Tensor, y: list[int]) -> None:
        past = []
        for task, ring in self.memory.items():
            if task != self.task:
                stored = torch.stack([sample for sample, _ in ring])
                past.append(self._gradient(stored, [label for _, label in ring], task))
        g = self._gradient(x, y, self.task)
        products = [float(one @ g) for one in past]
        if any(product < 0 for product in products):
            self.violations += 1
            rows = torch.stack(past)
            g = g + torch.from_numpy(self._dual(rows.numpy(), g.numpy())) @ rows
        with torch.no_grad():
            for p in self.net.base.values():
                p -= self.config.lr * g[: p.numel()].view_as(p)
                g = g[p.numel() :]

    def _gradient(self, x: Tensor, y: list[int], task: int) -> Tensor:
        found = gradients(self.net.loss(x, y, [task] * len(y)), self.net.base)
        return torch.cat([g.flatten() for g in found.values()])

    def _dual(self, rows: np.ndarray[Any, Any], g: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Minimise 1/2 v'(GG' + ridge I)v + (Gg)'v, v >= margin: shifted, as nonnegative least squares."""
        c = self.config
        q = rows @ rows.T + c.ridge * np.eye(len(rows))
        linear = rows @ g + c.margin * q.sum(1)
        lower = np.linalg.cholesky(q)
        z: np.ndarray[Any, Any] = optimize.nnls(lower.T, -np.linalg.solve(lower, linear))[0]
        return z + c.margin


class SideBySide:
    """A learner in float64 and its re-computation, compared after every step."""

    def __init__(self, spec: InputSpec, **values: Any) -> None:
        self.learner = in_double(Gem(spec, GemConfig(**values)))
        self.plain = PlainGem(self.learner)
        self.data = torch.Generator().manual_seed(1)

    def task(self, name: str, classes: int, *, steps: int, n: int) -> None:
        self.learner.begin_task(TaskInfo(name, classes))
        self.plain.begin_task(self.learner, self.learner.tasks.index(name))
        for _ in range(steps):
            x, y = pixels(self.learner.spec, n, classes, self.data)
            self.learner.observe(x, y)
            self.plain.observe(x, y.tolist())
            self.plain.net.compare(self.learner)


@with_heads(
    [{}, {"margin": 0.0}, {"margin": 2.0, "ridge": 0.1}, {"updates": 2}],
    ids=["as the paper", "without margin", "other program", "two updates"],
)
def test_mlp_steps_are_those_of_the_plain_computation(spec: InputSpec, values: dict[str, Any]) -> None:
    both = SideBySide(spec, memory=5, lr=0.1, **values)
    for task in "abcd":
        both.task(task, 3, steps=4, n=4)
    both.task("b", 3, steps=2, n=4)  # comes back: its own memory is no constraint now
    assert both.plain.violations > 0, "the program was never solved"


@pytest.mark.parametrize("updates", [1, 2])
def test_resnet_steps_are_those_of_the_plain_computation(updates: int) -> None:
    both = SideBySide(IMAGE, memory=6, updates=updates)
    for task, classes, steps in (("a", 2, 2), ("b", 3, 2), ("c", 2, 2)):  # heads of different widths
        both.task(task, classes, steps=steps, n=4)
    assert both.plain.violations > 0, "the program was never solved"


def test_memories_of_unequal_size_give_their_gradients() -> None:
    both = SideBySide(VECTOR, memory=6, lr=0.1)
    both.task("one sample", 3, steps=1, n=1)
    both.task("one batch", 3, steps=1, n=4)
    both.task("wide", 3, steps=1, n=9)
    both.task("last batch of one", 3, steps=2, n=5)
    both.task("last batch of one", 3, steps=1, n=1)


def test_without_a_negative_product_a_step_is_plain_sgd() -> None:
    learner, sgd = Gem(VECTOR, GemConfig(lr=0.1)), Finetune(VECTOR, FinetuneConfig(lr=0.1))
    x, y = batch(VECTOR, 10)
    for task in ("a", "b"):  # the same batch again: all gradients point the same way
        for one in (learner, sgd):
            one.begin_task(TaskInfo(task, 3))
            for _ in range(2):
                stats = one.observe(x, y)
                assert int(stats.get("violations", 0)) == 0
    for one_p, other_p in zip(learner.net.parameters(), sgd.net.parameters(), strict=True):
        torch.testing.assert_close(one_p, other_p, rtol=1e-5, atol=1e-6)


def gradients_of(learner: Gem) -> list[Tensor]:
    """Filled with the gradients of finished tasks and batch, [tasks, parameters], step by step."""
    given: list[Tensor] = []
    real = learner.direction

    def direction(gradients: Tensor) -> Tensor:
        given.append(gradients)
        return real(gradients)

    learner.direction = direction  # type: ignore[method-assign]
    return given


def test_a_projected_step_has_no_negative_product_with_any_finished_task() -> None:
    learner = in_double(Gem(SPLIT, GemConfig(memory=8, ridge=1e-9, lr=0.05)))
    teach(learner, tasks=5, steps=3)
    learner.begin_task(TaskInfo("now", 3))
    seen = 0
    given = gradients_of(learner)
    for step in range(20):
        stats = learner.observe(*batch(SPLIT, 4, seed=500 + step))
        direction = learner.direction(given[-1])
        if int(stats["violations"]):
            seen += 1
            assert float((given[-1][:-1] @ direction).min()) > -1e-6
    assert seen > 0


def test_products_are_summed_in_float64() -> None:
    rows = torch.randn(3, 40_000, generator=torch.Generator().manual_seed(0))
    exact = rows.double() @ rows.double().T
    assert (inner_products(rows) - exact).abs().max() < 1e-7 * exact.max()
    assert torch.equal(inner_products(rows[:, :7]), (rows[:, :7] @ rows[:, :7].T).double())


def test_gradients_lie_in_one_tensor_of_the_size_in_use() -> None:
    learner = Gem(SPLIT, GemConfig(memory=5))
    given = gradients_of(learner)
    trunk = sum(p.numel() for p in learner.net.backbone.parameters())
    for task in range(4):
        teach(learner, tasks=1, steps=1, first=task)
        head = 3 * (learner.net.backbone.feature_width + 1)
        assert given[-1].shape == (task + 1, trunk + (task + 1) * head)


def test_forty_tasks_of_one_small_batch_each() -> None:
    learner = Gem(InputSpec((6,), None, "domain"), GemConfig(memory=2))
    given = gradients_of(learner)
    teach(learner, tasks=40, steps=1, n=2)
    assert len(given[-1]) == 40
    learner.begin_task(TaskInfo("task 0", 3))
    assert bool(learner.observe(*batch(learner.spec, 3))["loss"].isfinite())
