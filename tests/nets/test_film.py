"""FiLM by hand, and the parameter generator that feeds it."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from scale_cl.nets import MLP, Backbone, ParameterGenerator, ReducedResNet18
from scale_cl.nets.film import film


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def layer(made: ParameterGenerator, site: int) -> nn.Linear:
    found = made.layers[site]
    assert isinstance(found, nn.Linear)
    return found


def test_branches_are_activated_before_the_sum() -> None:
    h = torch.tensor([[1.0, -2.0, 3.0]])
    scale, shift = torch.tensor([[0.5, -1.0, -1.0]]), torch.tensor([[0.25, 0.5, 1.0]])
    # private: 0.75, 2.5, -2; common: 1, -2, 3
    assert film(h, scale, shift, common=h.relu()).tolist() == [[1.75, 2.5, 3.0]]


def test_the_printed_form_is_activated_after_the_sum() -> None:
    h = torch.tensor([[1.0, -2.0, 3.0]])
    scale, shift = torch.tensor([[0.5, -1.0, -1.0]]), torch.tensor([[0.25, 0.5, 1.0]])
    assert film(h, scale, shift, common=h.relu(), form="sum").tolist() == [[1.75, 0.5, 1.0]]


def test_a_channel_of_an_image_is_scaled_everywhere_alike() -> None:
    h = torch.tensor([[[[1.0, -1.0]], [[2.0, 4.0]]]])  # [1, 2, 1, 2]
    out = film(h, torch.tensor([[2.0, -1.0]]), torch.tensor([[1.0, 3.0]]), common=h.relu())
    assert out.tolist() == [[[[4.0, 0.0]], [[3.0, 4.0]]]]


def test_scale_and_shift_are_the_halves_of_one_layer_divided_by_their_norms() -> None:
    made = ParameterGenerator(MLP(4, (2, 2), generator=rng()), generator=rng())
    made.add_task(generator=rng(1))
    with torch.no_grad():
        layer(made, 0).weight.zero_()
        layer(made, 0).bias.copy_(torch.tensor([3.0, 4.0, 0.0, -2.0]))
    h = torch.tensor([[10.0, 10.0]])
    out = made.modulation(torch.tensor([0]))(0, h, h.relu())
    # relu(0.6 * 10 + 0) + 10 and relu(0.8 * 10 - 1) + 10
    torch.testing.assert_close(out, torch.tensor([[16.0, 17.0]]))


def test_each_sample_is_modulated_by_its_own_task() -> None:
    made = ParameterGenerator(MLP(4, (3, 5), generator=rng()), generator=rng())
    for _ in range(3):
        made.add_task(generator=rng(7))
        rng_of_task = made.embedding.count
        made.embedding.data.data[rng_of_task - 1] *= rng_of_task
    h = torch.randn(6, 5, generator=rng(2))
    tasks = torch.tensor([2, 0, 1, 1, 0, 2])
    together = made.modulation(tasks)(1, h, h.relu())
    alone = torch.cat(
        [made.modulation(t[None])(1, one[None], one[None].relu()) for t, one in zip(tasks, h, strict=True)]
    )
    torch.testing.assert_close(together, alone)


@pytest.mark.parametrize(("detached", "expected"), [(True, 0.2), (False, 0.0)])
def test_norms_are_constants_to_the_gradient_only_where_they_are_detached(detached: bool, expected: float) -> None:
    made = ParameterGenerator(MLP(4, (1,), generator=rng()), generator=rng())
    made.detach_norms = detached
    made.add_task(generator=rng())
    with torch.no_grad():
        layer(made, 0).weight.zero_()
        layer(made, 0).bias.copy_(torch.tensor([5.0, 1.0]))
    out = made.modulation(torch.tensor([0]))(0, torch.ones(1, 1), torch.ones(1, 1))
    out.sum().backward()
    # relu(5/|5| * 1 + 1): along a vector of one element, x/|x| is flat unless |x| is held
    gradient = layer(made, 0).bias.grad
    assert gradient is not None
    assert float(gradient[0]) == pytest.approx(expected)


def test_the_mlp_has_a_film_at_each_hidden_layer_and_the_resnet_at_its_last_stage() -> None:
    mlp = ParameterGenerator(MLP(784, generator=rng()), generator=rng())
    assert [tuple(layer(mlp, site).weight.shape) for site in range(len(mlp.layers))] == [(512, 16), (512, 16)]
    resnet = ParameterGenerator(ReducedResNet18(generator=rng()), generator=rng())
    assert [tuple(layer(resnet, site).weight.shape) for site in range(len(resnet.layers))] == [(320, 64)]
    assert (mlp.detach_norms, resnet.detach_norms) == (False, True)


def test_embedding_rows_are_standard_normal_also_when_added_later() -> None:
    made = ParameterGenerator(ReducedResNet18(generator=rng()), generator=rng(), capacity=1)
    g = rng(3)
    for _ in range(100):
        made.add_task(generator=g)
    early, late = made.embedding.data.detach()[:100].split(50)
    for rows in (early, late):
        n = rows.numel()
        assert abs(float(rows.mean())) < 4 / math.sqrt(n)
        assert abs(float(rows.var()) - 1) < 4 * math.sqrt(2 / n)


@pytest.mark.parametrize(
    ("backbone", "bound", "zero_bias"),
    [(MLP(9, generator=rng()), math.sqrt(6 / (16 + 512)), True), (ReducedResNet18(generator=rng()), 1 / 8, False)],
    ids=["xavier with the mlp", "torch's own with the resnet"],
)
def test_film_layers_are_drawn_as_the_backbone_is(backbone: Backbone, bound: float, zero_bias: bool) -> None:
    drawn = layer(ParameterGenerator(backbone, generator=rng(5)), 0)
    assert 0.99 * bound < float(drawn.weight.detach().abs().max()) <= bound
    assert bool(drawn.bias.any()) is not zero_bias
