"""Convolutions of our own: the CUDA source itself runs here, compiled for the CPU."""

from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from scale_cl.nets.kernels import convolution
from scale_cl.nets.kernels.convolution import NAMES, Convolution, plan, usable
from tests.nets.emulated import Kernels, emulated

# n, height, width, channels in, channels out, kernel, stride: every kernel, odd sizes, tiles that are not full
SHAPES = [
    (2, 9, 11, 20, 20, 3, 1),
    (3, 4, 5, 20, 20, 3, 1),
    (2, 14, 15, 20, 40, 3, 2),
    (2, 15, 14, 20, 40, 1, 2),
    (2, 7, 8, 40, 40, 3, 1),
    (1, 5, 5, 40, 80, 3, 2),
    (3, 11, 13, 40, 80, 1, 2),
    (4, 3, 3, 80, 40, 3, 1),
    (3, 2, 1, 160, 80, 3, 1),
    (3, 11, 13, 3, 20, 3, 1),
]

LARGE = [
    (74, 32, 32, 3, 20, 3, 1),
    (74, 16, 16, 20, 20, 3, 1),
    (74, 42, 42, 20, 20, 3, 1),
    (74, 8, 8, 40, 40, 3, 1),
    (74, 4, 4, 80, 160, 3, 2),
    (74, 11, 11, 80, 80, 3, 1),
    (74, 2, 2, 160, 160, 3, 1),
]


@pytest.fixture(scope="module")
def compiled_for_cpu(tmp_path_factory: pytest.TempPathFactory) -> Kernels:
    return emulated(convolution._programs(), tmp_path_factory.mktemp("kernels"))


