"""The fused kernels against torch's batch norm in float64; without a GPU their CUDA source runs on the CPU."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from scale_cl.nets.kernels import norm as module
from scale_cl.nets.kernels.norm import Then, fused_norm, layout, programs, usable
from tests.nets.emulated import Kernels, emulated

gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
LARGE = [(74, 20, 32), (10, 20, 16), (74, 40, 8), (74, 80, 4), (74, 160, 2), (3, 7, 5), (1, 513, 3), (20, 20, 84)]
SMALL = [(6, 20, 7), (2, 160, 2), (3, 7, 5)]
WHAT = ["nothing", "relu", "relu-pool", "shortcut"]


@pytest.fixture(scope="module")
def on_cpu(tmp_path_factory: pytest.TempPathFactory) -> Kernels:
    return emulated((*programs(1), *programs(4)), tmp_path_factory.mktemp("kernels"))


def test_tensors_on_the_cpu_are_left_to_torch() -> None:
    assert not usable(torch.zeros(2, 3, 4, 4).contiguous(memory_format=torch.channels_last))


@pytest.mark.parametrize("few", [0, 6144])  # rows up to which one kernel does it
@pytest.mark.parametrize("what", WHAT)
@pytest.mark.parametrize("shape", SMALL)
def test_the_source_run_on_a_cpu_gives_what_torch_gives(
    on_cpu: Kernels, shape: tuple[int, int, int], what: str, few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch, channels, size = shape
    if (what == "relu-pool" and channels % 4) or (few and (what == "relu-pool" or channels % 4)):
        pytest.skip("there is no such kernel")
    monkeypatch.setattr(module, "kernels", lambda *_: on_cpu)
    monkeypatch.setattr(module, "_BLOCKS", 2)
    monkeypatch.setattr(module, "_MOST_THREADS", 32)
    monkeypatch.setattr(module, "_FEW", few)
    layout.cache_clear()
    try:
        _check(batch, channels, size, what, (1, 1, batch - 2) if batch > 2 else (), "cpu")
    finally:
        layout.cache_clear()


@gpu
@pytest.mark.parametrize("what", WHAT)
@pytest.mark.parametrize(("batch", "channels", "size"), LARGE)
def test_values_gradients_and_running_statistics_are_those_of_torch(
    batch: int, channels: int, size: int, what: str
) -> None:
    if what == "relu-pool" and channels % 4:
        pytest.skip("pools channels in fours")
    for parts in ((), (batch - 1, 1), (batch // 2, batch - batch // 2))[: 3 if batch > 1 else 1]:
        _check(batch, channels, size, what, parts, "cuda")


@gpu
def test_the_same_input_gives_the_same_bits() -> None:
    x = torch.randn(74, 20, 16, 16, device="cuda").contiguous(memory_format=torch.channels_last)
    ones, zeros = torch.ones(20, device="cuda"), torch.zeros(20, device="cuda")
    first, second = (
        fused_norm(x, ones, zeros, (zeros.clone(), ones.clone()), momentum=0.1, eps=1e-5, then="relu") for _ in "ab"
    )
    assert torch.equal(first, second)


def test_a_part_without_variance_is_not_for_the_kernels() -> None:
    meta = torch.empty(3, 20, 1, 1, device="meta")
    assert not usable(meta, (2, 1))


def _check(batch: int, channels: int, size: int, what: str, parts: tuple[int, ...], device: str) -> None:
    torch.manual_seed(0)
    last = torch.channels_last
    x = (2 * torch.randn(batch, channels, size, size + 1, device=device) + 3).contiguous(memory_format=last)
    weight, bias, mean = torch.randn(3, channels, device=device).unbind()
    var, shortcut = torch.rand(channels, device=device), torch.randn_like(x)
    given = [t.clone().requires_grad_() for t in (x, weight, bias, shortcut)]
    wanted = [t.double().requires_grad_() for t in (x, weight, bias, shortcut)]
    running, wanted_running = (mean.clone(), var.clone()), (mean.double(), var.double())
    adds = what == "shortcut"
    then: Then = "nothing" if adds else what  # type: ignore[assignment]
    added = given[3] if adds else None
    y = fused_norm(
        given[0], given[1], given[2], running, momentum=0.1, eps=1e-5, parts=parts, shortcut=added, then=then
    )
    pieces = wanted[0].split_with_sizes(parts or (batch,))
    z = torch.cat([F.batch_norm(p, *wanted_running, wanted[1], wanted[2], True, 0.1, 1e-5) for p in pieces])
    z = z + wanted[3] if adds else z
    z = z if then == "nothing" else torch.relu(z) if then == "relu-pool" else z * (y.detach() > 0)
    z = F.max_pool2d(z, 3, 2, 1) if then == "relu-pool" else z
    used = 4 if adds else 3
    g = torch.randn_like(y)
    gradients = torch.autograd.grad(y, given[:used], g)
    wanted_gradients = torch.autograd.grad(z, wanted[:used], g.double())
    for ours, theirs in zip((y, *gradients, *running), (z, *wanted_gradients, *wanted_running), strict=True):
        assert _relative_distance(ours, theirs) < 1e-5
    with torch.no_grad():  # nothing is kept for a gradient then
        again = fused_norm(
            given[0], given[1], given[2], running, momentum=0.1, eps=1e-5, parts=parts, shortcut=added, then=then
        )
    assert torch.equal(again, y)


def _relative_distance(ours: Tensor, theirs: Tensor) -> float:
    return float((ours.detach().double() - theirs.detach()).norm() / theirs.detach().norm())
