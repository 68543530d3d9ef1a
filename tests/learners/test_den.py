"""DEN against a plain re-computation with sets of units: selection, retraining, growth, splits and what is dropped."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from scale_cl import train
from scale_cl.errors import CheckpointError, ConfigError
from scale_cl.learners import Den, DenConfig
from scale_cl.learners.method_properties import parameters_in_use
from scale_cl.streams import TaskInfo
from tests.learners.plain import in_double
from tests.learners.sameness import differences
from tests.learners.tiny import COLOUR, DOMAIN, SPLIT, batch, teach
from tests.training.small_streams import few_digits

C = DenConfig(
    backbone="mlp-7-6",
    lr=0.3,
    l1=0.02,
    l2=0.01,
    stay=0.3,
    zero=1e-6,
    threshold=0.5,
    expansion=3,
    splits=2,
    group_lasso=0.5,
    drift=0.001,
    head_steps=2,
    retrain_steps=3,
    expand_steps=2,
)


@dataclass
class Plain:
    """The network of one task as sets of units, which is compared with the learner's."""

    w: list[Tensor]
    b: list[Tensor]
    v: Tensor  # [classes, units] the task's head
    c: Tensor
    uses: list[set[int]]
    trained: list[set[int]]

    @classmethod
    def of(cls, learner: Den, task: int) -> Plain:
        trunk, heads = learner.trunk, learner.net.heads
        return cls(
            [p.detach().clone() for p in trunk.weights],
            [p.detach().clone() for p in trunk.biases],
            heads.weight.data[task].detach().clone(),
            heads.bias.data[task].detach().clone(),
            [set(trunk.uses(i)[task].nonzero().flatten().tolist()) for i in (0, 1)],
            [set(trunk.trained(i).nonzero().flatten().tolist()) for i in (0, 1)],
        )

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        h, below = x.double().flatten(1) / 255, list(range(25))
        for w, b, uses in zip(self.w, self.b, self.uses, strict=True):
            rows = sorted(uses)
            h, below = (h @ w[rows][:, below].T + b[rows]).clamp(min=0), rows
        return -(h @ self.v[:, below].T + self.c).log_softmax(1)[range(len(y)), y].mean()

    def step(self, x: Tensor, y: Tensor, before: Plain, phase: str, added: list[set[int]] | None) -> float:
        """One step; `added` are the units that are being added, if any are."""
        leaves = [*self.w, *self.b, self.v, self.c]
        loss = self.loss(x, y)
        gradient = dict(zip(map(id, leaves), torch.autograd.grad(loss, leaves), strict=True))
        with torch.no_grad():
            for i in (0, 1):
                for j in range(len(self.b[i])):
                    for k in range(self.w[i].shape[1]):
                        below_trained = i == 0 or k in self.trained[i - 1]
                        moves = j in self.trained[i] and below_trained
                        if added is not None:
                            moves = j in added[i] or (i > 0 and k in added[i - 1])
                        if moves:
                            self.go(self.w[i], (j, k), gradient, before.w[i], phase)
                    if j in self.trained[i]:
                        self.go(self.b[i], (j,), gradient, before.b[i], phase)
            for leaf in (self.v, self.c):
                leaf -= C.lr * gradient[id(leaf)]
            for sparse in [self.v, *self.w] if phase == "first" else [self.v] if phase == "head" else []:
                sparse.copy_(sparse.sign() * (sparse.abs() - C.lr * C.l1).clamp(min=0))
            for i, units in enumerate(added or []):
                for j in units:
                    size = float(self.w[i][j].norm())
                    self.w[i][j] *= max(0.0, 1 - C.lr * C.group_lasso / size) if size > 0 else 0.0
        return float(loss.detach())

    def go(self, p: Tensor, at: tuple[int, ...], gradient: dict[int, Tensor], before: Tensor, phase: str) -> None:
        g = gradient[id(p)][at]
        if phase == "units":
            g = g + 2 * C.stay * (p[at] - before[at]) + 2 * C.l2 * p[at]
        p[at] -= C.lr * g

    def grad(self) -> Plain:
        for leaf in (*self.w, *self.b, self.v, self.c):
            leaf.requires_grad_()
        return self

    def compare(self, learner: Den, task: int) -> None:
        now = Plain.of(learner, task)
        for mine, theirs in zip((*self.w, *self.b, self.v, self.c), (*now.w, *now.b, now.v, now.c), strict=True):
            torch.testing.assert_close(theirs, mine.detach(), rtol=1e-6, atol=1e-8)
        assert now.uses == self.uses