@pytest.fixture
def on_cpu(compiled_for_cpu: Kernels, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The kernels run here; a tensor that they are to fill is NaN before."""
    monkeypatch.setattr(convolution, "kernels", lambda _: compiled_for_cpu)
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize(
    ("shape", "loads"),
    [
        *((shape, "many") for shape in SHAPES),
        *((shape, "large") for shape in SHAPES if shape[0] * shape[1] * shape[2] > 100 or shape[3] in (40, 80)),
    ],
)
@pytest.mark.usefixtures("on_cpu")
def test_the_kernels_give_the_convolution_and_its_gradients_in_tf32(
    shape: tuple[int, int, int, int, int, int, int], loads: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if loads == "large":  # the larger tiles, and a block with more chunks before it than stages
        monkeypatch.setattr(convolution, "_FEW", 0)
        monkeypatch.setattr(convolution, "_BLOCKS", 1)
    n, height, width, inside, outside, kernel, stride = shape
    how = plan.__wrapped__(*shape)
    assert how is not None
    torch.manual_seed(0)
    x, weight = (
        torch.randn(size).permute(0, 3, 1, 2)
        for size in ((n, height, width, inside), (outside, kernel, kernel, inside))
    )
    x.requires_grad_(how.backward is not None)
    weight.requires_grad_()
    exact_x, exact_weight = (_rounded(t.detach()).double().requires_grad_() for t in (x, weight))
    wanted = F.conv2d(exact_x, exact_weight, stride=stride, padding=kernel // 2)
    g = torch.randn(wanted.shape)
    used = slice(0 if how.backward is not None else 1, 2)
    theirs = torch.autograd.grad(wanted, [exact_x, exact_weight][used], _rounded(g).double())
    y: Tensor = convolution._Direct.apply(x, weight, how)  # type: ignore[no-untyped-call]
    ours = torch.autograd.grad(y, [x, weight][used], g)
    for mine, exact in zip((y, *ours), (wanted, *theirs), strict=True):
        assert float((mine - exact).detach().abs().max()) < 1e-4


def test_every_convolution_of_the_resnet_has_its_kernels() -> None:
    planned = [plan(74, 32, 32, 3, 20, 3, 1), *(plan(74, *shape) for shape in (*_resnet(16), *_resnet(42)))]
    assert all(planned)
    launches = [launch for p in planned if p is not None for launch in (p.forward, p.backward, p.weights, p.add)]
    kernels = {launch.kernel for launch in launches if launch is not None}
    assert kernels == set(NAMES)
    assert plan(74, 8, 8, 64, 64, 3, 1) is None


def test_many_pixels_go_to_the_kernels_of_larger_tiles() -> None:
    for size, ours in ((4, "few_80_40"), (11, "40_40")):
        how = plan(74, size, size, 80, 80, 3, 1)
        assert how is not None
        assert how.backward is not None
        assert (how.forward.kernel, how.backward.kernel) == (f"forward_{ours}", f"backward_{ours}")


@pytest.mark.parametrize(("parts", "pixels", "inside"), [(2, 96, 20), (9, 96, 20), (61, 96, 20), (395, 192, 3)])
@pytest.mark.usefixtures("on_cpu")
def test_any_number_of_parts_is_added_up(parts: int, pixels: int, inside: int) -> None:
    how = plan(parts * pixels, 1, 1, inside, 20, 3, 1)
    assert how is not None
    assert how.add is not None
    assert how.parts == parts
    torch.manual_seed(0)
    given, made = torch.randn(parts, 20 * 9 * inside), torch.full((20 * 9 * inside,), 7.0)
    convolution._launch(how.add, [given, made])
    assert float((made - given.double().sum(0)).abs().max()) < 1e-4


def test_the_weights_gradient_is_dealt_out_to_many_blocks_with_enough_to_do_each() -> None:
    for shape in (*_resnet(16), *_resnet(42)):
        how = plan(74, *shape)
        assert how is not None
        n, _, height, width = how.outside
        blocks = how.weights.grid[0] * how.weights.grid[1] * how.parts
        assert blocks <= 512
        assert how.parts == 1 or how.parts * 64 < n * height * width  # more than two chunks of 32 pixels each
        assert blocks > 192 or how.parts * 128 > n * height * width  # not many more than three, where blocks are few


def test_on_the_cpu_it_is_torchs_convolution() -> None:
    module = Convolution(20, 20, 3, padding=1, bias=False)
    torch.nn.init.normal_(module.weight)
    module.direct = True
    x = torch.randn(2, 20, 5, 5)
    assert not usable(x, module.weight)
    assert torch.equal(module(x), F.conv2d(x, module.weight, padding=1))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("shape", [*LARGE, *SHAPES])
def test_on_a_gpu_values_and_gradients_are_those_of_float64(shape: tuple[int, int, int, int, int, int, int]) -> None:
    n, height, width, inside, outside, kernel, stride = shape
    torch.backends.cudnn.conv.fp32_precision = "tf32"  # type: ignore[attr-defined]
    last = torch.channels_last
    module = Convolution(inside, outside, kernel, stride=stride, padding=kernel // 2, bias=False)
    torch.nn.init.normal_(module.weight, std=(inside * kernel * kernel) ** -0.5)
    module = module.cuda()
    module.weight.data = module.weight.data.contiguous(memory_format=last)
    module.direct = True
    x = torch.randn(n, inside, height, width, device="cuda").contiguous(memory_format=last)
    x.requires_grad_(inside != 3)
    assert usable(x, module.weight)
    y = module(x)
    exact_x, exact_weight = (_rounded(t.detach()).double().requires_grad_() for t in (x, module.weight))
    wanted = F.conv2d(exact_x, exact_weight, stride=stride, padding=kernel // 2)
    g = torch.randn_like(y)
    parts = slice(0 if inside != 3 else 1, 2)
    theirs = torch.autograd.grad(wanted, [exact_x, exact_weight][parts], _rounded(g).double())
    ours = torch.autograd.grad(y, [x, module.weight][parts], g, retain_graph=True)
    again = torch.autograd.grad(y, [x, module.weight][parts], g)
    for mine, exact in zip((y, *ours), (wanted, *theirs), strict=True):
        assert float((mine - exact).detach().abs().max()) < 1e-4 * float(exact.detach().abs().max() + 1)
    for once, twice in zip((y, *ours), (module(x), *again), strict=True):
        assert torch.equal(once, twice)  # to the bit


def _resnet(size: int) -> list[tuple[int, int, int, int, int, int]]:
    shapes = [(size, size, 20, 20, 3, 1)]
    for inside in (20, 40, 80):
        wide = 2 * inside
        shapes += [(size, size, inside, wide, 3, 2), (size, size, inside, wide, 1, 2)]
        size = (size + 1) // 2
        shapes += [(size, size, wide, wide, 3, 1)]
    return shapes


def _rounded(t: Tensor) -> Tensor:
    """To the nearest number of 10 bits after the leading one, as the kernels do."""
    return ((t.contiguous().view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32).view_as(t)
