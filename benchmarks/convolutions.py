"""Microseconds of each convolution of the reduced ResNet-18 on a GPU: torch's kernels and ours, forward and gradients.

`python benchmarks/convolutions.py --batch 74 --size 32 --out FILE.json`. Each figure is the best of three replays of a
recorded graph of 30 calls; `error` is the largest relative distance of our results from float64.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from scale_cl.nets.kernels.convolution import _launch, plan

CALLS = 30
Shape = tuple[int, int, int, int, int]  # height and width, channels in, channels out, kernel, stride


def shapes(size: int) -> list[Shape]:
    """The convolutions that differ, for images of so many pixels a side."""
    found: list[Shape] = [(size, 3, 20, 3, 1)]
    size = (size + 1) // 2
    found.append((size, 20, 20, 3, 1))
    for inside in (20, 40, 80):
        found += [(size, inside, 2 * inside, 3, 2), (size, inside, 2 * inside, 1, 2)]
        size = (size + 1) // 2
        found.append((size, 2 * inside, 2 * inside, 3, 1))
    return found


def microseconds(call: Callable[[], object]) -> float:
    """Of one call, recorded and replayed."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        call()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            for _ in range(CALLS):
                call()
    best = float("inf")
    for _ in range(4):  # the first one warms up
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        best = min(best, 1000 * begin.elapsed_time(end) / CALLS)
    return round(best, 1)


def measured(batch: int, shape: Shape) -> dict[str, Any]:
    """A row for one convolution."""
    size, inside, outside, kernel, stride = shape
    last, pad = torch.channels_last, kernel // 2
    x = torch.randn(batch, inside, size, size, device="cuda").contiguous(memory_format=last)
    weight = torch.randn(outside, inside, kernel, kernel, device="cuda") / (inside * kernel * kernel) ** 0.5
    weight = weight.contiguous(memory_format=last)
    how = plan(batch, size, size, inside, outside, kernel, stride)
    assert how is not None
    y = torch.empty(how.outside, device="cuda", memory_format=last)
    g, dx, dweight = torch.randn_like(y), torch.empty_like(x), torch.empty_like(weight)
    parts = dweight if how.add is None else weight.new_empty(how.parts * weight.numel())

    def gradient(of_input: bool) -> tuple[Tensor | None, ...]:
        mask = [of_input, not of_input, False]
        backward = torch.ops.aten.convolution_backward
        gradients: tuple[Tensor | None, ...] = backward(
            g, x, weight, None, [stride] * 2, [pad] * 2, [1, 1], False, [0, 0], 1, mask
        )
        return gradients

    def own_weights() -> None:
        _launch(how.weights, [x, g, parts])
        if how.add is not None:
            _launch(how.add, [parts, dweight])

    _launch(how.forward, [x, weight, y])
    own_weights()
    exact = F.conv2d(x.double(), weight.double(), stride=stride, padding=pad)
    row: dict[str, Any] = {"size": size, "in": inside, "out": outside, "kernel": kernel, "stride": stride}
    row["error"] = float((y - exact).norm() / exact.norm())
    row["forward"] = microseconds(lambda: F.conv2d(x, weight, stride=stride, padding=pad))
    row["forward_own"] = microseconds(lambda: _launch(how.forward, [x, weight, y]))
    if how.backward is not None:
        backward = how.backward
        row["input"] = microseconds(lambda: gradient(True))
        row["input_own"] = microseconds(lambda: _launch(backward, [g, weight, dx]))
    row["weights"], row["weights_own"] = microseconds(lambda: gradient(False)), microseconds(own_weights)
    return row


def main() -> None:
    """Measure all, print them and write them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=74)
    parser.add_argument("--size", type=int, default=32)
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    torch.backends.cudnn.conv.fp32_precision = "tf32"  # type: ignore[attr-defined]
    rows = [measured(asked.batch, shape) for shape in shapes(asked.size)]
    for row in rows:
        print(row)
    about = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "batch": asked.batch}
    asked.out.write_text(json.dumps({**about, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