def test_phases_of_a_task_are_those_of_the_plain_computation() -> None:
    learner = in_double(Den(SPLIT, C))
    learner.before.reset()
    learner.begin_task(TaskInfo("0", 3))
    start = Plain.of(learner, 0)
    for step in range(3):
        plain = Plain.of(learner, 0).grad()
        x, y = batch(SPLIT, 6, seed=step)
        plain.step(x, y, start, "first", None)
        learner.observe(x, y)
        plain.compare(learner, 0)
    learner.end_task()
    learner.begin_task(TaskInfo("1", 3))
    before = Plain.of(learner, 1)
    losses: list[float] = []
    added: list[set[int]] | None = None
    assert not before.v[:, :6].any(), "the new head begins at zero"
    old_units = [set(range(7)), set(range(6))]
    for step in range(9):
        plain, (x, y) = Plain.of(learner, 1).grad(), batch(SPLIT, 6, seed=100 + step)
        if step == 2:
            top = {j for j in range(6) if any(abs(float(plain.v[k, j].detach())) > C.zero for k in range(3))}
            low = {k for k in range(7) if any(abs(float(plain.w[1][j, k].detach())) > C.zero for j in top)}
            assert 0 < len(top) < 6, "some are selected, some are not"
            plain.trained = [low, top]
        if step == 5:
            assert sum(losses[2:]) / 3 > C.threshold
            added = [{7, 8, 9}, {6, 7, 8}]
            plain.uses = [old | new for old, new in zip(old_units, added, strict=True)]
            plain.trained = added
        if step == 7:
            assert added is not None
            split_by_hand(plain, before, added)
            added = None
        losses.append(plain.step(x, y, before, "head" if step < 2 else "units", added))
        learner.observe(x, y)
        plain.compare(learner, 1)
    assert plain.uses[0] >= {10, 11}, "copies of units that drifted"
    assert len(old_units[0] - plain.uses[0]) == 2
    used = [len(uses) for uses in plain.uses]
    gone = [len(old - uses) for old, uses in zip(old_units, plain.uses, strict=True)]
    x = batch(SPLIT, 4)[0]
    answers = learner.predict(x, "1").clone()
    learner.end_task()
    assert [len(b) for b in learner.trunk.biases] == [u + g for u, g in zip(used, gone, strict=True)]
    assert learner.net.heads.width == len(learner.trunk.biases[-1])
    torch.testing.assert_close(learner.predict(x, "1"), answers, msg="what is dropped was not used")


def split_by_hand(plain: Plain, before: Plain, added: list[set[int]]) -> None:
    with torch.no_grad():
        for i, size in ((0, 12), (1, 11)):
            alive = {j for j in added[i] if float(plain.w[i][j].norm()) > 0}
            plain.uses[i] -= added[i] - alive
            old = size - 5
            inputs = plain.w[i].shape[1] - (5 if i else 0)  # that were there before the task
            way = [float((plain.w[i][j][:inputs] - before.w[i][j][:inputs]).norm()) for j in range(old)]
            moved = [j for j in sorted(range(old), key=lambda j: -way[j])[:2] if way[j] > C.drift]
            above = plain.w[1] if i == 0 else plain.v
            for copy, j in zip(range(size - len(moved), size), moved, strict=True):
                plain.w[i][copy], plain.b[i][copy] = plain.w[i][j].clone(), plain.b[i][j].clone()
                above[:, copy] = above[:, j].clone()
                plain.w[i][j], plain.b[i][j] = before.w[i][j], before.b[i][j]
                plain.uses[i] = (plain.uses[i] - {j}) | {copy}
            plain.trained[i] = plain.uses[i]


