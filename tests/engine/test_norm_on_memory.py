"""Batch norm's running statistics, measured anew when a task ends: on what, by which weights, and nothing else."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from scale_cl import CustomBackbone
from scale_cl.engine import plain_copy
from scale_cl.learners import Er, ErConfig, Scale, ScaleConfig
from scale_cl.nets.kernels.norm import BatchNorm
from scale_cl.streams import InputSpec, TaskInfo
from tests.learners.tiny import COLOUR, DOMAIN, batch, teach

SMALL = InputSpec((3, 5, 5), 255.0, "task")


def learnt(stored: int, *, tasks: int = 1, on_memory: bool = True) -> Er:
    """A learner at the end of the last of some tasks, which is still open; each stored so many samples."""
    config = ErConfig(memory=stored, norm_on_memory=on_memory, backbone="resnet18", updates=1)
    learner = Er(SMALL, config, seed=1)
    for task in range(tasks):
        learner.begin_task(TaskInfo(f"task {task}", 3))
        for at in range(0, stored, 64):
            learner.observe(*batch(SMALL, min(64, stored - at), seed=100 * task + at))
    return learner


def first_norm(learner: Er | Scale) -> BatchNorm:
    return next(module for module in learner.net.modules() if isinstance(module, BatchNorm))


def first_convolution(net: nn.Module) -> nn.Conv2d:
    return next(module for module in net.modules() if isinstance(module, nn.Conv2d))


def seen_by_the_first_norm(learner: Er | Scale) -> list[Tensor]:
    """Filled with what comes there, forward by forward."""
    seen: list[Tensor] = []
    first_norm(learner).register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    return seen


def test_they_are_means_over_pieces_of_all_that_is_stored() -> None:
    learner = learnt(512)
    seen = seen_by_the_first_norm(learner)
    learner.end_task()
    assert [len(piece) for piece in seen] == [64] * 8
    norm = first_norm(learner)
    everything = first_convolution(learner.net)(learner.net.inputs(learner.memory.x[learner.memory.rows_of(0)]))
    torch.testing.assert_close(norm.running_mean, everything.mean((0, 2, 3)), rtol=1e-4, atol=1e-6)
    variances = torch.stack([piece.var((0, 2, 3)) for piece in seen])
    torch.testing.assert_close(norm.running_var, variances.mean(0), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("tasks", "stored", "pieces"), [(3, 8, [24]), (3, 40, [64] * 2), (3, 200, [64] * 10), (3, 400, [64] * 16)]
)
def test_at_most_1024_samples_are_read_and_each_piece_has_all_tasks(tasks: int, stored: int, pieces: list[int]) -> None:
    learner = learnt(stored, tasks=tasks)
    read: list[Tensor] = []
    learner.net.register_forward_pre_hook(lambda _, inputs: read.append(inputs[1]))
    learner.end_task()
    assert [len(task) for task in read] == pieces
    for task in read:
        assert (torch.bincount(task, minlength=tasks) >= len(task) // tasks - 1).all()


@pytest.mark.parametrize(("stored", "times"), [(40, {1}), (64, {1}), (100, {1, 2}), (1100, {0, 1})])
def test_every_sample_is_read_as_often_as_any_other_give_or_take_one(stored: int, times: set[int]) -> None:
    learner = learnt(stored)
    learner.memory.x.random_(0, 256, generator=torch.Generator().manual_seed(0))  # no two samples alike
    seen: list[Tensor] = []
    learner.net.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    learner.end_task()
    read = torch.cat(seen).flatten(1)
    own = learner.net.inputs(learner.memory.x[learner.memory.rows_of(0)]).flatten(1)
    count = (read.unsqueeze(1) == own.unsqueeze(0)).all(2).sum(0)
    assert set(count.tolist()) == times


def test_nothing_but_the_running_statistics_changes() -> None:
    with_it, without = learnt(30, tasks=2), learnt(30, tasks=2, on_memory=False)
    for learner in (with_it, without):
        learner.end_task()
        learner.begin_task(TaskInfo("next", 3))
    one, other = (learner.state_dict()["tensors"] for learner in (with_it, without))
    assert one.keys() == other.keys()
    differing = {name for name in one if not torch.equal(one[name], other[name])}
    assert differing
    assert all(name.endswith(("running_mean", "running_var")) for name in differing)
    assert first_norm(with_it).momentum == 0.1


def test_they_belong_to_the_weights_that_predict() -> None:
    learner = Scale(COLOUR, ScaleConfig(weight_average=0.9, inner_lr=0.1))
    teach(learner, tasks=2)
    averaged = learner.predicting_net()
    x = learner.net.inputs(learner.memory.x[torch.cat([learner.memory.rows_of(task) for task in (0, 1)])])
    measured = first_norm(learner).running_mean
    torch.testing.assert_close(measured, first_convolution(averaged)(x).mean((0, 2, 3)), rtol=1e-4, atol=1e-6)
    assert not torch.allclose(measured, first_convolution(learner.net)(x).mean((0, 2, 3)), rtol=1e-2)


def test_a_learner_that_goes_on_from_a_file_is_the_same() -> None:
    learner = learnt(30)
    copy = Er(SMALL, learner.config, seed=1)
    state = learner.state_dict()
    copy.load_state_dict({**state, "tensors": {name: plain_copy(t) for name, t in state["tensors"].items()}})
    for each in (learner, copy):
        each.end_task()
    one, other = (each.state_dict()["tensors"] for each in (learner, copy))
    assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("affine", [True, False])
def test_batch_norm_of_ones_own_network_is_measured_and_keeps_its_ways(affine: bool) -> None:
    def module() -> nn.Module:
        norm = nn.BatchNorm2d(4, momentum=None, affine=affine)
        return nn.Sequential(nn.Conv2d(3, 4, 3), norm, nn.AdaptiveAvgPool2d(1), nn.Flatten())

    learner = teach(Scale(COLOUR, ScaleConfig(memory=8), backbone=CustomBackbone(module)), tasks=1, steps=4)
    norm = next(part for part in learner.net.modules() if isinstance(part, nn.BatchNorm2d))
    x = learner.net.inputs(learner.memory.x[learner.memory.rows_of(0)])
    assert norm.running_mean is not None
    torch.testing.assert_close(
        norm.running_mean, first_convolution(learner.net)(x).mean((0, 2, 3)), rtol=1e-4, atol=1e-6
    )
    assert norm.momentum is None


def test_a_frozen_batch_norm_keeps_its_statistics() -> None:
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    module.requires_grad_(False)
    learner = teach(Scale(COLOUR, ScaleConfig(memory=8), backbone=module), tasks=1)
    norm = next(part for part in learner.net.modules() if isinstance(part, nn.BatchNorm2d))
    assert norm.running_mean is not None
    assert torch.equal(norm.running_mean, torch.zeros(4))


def test_without_batch_norm_or_with_one_sample_there_is_nothing_to_measure() -> None:
    plain = teach(Er(DOMAIN, ErConfig(norm_on_memory=True)), tasks=2)
    same = teach(Er(DOMAIN, ErConfig()), tasks=2)
    one, other = (learner.state_dict()["tensors"] for learner in (plain, same))
    assert all(torch.equal(one[name], other[name]) for name in one)
    single = Er(SMALL, ErConfig(memory=1, norm_on_memory=True, backbone="resnet18"))
    single.begin_task(TaskInfo("a", 3))
    single.observe(*batch(SMALL, 4))
    before = first_norm(single).running_mean.clone()
    single.end_task()
    assert torch.equal(first_norm(single).running_mean, before)


# ---- predictions within a task ---------------------------------------------------------------------------------------
@pytest.mark.parametrize("weight_average", [0.0, 0.9])
def test_a_prediction_within_a_task_uses_statistics_of_one_forward_over_what_is_stored(weight_average: float) -> None:
    learner = Scale(COLOUR, ScaleConfig(memory=12, inner_lr=0.1, weight_average=weight_average))
    teach(learner, tasks=2)
    learner.begin_task(TaskInfo("open", 3))
    learner.observe(*batch(COLOUR, 8, seed=5))
    before = {name: plain_copy(t) for name, t in learner.state_dict()["tensors"].items()}
    x = batch(COLOUR, 6, seed=9)[0]
    forwards: list[int] = []
    learner.net.register_forward_pre_hook(lambda _, inputs: forwards.append(len(inputs[0])))
    first, second = learner.predict(x, "open"), learner.predict(x, learner.tasks[0])
    stored = learner.memory.stored.nonzero().flatten()
    assert len(set(learner.memory.task[stored].tolist())) == 3
    assert forwards == [len(stored), 6, 6], "measured once for both"

    assert learner.engine.owned.network is not None
    reference = learner.engine.owned.network.predicting(learner.engine.average)
    for norm in (module for module in reference.modules() if isinstance(module, BatchNorm)):
        norm.train()
        norm.momentum = 1.0
    with torch.no_grad():
        reference(reference.inputs(learner.memory.x[stored]), learner.memory.task[stored])
        reference.eval()
        for number, found in ((2, first), (0, second)):
            expected = reference(reference.inputs(x), torch.full((6,), number)).logits[:, :3]
            torch.testing.assert_close(found, expected)
        exported = learner.predicting_net()
        torch.testing.assert_close(exported(exported.inputs(x), torch.full((6,), 2)).logits[:, :3], first)
    after = learner.state_dict()["tensors"]
    assert all(torch.equal(after[name], t) for name, t in before.items())
    learner.observe(*batch(COLOUR, 8, seed=6))
    forwards.clear()
    learner.predict(x, "open")
    assert len(forwards) == 2, "another step, another measurement"


def test_at_most_128_stored_samples_are_read_for_it_and_all_tasks_are_among_them() -> None:
    learner = learnt(100, tasks=3)
    read: list[Tensor] = []
    learner.net.register_forward_pre_hook(lambda _, inputs: read.append(inputs[1]))
    learner.predict(batch(SMALL, 4)[0], "task 0")
    assert [len(task) for task in read] == [128, 4]
    assert torch.bincount(read[0]).min() >= 128 // 3


def test_with_one_stored_sample_or_outside_a_task_it_uses_the_running_statistics() -> None:
    single = Er(SMALL, ErConfig(memory=1, norm_on_memory=True, backbone="resnet18"))
    single.begin_task(TaskInfo("a", 3))
    single.observe(*batch(SMALL, 4))
    closed = learnt(30)
    closed.end_task()
    x = batch(SMALL, 5)[0]
    for learner, task in ((single, "a"), (closed, "task 0")):
        running = learner.net.eval()
        with torch.no_grad():
            expected = running(running.inputs(x), torch.zeros(5, dtype=torch.int64)).logits
        learner.net.train()
        torch.testing.assert_close(learner.predict(x, task), expected)


def test_a_loaded_learner_predicts_the_same_within_a_task() -> None:
    learner = learnt(30)
    copy = Er(SMALL, learner.config, seed=1)
    copy.load_state_dict(learner.state_dict())
    x = batch(SMALL, 5)[0]
    assert torch.equal(copy.predict(x, "task 0"), learner.predict(x, "task 0"))
