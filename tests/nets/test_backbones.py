"""The two backbones: shapes, sizes, initial values."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import nn

from scale_cl.nets import MLP, Backbone, ReducedResNet18
from scale_cl.nets.backbones import unmodulated


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_the_mlp_is_784_256_256_xavier_with_zero_bias() -> None:
    mlp = MLP(784, generator=rng())
    assert [tuple(p.shape) for p in mlp.parameters()] == [(256, 784), (256,), (256, 256), (256,)]
    for name, p in mlp.named_parameters():
        bound = math.sqrt(6 / sum(p.shape)) if p.dim() == 2 else 0.0
        assert 0.99 * bound <= float(p.detach().abs().max()) <= bound, name


def test_the_resnet_has_20_40_80_160_channels_in_four_stages_of_two_blocks() -> None:
    net = ReducedResNet18(generator=rng())
    assert [net.blocks[i].conv2.out_channels for i in range(8)] == [20, 20, 40, 40, 80, 80, 160, 160]  # type: ignore[union-attr]
    # convolutions: 3*20*9, 4*(20*20*9), then 3*n*n*9 + (n/2)*n*9 + (n/2)*n for each wider stage; two numbers a norm
    convolutions = 540 + 4 * 3600 + sum(27 * n * n + 5 * n * n for n in (40, 80, 160))
    norms = 2 * (20 + 4 * 20 + 5 * (40 + 80 + 160))
    assert sum(p.numel() for p in net.parameters()) == convolutions + norms


@pytest.mark.parametrize(("size", "last"), [(32, 2), (84, 6), (17, 2), (8, 1)])
def test_images_of_any_size_end_in_160_pooled_features(size: int, last: int) -> None:
    net = ReducedResNet18(generator=rng()).eval()
    h = net.stem(torch.rand(2, 3, size, size, generator=rng()))
    assert h.shape == (2, 160, last, last)
    assert (h < 0).any(), "no relu after the residual sum"
    common, features = net.top(h, unmodulated)
    torch.testing.assert_close(common, h.clamp(min=0).mean((2, 3)))
    assert torch.equal(common, features), "without a generator the features are relu(h), not doubled"


@pytest.mark.parametrize("kind", [partial(MLP, 12), ReducedResNet18], ids=["mlp", "resnet"])
def test_weights_follow_the_generator_and_nothing_else(kind: Callable[..., Backbone]) -> None:
    def weights(seed: int, world: int) -> nn.Module:
        torch.manual_seed(world)
        return kind(generator=rng(seed))

    one, same, other = weights(0, 1), weights(0, 2), weights(1, 1)
    assert all(torch.equal(p, q) for p, q in zip(one.parameters(), same.parameters(), strict=True))
    assert not all(torch.equal(p, q) for p, q in zip(one.parameters(), other.parameters(), strict=True))


def test_pooling_follows_the_modulation() -> None:
    net = ReducedResNet18(generator=rng())
    h = torch.randn(2, 160, 2, 2, generator=rng())
    _, features = net.top(h, lambda _site, h, _common: h.square())
    torch.testing.assert_close(features, h.square().mean((2, 3)))
