"""From stored pixels or features to what a backbone sees: units, standardisation, augmentation."""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Augmentation = Literal["none", "flip", "crop-flip"]
LARGEST_NUMBER = 1e19  # the largest raw value of an input: the square of a larger one is no 32-bit float any more
_TIMES_ORDINARY = 1e6  # and the largest in multiples of what is ordinary


class Inputs(nn.Module):
    """Pixels to [0, 1]; optionally standardised by the running mean and deviation of what has been seen."""

    count: Tensor
    mean: Tensor
    squares: Tensor
    _unit: Tensor

    def __init__(
        self,
        shape: tuple[int, ...],
        pixel_max: float | None,
        *,
        standardise: bool = False,
        augment: Augmentation = "none",
        channels_last: bool = False,
    ) -> None:
        """Statistics are kept per channel of an image and per feature of a vector."""
        super().__init__()
        self.pixel_max, self.standardise = pixel_max, standardise
        self.augment: Augmentation = augment if len(shape) == 3 else "none"
        self.channels_last = channels_last and len(shape) == 3
        self._over = (0, 2, 3) if len(shape) == 3 else (0,)
        self._wide = (1, shape[0], 1, 1) if len(shape) == 3 else (1, shape[0])
        self._samples = shape[1] * shape[2] if len(shape) == 3 else 1  # values a statistic gets from one sample
        self.register_buffer("count", torch.zeros((), dtype=torch.float64), persistent=standardise)
        self.register_buffer("mean", torch.zeros(shape[0], dtype=torch.float64), persistent=standardise)
        self.register_buffer("squares", torch.zeros(shape[0], dtype=torch.float64), persistent=standardise)
        self.register_buffer("_unit", torch.ones(()), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """[B, *shape] uint8 or float -> the same shape, floating point."""
        units = self._in_units(x)
        if self.standardise:
            mean, deviation = self.statistics()
            units = (units - mean.to(units)) / deviation.to(units)
        return units.contiguous(memory_format=torch.channels_last) if self.channels_last else units

    def statistics(self) -> tuple[Tensor, Tensor]:
        """Running mean and deviation, float64, as wide as a batch of one; infinite deviation of what never varied."""
        deviation = (self.squares / self.count.clamp(min=1)).sqrt()
        varies = deviation > (1e-6 * self.mean.abs()).clamp(min=1e-30)
        deviation = torch.where(varies, deviation, torch.full_like(deviation, torch.inf))  # 0 for what never varied
        return self.mean.view(self._wide), deviation.view(self._wide)

    def seen(self, x: Tensor) -> None:
        """Take a batch into the running statistics (Chan's parallel form of Welford's algorithm)."""
        if not self.standardise:
            return
        values = self._in_units(x).double()
        n = len(x) * self._samples
        mean = values.mean(self._over)
        squares = (values - mean.view(self._wide)).square().sum(self._over)
        total = self.count + n
        shift = mean - self.mean
        self.squares += squares + shift.square() * (self.count * n / total)
        self.mean += shift * (n / total)
        self.count += n

    def extent(self, x: Tensor) -> Tensor | None:
        """[3]: the largest absolute value of a batch, the largest that it may have, and the sample that holds it.

        NaN counts as the largest, pixels need no look (None), and the host is not asked. What is ordinary is 1; where
        inputs are standardised, it is the largest root mean square of a feature in the batches seen so far.
        """
        if self.pixel_max is not None:
            return None
        size, sample = x.flatten(1).abs().amax(1).max(0)
        if not self.standardise:
            return torch.stack([size, torch.full_like(size, _TIMES_ORDINARY), sample.to(size)])
        ordinary = (self.mean.square() + self.squares / self.count.clamp(min=1)).amax().sqrt()
        limit = torch.where(ordinary > 0, _TIMES_ORDINARY * ordinary, torch.inf).clamp(max=LARGEST_NUMBER)
        return torch.stack([size, limit.to(size), sample.to(size)])

    def refuses(self, x: Tensor) -> bool:
        """Whether a batch holds a value that is too large; the host waits for the answer."""
        extent = self.extent(x.to(self._unit.device))
        return extent is not None and not bool(extent[0] <= extent[1])

    def augmented(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """Random horizontal flips, and crops after padding by four, each sample its own."""
        if self.augment == "none":
            return x
        if self.augment == "crop-flip":
            height, width = x.shape[2:]
            top, left = torch.randint(0, 9, (2, len(x)), generator=generator, device=x.device)
            rows = top[:, None] + torch.arange(height, device=x.device)
            columns = left[:, None] + torch.arange(width, device=x.device)
            sample = torch.arange(len(x), device=x.device)[:, None, None]
            x = F.pad(x, (4, 4, 4, 4))[sample, :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)
        flip = torch.rand(len(x), generator=generator, device=x.device) < 0.5
        return torch.where(flip[:, None, None, None], x.flip(3), x)

    def _in_units(self, x: Tensor) -> Tensor:
        if self.pixel_max is None or self._unit.dtype != torch.float32:
            x = x.to(self._unit.dtype)
        return x if self.pixel_max is None else x / self.pixel_max