def test_nothing_is_added_where_retraining_suffices() -> None:
    learner = Den(DOMAIN, DenConfig(**{**vars(C), "threshold": 100.0}))
    teach(learner, tasks=2, steps=10)
    assert [len(b) for b in learner.trunk.biases] == [7, 6]
    assert teach(Den(DOMAIN, C), tasks=2, steps=10).trunk.feature_width > 6


def test_units_that_came_later_do_not_disturb_earlier_tasks() -> None:
    learner = teach(Den(SPLIT, DenConfig(**{**vars(C), "stay": 0.0, "group_lasso": 0.0})), tasks=1, steps=3)
    learner.begin_task(TaskInfo("next", 3))
    for step in range(5):
        learner.observe(*batch(SPLIT, 4, seed=step))
    x = batch(SPLIT, 4)[0]
    before = learner.predict(x, "task 0").clone()
    for step in range(2):  # only added units learn
        learner.observe(*batch(SPLIT, 4, seed=step))
    torch.testing.assert_close(learner.predict(x, "task 0"), before)


@pytest.mark.parametrize("steps", [1, 3, 6, 8], ids=["head", "retraining", "expanding", "split"])
def test_it_is_saved_and_loaded_to_the_bit_in_every_phase(steps: int) -> None:
    straight = teach(Den(SPLIT, C), tasks=2, steps=8)
    straight.begin_task(TaskInfo("open", 3))
    for step in range(steps):
        straight.observe(*batch(SPLIT, 4, seed=step))
    loaded = teach(Den(SPLIT, C, seed=9), tasks=3, steps=6)
    loaded.load_state_dict(straight.state_dict())
    assert differences(straight, loaded) == []
    for learner in (straight, loaded):
        for step in range(8):
            learner.observe(*batch(SPLIT, 4, seed=step))
        teach(learner, tasks=2, first=1, steps=8)
    assert differences(straight, loaded) == []


def test_parameters_in_use_are_those_of_the_layers() -> None:
    learner = teach(Den(SPLIT, C), tasks=3, steps=8)
    first, second = (len(b) for b in learner.trunk.biases)
    assert parameters_in_use(learner) == 26 * first + (first + 1) * second + 3 * 3 * (second + 1)


def test_on_digits_it_forgets_little() -> None:
    stream = few_digits(tasks=3, train=200)
    config = DenConfig(lr=0.1, backbone="mlp-32-32", head_steps=4, retrain_steps=6, expand_steps=4)
    result = train(Den(stream.spec, config), stream)
    assert result.fm is not None
    assert result.fm < 10


def test_another_network_and_one_task_too_many_are_refused_in_one_line() -> None:
    with pytest.raises(
        ConfigError, match=r"^den grows the layers of an MLP; learner.backbone must be mlp or mlp-WIDTH"
    ):
        Den(COLOUR, DenConfig(backbone="resnet18"))
    learner = teach(Den(SPLIT, DenConfig(backbone="mlp-4-4", max_tasks=2)), tasks=2)
    with pytest.raises(ConfigError, match=r"'third' would be number 3, but den adds .* bounded to 2 \(learner"):
        learner.begin_task(TaskInfo("third", 3))


def test_a_task_exported_alone_has_only_the_units_that_it_uses() -> None:
    learner = teach(Den(SPLIT, C), tasks=3, steps=9)
    x = batch(SPLIT, 4)[0]
    for task in range(3):
        alone = learner.predicting_net().for_task(task)
        torch.testing.assert_close(alone(x / 255), learner.predict(x, f"task {task}"))
    sizes = [sum(p.numel() for p in learner.net.for_task(k).parameters()) for k in range(3)]
    assert sizes[0] == 26 * 7 + 8 * 6 + 3 * 7 < sizes[2]


@pytest.mark.parametrize("name", ["net.backbone.running_uses_1", "net.backbone.biases.0", "net.heads.weight.data"])
def test_a_state_whose_layers_do_not_fit_together_is_refused_and_nothing_changes(name: str) -> None:
    learner, other = (teach(Den(SPLIT, C), tasks=2, steps=8) for _ in range(2))
    state = other.state_dict()
    state["tensors"][name] = state["tensors"][name][..., :-1]
    with pytest.raises(CheckpointError, match="state does not fit this learner"):
        learner.load_state_dict(state)
    assert differences(learner, other) == []
