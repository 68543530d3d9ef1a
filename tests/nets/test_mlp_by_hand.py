"""The MLP's gradients by hand are those that autograd finds through the network itself."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from scale_cl.learners import Er, Scale
from scale_cl.nets import ContinualNet
from scale_cl.nets.custom_backbone import CustomBackbone
from scale_cl.nets.mlp_by_hand import MlpByHand
from tests.learners.tiny import DOMAIN, SPLIT, batch, teach

TASK = torch.tensor([2, 0, 0, 1, 2])


def net_of(kind: type[Er | Scale]) -> ContinualNet:
    """A network that has learned a little, in float64."""
    return teach(kind(DOMAIN)).net.double()


def inputs() -> Tensor:
    return batch(DOMAIN, len(TASK))[0].double() / 255


def weights_of(*outputs: Tensor) -> list[Tensor]:
    """The gradient at each output of some loss or other."""
    generator = torch.Generator().manual_seed(5)
    return [torch.randn(o.shape, generator=generator, dtype=o.dtype) for o in outputs]


def moved(net: ContinualNet, before: list[Tensor], rate: float) -> list[Tensor]:
    """The gradients that a step of SGD has followed."""
    return [(old - p.detach()) / rate for p, old in zip(net.base_parameters().values(), before, strict=True)]


def test_forward_and_step_without_film() -> None:
    net = net_of(Er)
    _, features, logits = net(inputs(), TASK)
    (at_logits,) = weights_of(logits)
    parameters = list(net.base_parameters().values())
    expected = torch.autograd.grad(logits, parameters, at_logits)
    before = [p.detach().clone() for p in parameters]
    mlp = MlpByHand(net)
    passed = mlp.forward(inputs())
    torch.testing.assert_close(passed.logits, logits.detach())
    torch.testing.assert_close(passed.features, features.detach())
    mlp.descend(passed, 0.5, at_logits)
    for one, other in zip(moved(net, before, 0.5), expected, strict=True):
        torch.testing.assert_close(one, other)


def test_forward_and_step_with_film_and_from_the_common_features() -> None:
    net = net_of(Scale)
    assert net.generator is not None
    films = torch.stack([torch.stack(pair, 1) for pair in net.generator.films()], 1)  # [tasks, sites, 2, width]
    films = films.detach().index_select(0, TASK).requires_grad_()
    pairs = [(films[:, site, 0], films[:, site, 1]) for site in range(2)]
    common, _, logits = net(inputs(), torch.arange(len(TASK)), films=pairs)
    at_common, at_logits = weights_of(common, logits)
    parameters = list(net.base_parameters().values())
    *expected, expected_films = torch.autograd.grad([common, logits], [*parameters, films], [at_common, at_logits])
    before = [p.detach().clone() for p in parameters]
    mlp = MlpByHand(net)
    passed = mlp.forward(inputs(), films.detach())
    torch.testing.assert_close(passed.common, common.detach())
    torch.testing.assert_close(passed.logits, logits.detach())
    torch.testing.assert_close(mlp.film_gradients(passed, at_logits, at_common), expected_films)
    mlp.descend(passed, 0.5, at_logits, at_common)
    for one, other in zip(moved(net, before, 0.5), expected, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: Er(DOMAIN), True),
        (lambda: Er(SPLIT), False),  # a head a task
        (lambda: Er(DOMAIN, backbone=CustomBackbone(torch.nn.Flatten)), False),
    ],
    ids=["one head", "a head a task", "a backbone of one's own"],
)
def test_it_applies_to_the_mlp_with_one_head_only(make: Callable[[], Er], expected: bool) -> None:
    assert MlpByHand.applies(make().net) == expected
