"""What the tests share that run on the CPU always, and on a GPU where there is one.

They need torch, numpy, safetensors and pytest, and no fixture of other files:

    PYTHONPATH=src:. python3 -m pytest --noconftest -p no:cacheprovider tests/training/test_cuda_*.py
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Iterator
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when CUDA starts; `deterministic` needs it

import pytest
import torch
from torch import Tensor

from scale_cl import streams
from scale_cl.learners import Compute, Learner, Traits, registry
from scale_cl.streams import InputSpec, Stream
from tests.learners.tiny import quick

DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")),
]
LEARNERS = tuple(n for n in registry.names() if registry.entry(n).kind.traits != Traits())  # that keep something


@pytest.fixture
def as_found() -> Iterator[None]:
    """Settings of the whole process are as they were, afterwards."""
    backends: Any = torch.backends
    conv, matmul, cudnn = backends.cudnn.conv, backends.cuda.matmul, backends.cudnn
    before = conv.fp32_precision, matmul.fp32_precision, cudnn.deterministic, torch.get_num_threads()
    yield
    torch.use_deterministic_algorithms(False)
    conv.fp32_precision, matmul.fp32_precision, cudnn.deterministic, threads = before
    torch.set_num_threads(threads)


def digits(seed: int = 0, tasks: int = 2, train: int = 30, test: int = 100) -> Stream:
    """Permuted digits of scikit-learn; where that is not installed, patterns that look alike to a network."""
    if importlib.util.find_spec("sklearn") is not None:
        arrays = streams.load_arrays("digits")
        return streams.permuted(arrays, tasks=tasks, train=train, test=test, seed=seed, name="digits")
    return _patterns((1, 8, 8), 10, tasks, train, test, "domain")


def images(tasks: int = 2, train: int = 30, test: int = 100) -> Stream:
    """Small colour images of two kinds, for the ResNet."""
    return _patterns((3, 16, 16), 2, tasks, train, test, "task")


def _patterns(shape: tuple[int, ...], classes: int, tasks: int, train: int, test: int, scenario: Any) -> Stream:
    draw = torch.Generator().manual_seed(0)
    parts = []
    for _ in range(tasks):
        y = torch.arange(train + test) % classes
        kinds = torch.randint(0, 200, (classes, *shape), generator=draw)
        x = (kinds[y] + torch.randint(0, 56, (len(y), *shape), generator=draw)).to(torch.uint8)
        parts.append((x[:train], y[:train], x[train:], y[train:]))
    return streams.from_arrays(parts, scenario=scenario, name="patterns")


STREAMS: dict[str, Callable[[], Stream]] = {"digits": digits, "images": images}


def make(
    name: str, spec: InputSpec, device: str, compute: Compute | None = None, *, seed: int = 0, **values: Any
) -> Learner:
    """A learner with the paper's settings for such inputs, and those of `values` that it has."""
    kind = registry.config_class(name)
    known = quick(name) | {k: v for k, v in values.items() if k in kind.__dataclass_fields__}
    stream = "scifar10" if len(spec.shape) == 3 and spec.shape[0] == 3 else "digits"
    settings = {**registry.preset_settings(name, stream), **known}
    how = compute or Compute("fp32", capture=device != "cpu")
    return registry.make(name, spec, kind(**settings), seed=seed, device=device, compute=how)


def samples(spec: InputSpec, n: int, classes: int, seed: int) -> tuple[Tensor, Tensor]:
    """Random samples of the learner's kind, the same for every device."""
    draw = torch.Generator().manual_seed(seed)
    y = torch.randint(0, classes, (n,), generator=draw)
    if spec.pixel_max is None:
        return torch.randn(n, *spec.shape, generator=draw), y
    return torch.randint(0, 256, (n, *spec.shape), generator=draw, dtype=torch.uint8), y
