"""The fused kernels against torch's batch norm in float64; on a GPU only, as that is where they exist."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from scale_cl.nets.fused_norm import fused_norm, usable

gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
SHAPES = [(74, 20, 32), (10, 20, 16), (74, 40, 8), (74, 80, 4), (74, 160, 2), (3, 7, 5), (1, 513, 3)]


def test_tensors_on_the_cpu_are_left_to_torch() -> None:
    assert not usable(torch.zeros(2, 3, 4, 4).contiguous(memory_format=torch.channels_last))


@gpu
@pytest.mark.parametrize("what", ["plain", "activated", "with a shortcut"])
@pytest.mark.parametrize(("batch", "channels", "size"), SHAPES)
def test_values_gradients_and_running_statistics_are_those_of_torch(
    batch: int, channels: int, size: int, what: str
) -> None:
    torch.manual_seed(0)
    x = (2 * torch.randn(batch, channels, size, size, device="cuda") + 3).contiguous(memory_format=torch.channels_last)
    weight, bias, mean = torch.randn(3, channels, device="cuda").unbind()
    var, shortcut = torch.rand(channels, device="cuda"), torch.randn_like(x)
    given = [t.clone().requires_grad_() for t in (x, weight, bias, shortcut)]
    wanted = [t.double().requires_grad_() for t in (x, weight, bias, shortcut)]
    running, wanted_running = (mean.clone(), var.clone()), (mean.double(), var.double())
    assert usable(given[0])
    y = fused_norm(
        given[0],
        given[1],
        given[2],
        running,
        momentum=0.1,
        eps=1e-5,
        shortcut=given[3] if what == "with a shortcut" else None,
        activate=what == "activated",
    )
    z = F.batch_norm(wanted[0], *wanted_running, wanted[1], wanted[2], True, 0.1, 1e-5)
    z = z + wanted[3] if what == "with a shortcut" else z
    z = z * (y.detach() > 0) if what == "activated" else z
    parts = 4 if what == "with a shortcut" else 3
    g = torch.randn_like(y)
    gradients = torch.autograd.grad(y, given[:parts], g)
    wanted_gradients = torch.autograd.grad(z, wanted[:parts], g.double())
    for ours, theirs in zip((y, *gradients, *running), (z, *wanted_gradients, *wanted_running), strict=True):
        assert _relative_distance(ours, theirs) < 1e-5


@gpu
def test_the_same_input_gives_the_same_bits() -> None:
    x = torch.randn(74, 20, 16, 16, device="cuda").contiguous(memory_format=torch.channels_last)
    ones, zeros = torch.ones(20, device="cuda"), torch.zeros(20, device="cuda")
    first, second = (
        fused_norm(x, ones, zeros, (zeros.clone(), ones.clone()), momentum=0.1, eps=1e-5, activate=True) for _ in "ab"
    )
    assert torch.equal(first, second)


def _relative_distance(ours: Tensor, theirs: Tensor) -> float:
    return float((ours.double() - theirs).norm() / theirs.norm())
