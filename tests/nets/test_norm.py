"""Batch norm over parts of a batch is what a forward for each part would be."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from scale_cl.nets.kernels.norm import BatchNorm


def sample(n: int, size: int = 3) -> Tensor:
    return torch.randn(n, 4, size, size, generator=torch.Generator().manual_seed(n)) * 2 + 1


def test_one_part_is_torchs_own_batch_norm() -> None:
    own, plain = BatchNorm(4), nn.BatchNorm2d(4)
    for n in (5, 3):
        torch.testing.assert_close(own(sample(n)), plain(sample(n)))
    own.eval()
    plain.eval()
    torch.testing.assert_close(own(sample(6), (2, 4)), plain(sample(6)))
    torch.testing.assert_close(own.running_mean, plain.running_mean)
    torch.testing.assert_close(own.running_var, plain.running_var)


def test_parts_have_statistics_of_their_own_in_order() -> None:
    own, plain = BatchNorm(4), nn.BatchNorm2d(4)
    x = sample(9)
    x[4:] *= 3
    torch.testing.assert_close(own(x, (4, 5)), torch.cat([plain(x[:4]), plain(x[4:])]))
    torch.testing.assert_close(own.running_mean, plain.running_mean)
    torch.testing.assert_close(own.running_var, plain.running_var)


def test_a_part_of_one_value_a_channel_uses_the_running_statistics_and_leaves_them() -> None:
    own = BatchNorm(4)
    own(sample(5))
    before = own.running_var.clone()
    single = sample(1, size=1)
    out = own(single)
    assert torch.equal(own.running_var, before)
    torch.testing.assert_close(out, own.eval()(single))
