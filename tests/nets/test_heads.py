"""Heads that grow: the logits of a sample are those of its own head, and of nothing else."""

from __future__ import annotations

import pytest
import torch

from scale_cl.nets import Heads


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def heads(*classes: int, shared: bool = False, capacity: int = 4) -> Heads:
    made, g = Heads(6, shared=shared, xavier=False, capacity=capacity), rng()
    for task, n in enumerate(classes):
        made.ensure(task, n, generator=g)
    return made


@pytest.mark.parametrize("classes", [(3, 3, 3), (2, 5, 3)])
def test_a_batch_of_mixed_tasks_gets_the_logits_of_each_samples_own_head(classes: tuple[int, ...]) -> None:
    made = heads(*classes)
    features, tasks = torch.randn(7, 6, generator=rng(1)), torch.tensor([0, 2, 1, 1, 0, 2, 1])
    logits = made(features, tasks)
    assert logits.shape == (7, max(classes))
    for o, f, t in zip(logits, features, tasks.tolist(), strict=True):
        own = made.weight.data[t, : classes[t]] @ f + made.bias.data[t, : classes[t]]
        torch.testing.assert_close(o[: classes[t]], own)
        assert (o[classes[t] :] == float("-inf")).all()


def test_a_shared_head_is_the_same_for_every_task() -> None:
    made = heads(4, 4, 4, shared=True)
    features = torch.randn(3, 6, generator=rng(1))
    assert made.weight.count == 1
    assert torch.equal(made(features, torch.tensor([0, 0, 0])), made(features, torch.tensor([2, 1, 0])))


def test_a_head_that_grows_keeps_its_first_outputs() -> None:
    made = heads(2, 4)
    before = made.weight.data[0, :2].clone()
    made.ensure(0, 6, generator=rng(9))
    assert torch.equal(made.weight.data[0, :2], before)
    assert made.weight.data[0, 2:6].any(1).all()
    assert made.classes == [6, 4]
    assert made(torch.zeros(2, 6), torch.tensor([0, 1])).isfinite().tolist() == [[True] * 6, [True] * 4 + [False] * 2]


def test_heads_are_drawn_alike_whatever_the_capacity() -> None:
    small, large = heads(2, 3, 2, 4, 1, capacity=1), heads(2, 3, 2, 4, 1, capacity=64)
    for task, n in enumerate((2, 3, 2, 4, 1)):
        assert torch.equal(small.weight.data[task, :n], large.weight.data[task, :n])
        assert torch.equal(small.bias.data[task, :n], large.bias.data[task, :n])


def test_outputs_that_do_not_exist_get_no_gradient() -> None:
    made = heads(2, 3, capacity=8)
    logits = made(torch.randn(4, 6, generator=rng(2)), torch.tensor([0, 0, 1, 1]))
    torch.nn.functional.cross_entropy(logits, torch.tensor([0, 1, 2, 0])).backward()
    gradient = made.weight.data.grad
    assert gradient is not None
    assert gradient[0, :2].any()
    assert not gradient[0, 2:].any()
    assert not gradient[2:].any()
