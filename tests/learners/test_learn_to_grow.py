"""Learn to Grow: what is mixed, what is chosen, what is frozen, and what a task's network is in the end."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from scale_cl import train
from scale_cl.errors import CheckpointError, ConfigError
from scale_cl.learners import LearnToGrow, LearnToGrowConfig
from scale_cl.learners.layer_copies import Bottleneck, Pointwise
from scale_cl.learners.learn_to_grow import NEW
from scale_cl.learners.method_properties import parameters_in_use
from scale_cl.streams import InputSpec, TaskInfo
from tests.learners.plain import in_double
from tests.learners.sameness import differences
from tests.learners.tiny import COLOUR, SPLIT, batch, teach
from tests.nets.test_custom_backbone import headless
from tests.training.small_streams import few_digits

SMALL = {"backbone": "mlp-6-5", "adapter": 2, "search_steps": 4, "lr": 0.2}


def make(spec: InputSpec = SPLIT, **values: object) -> LearnToGrow:
    return LearnToGrow(spec, LearnToGrowConfig(**SMALL | values))  # type: ignore[arg-type]


def choosing(learner: LearnToGrow, numbers: list[int]) -> LearnToGrow:
    """Let alpha prefer these choices of the open task."""
    with torch.no_grad():
        for alpha, number in zip(learner.open_path().alpha, numbers, strict=True):
            alpha.zero_()
            alpha[number] = 50
    return learner


def linear(learner: LearnToGrow, task: int, layer: int) -> nn.Linear:
    found = learner.paths.path(task).new[layer]
    assert isinstance(found, nn.Linear)
    return found


def logits(learner: LearnToGrow, task: int, features: Tensor) -> Tensor:
    heads = learner.net.heads
    return features @ heads.weight.data[task].T + heads.bias.data[task]


def test_a_search_mixes_all_choices_and_trains_weights_and_alpha_in_turns() -> None:
    learner = in_double(make(size_penalty=0.3, alpha_lr=0.7))
    learner.engine.backbone.double()  # new paths are made like it
    teach(learner, tasks=1)
    learner.begin_task(TaskInfo("next", 3))
    path = learner.open_path()
    assert path.owners == [[0], [0]]
    for step in range(4):
        own = {n: p.detach().clone().requires_grad_() for n, p in path.named_parameters()}
        x, y = batch(SPLIT, 6, seed=step)
        h = x.double().flatten(1) / 255
        for i in (0, 1):
            shares = own[f"alpha.{i}"].softmax(0)
            old = linear(learner, 0, i)
            new = h @ own[f"new.{i}.weight"].T + own[f"new.{i}.bias"]
            reused = h @ old.weight.detach().T + old.bias.detach()
            adapted = reused + h @ own[f"adapters.{i}.0.v"].T @ own[f"adapters.{i}.0.u"].T
            h = (shares[0] * new + shares[1] * reused + shares[2] * adapted).clamp(min=0)
        loss = -logits(learner, 1, h).log_softmax(1)[range(6), y].mean()
        sizes = torch.tensor([26 * 6, 7 * 5], dtype=torch.float64)
        expected = (torch.stack([own[f"alpha.{i}"].softmax(0)[0] for i in (0, 1)]) * sizes).sum() / sizes.sum()
        alphas = step % 2 == 1
        gradient = torch.autograd.grad(loss + (0.3 * expected if alphas else 0), list(own.values()))
        learner.observe(x, y)
        for (name, p), g in zip(own.items(), gradient, strict=True):
            rate = (0.7 if alphas else 0) if "alpha" in name else (0 if alphas else 0.2)
            torch.testing.assert_close(path.get_parameter(name).detach(), (p - rate * g).detach())
    wanted = path.best()
    assert path.is_open
    learner.observe(*batch(SPLIT, 6))
    assert not path.is_open
    assert path.chosen == wanted


@pytest.mark.parametrize("numbers", [[0, 1], [1, 2], [2, 0], [1, 1]])
def test_the_choice_is_the_network_of_the_task(numbers: list[int]) -> None:
    learner = teach(make(), tasks=1)
    learner.begin_task(TaskInfo("next", 3))
    choosing(learner, numbers).engine.task_steps = 4
    for seed in range(2):
        learner.observe(*batch(SPLIT, 6, seed=seed))
    x = batch(SPLIT, 5)[0]
    h = x.flatten(1) / 255
    path = learner.open_path()
    for i, number in enumerate(numbers):
        layer = linear(learner, 1 if number == NEW else 0, i)
        out = h @ layer.weight.T + layer.bias
        if number == 2:
            adapter = path.adapters[i][0]  # type: ignore[index]
            assert isinstance(adapter, Bottleneck)
            assert bool(adapter.u.any()), "it has learnt"
            out = out + h @ adapter.v.T @ adapter.u.T
        h = out.clamp(min=0)
    torch.testing.assert_close(learner.predict(x, "next"), logits(learner, 1, h).detach(), rtol=1e-5, atol=1e-6)
    alone = learner.predicting_net().for_task(1)
    torch.testing.assert_close(alone(x / 255), learner.predict(x, "next"))
    heads, first = 2 * 3 * 6, 26 * 6 + 7 * 5
    sizes = [(26 * 6, 0, 2 * 31), (7 * 5, 0, 2 * 11)]
    assert parameters_in_use(learner) == heads + first + sum(sizes[i][n] for i, n in enumerate(numbers))


def test_only_new_copies_are_offered_and_only_the_latest() -> None:
    learner = teach(make(candidates=2), tasks=1)
    for task, numbers in enumerate([[0, 1], [0, 0], [1, 0]], 1):
        learner.begin_task(TaskInfo(f"task {task}", 3))
        choosing(learner, numbers)
        learner.observe(*batch(SPLIT, 4))
        learner.end_task()
    learner.begin_task(TaskInfo("last", 3))
    assert learner.open_path().owners == [[1, 2], [2, 3]], "of the first layer copies 0, 1, 2; of the second 0, 2, 3"


@pytest.mark.parametrize("spec", [SPLIT, COLOUR], ids=["mlp", "resnet"])
def test_finished_tasks_do_not_move_by_a_bit(spec: InputSpec) -> None:
    backbone = "mlp-6-5" if spec is SPLIT else "auto"
    learner = teach(make(spec, backbone=backbone, search_steps=1), tasks=1)
    layers = learner.layers.count
    learner.begin_task(TaskInfo("task 1", 3))
    choosing(learner, [(i + 1) % 3 for i in range(layers)])
    for seed in range(3):
        learner.observe(*batch(spec, 4, seed=seed))
    x = batch(spec, 5)[0]
    before = [learner.predict(x, f"task {k}").clone() for k in range(2)]
    teach(learner, tasks=2, first=2)
    assert all(torch.equal(learner.predict(x, f"task {k}"), before[k]) for k in range(2))


def test_what_another_task_uses_stays_when_its_first_owner_comes_back() -> None:
    learner = teach(make(), tasks=1)
    learner.begin_task(TaskInfo("task 1", 3))
    choosing(learner, [1, 0])
    learner.observe(*batch(SPLIT, 4))
    learner.end_task()
    x = batch(SPLIT, 5)[0]
    before = [learner.predict(x, f"task {k}").clone() for k in range(2)]
    shared, own = (linear(learner, 0, i).weight.detach().clone() for i in (0, 1))
    teach(learner, tasks=1)
    assert torch.equal(linear(learner, 0, 0).weight, shared)
    assert not torch.equal(linear(learner, 0, 1).weight, own)
    assert torch.equal(learner.predict(x, "task 1"), before[1])
    assert not torch.equal(learner.predict(x, "task 0"), before[0])


def test_a_resnet_is_adapted_by_1_x_1_convolutions_of_the_same_size() -> None:
    learner = teach(make(COLOUR, backbone="auto"), tasks=1, steps=1)
    learner.begin_task(TaskInfo("next", 3))
    learner.observe(*batch(COLOUR, 4))
    adapters = [own[0] for own in learner.open_path().adapters]  # type: ignore[index]
    assert all(isinstance(adapter, Pointwise) for adapter in adapters)
    assert [tuple(a.weight.shape[:2]) for a in adapters[:4]] == [(20, 3), (20, 20), (20, 20), (40, 20)]
    assert [a.stride for a in adapters] == [2, 1, 1, 2, 1, 2, 1, 2, 1]


def test_a_backbone_of_ones_own_is_one_layer_to_reuse_or_replace() -> None:
    learner = teach(LearnToGrow(COLOUR, backbone=headless), tasks=1, steps=1)
    learner.begin_task(TaskInfo("next", 3))
    assert [len(alpha) for alpha in learner.open_path().alpha] == [2]


@pytest.mark.parametrize("steps", [1, 4, 5])
def test_it_is_saved_and_loaded_to_the_bit_within_and_after_the_search(steps: int) -> None:
    straight = teach(make(), tasks=2, steps=5)
    straight.begin_task(TaskInfo("open", 3))
    choosing(straight, [2, 1])
    for step in range(steps):
        straight.observe(*batch(SPLIT, 4, seed=step))
    loaded = teach(make(), tasks=3, steps=6)
    loaded.load_state_dict(straight.state_dict())
    assert differences(straight, loaded) == []
    for learner in (straight, loaded):
        for step in range(5):
            learner.observe(*batch(SPLIT, 4, seed=step))
        teach(learner, tasks=2, first=1, steps=5)
    assert differences(straight, loaded) == []


def test_on_digits_nothing_is_forgotten_and_one_task_too_many_is_refused() -> None:
    stream = few_digits(tasks=3, train=100)
    learner = make(stream.spec, max_tasks=3)
    result = train(learner, stream)
    assert result.fm == 0.0
    assert all(row[j] == result.matrix[j][j] for i, row in enumerate(result.matrix) for j in range(i))
    with pytest.raises(ConfigError, match=r"would be number 4, but learn-?to-?grow adds .* bounded to 3"):
        learner.begin_task(TaskInfo("fourth", 10))


def test_a_task_exported_while_it_searches_answers_as_the_mixture() -> None:
    learner = teach(make(), tasks=1)
    learner.begin_task(TaskInfo("next", 3))
    learner.observe(*batch(SPLIT, 4))
    x = batch(SPLIT, 4)[0]
    torch.testing.assert_close(learner.predicting_net().for_task(1)(x / 255), learner.predict(x, "next"))


def test_a_state_that_uses_layers_of_a_later_task_is_refused() -> None:
    learner, other = (teach(make(), tasks=2) for _ in range(2))
    state = other.state_dict()
    state["tensors"]["paths.columns.1.offered"] += 3
    with pytest.raises(CheckpointError, match="task 1 uses layers of a later task"):
        learner.load_state_dict(state)
    assert differences(learner, other) == []
