"""The discriminator: outputs appear with tasks."""

from __future__ import annotations

import torch

from scale_cl.nets import Discriminator


def made(tasks: int, capacity: int = 32) -> Discriminator:
    g = torch.Generator().manual_seed(0)
    discriminator = Discriminator(5, generator=g, capacity=capacity)
    for _ in range(tasks):
        discriminator.add_task(generator=g)
    return discriminator


def test_there_is_one_output_for_noise_and_one_for_each_task() -> None:
    for tasks in (0, 1, 40):
        discriminator = made(tasks)
        assert discriminator.outputs == tasks + 1
        told = discriminator(torch.randn(3, 5))
        assert told[:, : tasks + 1].isfinite().all()
        assert (told[:, tasks + 1 :] == float("-inf")).all()


def test_it_is_two_linear_layers_with_a_relu_between() -> None:
    discriminator, x = made(3), torch.randn(4, 5, generator=torch.Generator().manual_seed(1))
    hidden = (x @ discriminator.hidden.weight.T + discriminator.hidden.bias).clamp(min=0)
    expected = hidden @ discriminator.weight.data[:4].T + discriminator.bias.data[:4]
    torch.testing.assert_close(discriminator(x)[:, :4], expected)


def test_capacity_changes_neither_weights_nor_outputs() -> None:
    small, large = made(9, capacity=1), made(9, capacity=100)
    x = torch.randn(4, 5, generator=torch.Generator().manual_seed(1))
    assert torch.equal(small.weight.data[:10], large.weight.data[:10])
    torch.testing.assert_close(small(x)[:, :10], large(x)[:, :10])


def test_a_state_restores_the_number_of_outputs() -> None:
    full, other = made(5), made(40, capacity=2)
    other.load_state_dict(full.state_dict())
    other.refresh()
    assert other.outputs == 6
    x = torch.randn(4, 5, generator=torch.Generator().manual_seed(1))
    told, expected = other(x), full(x)
    torch.testing.assert_close(told[:, :6], expected[:, :6])
    assert (told[:, 6:] == float("-inf")).all()
