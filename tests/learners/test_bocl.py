"""BOCL and RCL: proposals against closed forms, probes re-computed by hand, what is frozen, and what is dropped."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

from scale_cl import train
from scale_cl.errors import ConfigError
from scale_cl.learners import Bocl, BoclConfig
from scale_cl.learners.bocl import Controller, expected_improvement, grid
from scale_cl.learners.method_properties import parameters_in_use
from scale_cl.streams import InputSpec, TaskInfo
from tests.learners.plain import in_double
from tests.learners.sameness import differences
from tests.learners.tiny import COLOUR, SPLIT, batch, teach
from tests.training.small_streams import few_digits

SMALL = {"backbone": "mlp-6-5", "units": 4, "levels": 3, "search_steps": 2, "lr": 0.2, "trials": 4}


def make(spec: InputSpec = SPLIT, **values: object) -> Bocl:
    return Bocl(spec, BoclConfig(**SMALL | values))  # type: ignore[arg-type]


def test_expected_improvement_is_that_of_the_gaussian_posterior() -> None:
    known, points = np.array([[0.0, 0.5], [1.0, 0.5], [0.5, 0.0]]), np.array([[0.0, 0.0], [0.5, 1.0], [1.0, 0.5]])
    rewards = np.array([0.4, 0.7, 0.5])
    scaled = (rewards - rewards.mean()) / rewards.std()

    def matern(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        d = math.sqrt(5) * np.sqrt(((a[:, None] - b[None]) ** 2).sum(2)) / 0.5
        found: np.ndarray = (1 + d + d**2 / 3) * np.exp(-d)
        return found

    inverse = np.linalg.inv(matern(known, known) + 1e-3 * np.eye(3))
    across = matern(points, known)
    mean = across @ inverse @ scaled
    deviation = np.sqrt(1 - np.einsum("ij,jk,ik->i", across, inverse, across))
    wanted = []
    for m, s in zip(mean, deviation, strict=True):
        z = (m - scaled.max()) / s
        cdf, pdf = (1 + math.erf(z / math.sqrt(2))) / 2, math.exp(-z * z / 2) / math.sqrt(2 * math.pi)
        wanted.append(rewards.std() * ((m - scaled.max()) * cdf + s * pdf))
    np.testing.assert_allclose(expected_improvement(known, rewards, points), wanted, rtol=1e-6, atol=1e-9)
    assert np.isfinite(expected_improvement(known, np.array([0.5, 0.5, 0.5]), points)).all()


def test_the_controller_is_an_lstm_and_learns_what_is_rewarded() -> None:
    controller = Controller(2, 3, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        controller.out.copy_(torch.randn(3, 32, generator=torch.Generator().manual_seed(1)))
    cell = nn.LSTMCell(4, 32)
    with torch.no_grad():
        cell.weight_ih.copy_(controller.cell[:, :4])
        cell.weight_hh.copy_(controller.cell[:, 4:])
        cell.bias_ih.copy_(controller.cell_bias)
        cell.bias_hh.zero_()
    state = cell(torch.eye(4)[3:4])
    first = controller.out @ state[0][0] + controller.out_bias
    second = controller.out @ cell(torch.eye(4)[2:3], state)[0][0] + controller.out_bias
    torch.testing.assert_close(controller([2, 0]), torch.stack([first, second]).log_softmax(1))
    generator, optimizer = np.random.default_rng(0), torch.optim.SGD(controller.parameters(), 0.5)
    for _ in range(100):
        levels = controller.drawn(generator)
        optimizer.zero_grad()
        controller.score(levels, float(levels == [1, 2])).backward()
        optimizer.step()
    assert float(controller([1, 2])[[0, 1], [1, 2]].exp().prod().detach()) > 0.9


def test_a_search_over_many_layers_looks_at_some_choices_only() -> None:
    generator = np.random.default_rng(0)
    assert len(grid(2, 5, generator)) == len(set(grid(2, 5, generator))) == 25
    assert len(grid(8, 5, generator)) == 1000
    learner = teach(make(backbone="-".join(["mlp", *["3"] * 8]), levels=5), tasks=2, steps=3)
    assert learner.trunk.tasks == 2


def plain_reward(learner: Bocl, levels: list[int], train_rows: list[int], judged: list[int]) -> float:
    """Train the layers of a candidate alone, in plain torch, and judge it."""
    trunk, heads, c = learner.trunk, learner.net.heads, learner.config
    counts = [2 * level for level in levels]
    old = [len(b) - 4 for b in trunk.biases]
    use = [list(range(n + k)) for n, k in zip(old, counts, strict=True)]
    weights = [trunk.weights[0][use[0]], trunk.weights[1][use[1]][:, use[0]], heads.weight.data[1][:, use[1]]]
    biases = [trunk.biases[0][use[0]], trunk.biases[1][use[1]], heads.bias.data[1]]
    w, b = ([p.detach().clone().requires_grad_() for p in kind] for kind in (weights, biases))

    def logits(rows: list[int]) -> torch.Tensor:
        h = learner.memory.x[rows].flatten(1).double() / 255
        for i in (0, 1):
            h = (h @ w[i].T + b[i]).clamp(min=0)
        out: torch.Tensor = h @ w[2].T + b[2]
        return out

    y = learner.memory.y
    for _ in range(c.passes):
        for first in range(0, len(train_rows), 10):
            some = train_rows[first : first + 10]
            loss = -logits(some).log_softmax(1)[range(len(some)), y[some]].mean()
            gradient = torch.autograd.grad(loss, [*w, *b])
            with torch.no_grad():
                for i, (p, g) in enumerate(zip([*w, *b], gradient, strict=True)):
                    own = old[i % 3] if i % 3 < 2 else 0
                    p[own:] -= c.lr * g[own:]
    right = float((logits(judged).argmax(1) == y[judged]).double().mean())
    added = counts[0] * 26 + counts[1] * (old[0] + counts[0] + 1)
    return right - c.cost * added / (6 * 26 + 5 * 7)


@pytest.mark.parametrize("levels", [[0, 0], [2, 1], [1, 2], [0, 2]])
def test_the_reward_of_a_candidate_is_that_of_its_network_alone(levels: list[int]) -> None:
    learner = in_double(make(cost=0.3, memory=40))
    teach(learner, tasks=1, steps=3)
    learner.begin_task(TaskInfo("next", 3))
    for step in range(2):
        learner.observe(*batch(SPLIT, 17, seed=step))
    rows = learner.memory.rows_of(1)
    train_rows, judged = [r for i, r in enumerate(rows.tolist()) if i % 4 != 3], rows.tolist()[3::4]
    wanted = plain_reward(learner, levels, train_rows, judged)
    found = learner.tried(levels, torch.tensor(train_rows), torch.tensor(judged))
    assert found == pytest.approx(wanted, abs=1e-9)


@pytest.mark.parametrize("search", ["bayesian", "controller"])
def test_the_best_candidate_is_taken_and_the_rest_dropped(search: str, monkeypatch: pytest.MonkeyPatch) -> None:
    learner = teach(make(search=search, trials=12), tasks=1)
    tried: list[tuple[int, ...]] = []

    def tell(levels: list[int], *_: object) -> float:
        tried.append(tuple(levels))
        learner.use(levels)
        return -abs(levels[0] - 2) - abs(levels[1] - 1)

    monkeypatch.setattr(learner, "tried", tell)
    learner.begin_task(TaskInfo("next", 3))
    for step in range(3):
        learner.observe(*batch(SPLIT, 6, seed=step))
    if search == "bayesian":
        assert sorted(tried[:9]) == sorted(grid(2, 3, np.random.default_rng(0))), "none is tried twice"
    best = max(tried, key=lambda levels: -abs(levels[0] - 2) - abs(levels[1] - 1))
    assert [len(b) for b in learner.trunk.biases] == [6 + 2 * best[0], 5 + 2 * best[1]]
    assert learner.memory.available(current=True) == 0
    first, second = (len(b) for b in learner.trunk.biases)
    assert parameters_in_use(learner) - sum(
        p.numel() for p in (learner.controller.module.parameters() if learner.controller.module else [])
    ) == 26 * first + (first + 1) * second + 2 * 3 * (second + 1)


def test_a_candidate_that_diverges_is_never_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    learner = teach(make(), tasks=1)
    monkeypatch.setattr(learner, "learn", lambda rows: [p.detach().fill_(torch.nan) for p in learner.trunk.weights])
    learner.begin_task(TaskInfo("next", 3))
    for step in range(2):
        learner.observe(*batch(SPLIT, 2, seed=step))
    with monkeypatch.context() as m:
        m.setattr(learner.memory, "rows_of", lambda task: torch.arange(3))
        learner.search()
    assert all(bool(p.isfinite().all()) for p in learner.net.parameters())


def test_earlier_tasks_do_not_change_and_new_units_learn() -> None:
    learner = teach(make(cost=0.0, trials=6), tasks=2, steps=4)
    x = batch(SPLIT, 5)[0]
    before = [learner.predict(x, f"task {k}").clone() for k in range(2)]
    units = [len(b) for b in learner.trunk.biases]
    kept = [p.detach().clone() for p in learner.trunk.parameters()]
    teach(learner, tasks=3, first=2, steps=4)
    for k in range(2):
        torch.testing.assert_close(learner.predict(x, f"task {k}"), before[k])
    for now, then in zip(learner.trunk.parameters(), kept, strict=True):
        assert torch.equal(now[tuple(slice(n) for n in then.shape)], then), "what was there is frozen"
    assert sum(len(b) for b in learner.trunk.biases) > sum(units)
    second = learner.trunk.weights[1]
    assert not second[: units[1], units[0] :].any(), "old units do not read new ones"


@pytest.mark.parametrize("search", ["bayesian", "controller"])
@pytest.mark.parametrize("steps", [1, 2, 3])
def test_it_is_saved_and_loaded_to_the_bit_before_and_after_the_search(steps: int, search: str) -> None:
    straight = teach(make(search=search), tasks=2, steps=4)
    straight.begin_task(TaskInfo("open", 3))
    for step in range(steps):
        straight.observe(*batch(SPLIT, 4, seed=step))
    loaded = teach(make(search=search), tasks=3, steps=3)
    loaded.load_state_dict(straight.state_dict())
    assert differences(straight, loaded) == []
    for learner in (straight, loaded):
        for step in range(3):
            learner.observe(*batch(SPLIT, 4, seed=step))
        teach(learner, tasks=2, first=1, steps=3)
    assert differences(straight, loaded) == []


def test_a_task_shorter_than_the_search_is_searched_at_its_end() -> None:
    learner = teach(make(search_steps=50, cost=-0.0), tasks=3, steps=2)
    assert not learner.is_new
    assert learner.memory.available(current=True) == 0


def test_on_digits_nothing_is_forgotten_and_what_cannot_be_is_refused_in_one_line() -> None:
    stream = few_digits(tasks=3, train=100)
    learner = make(stream.spec, max_tasks=3)
    result = train(learner, stream)
    assert result.fm == 0.0
    with pytest.raises(ConfigError, match=r"would be number 4, but bocl adds .* bounded to 3"):
        learner.begin_task(TaskInfo("fourth", 10))
    with pytest.raises(ConfigError, match=r"^bocl grows the layers of an MLP; learner.backbone must be mlp"):
        Bocl(COLOUR, BoclConfig(backbone="resnet18"))
