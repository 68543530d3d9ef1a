"""Samples as Avalanche's data sets give them, to the tensors that learners take."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from scale_cl.errors import InputError

_GREY = ("1", "L", "LA")


class Collate:
    """A data set's own way to make a batch of samples, after PIL images have become pixels."""

    def __init__(self, collate: Callable[[list[Any]], Any]) -> None:
        """`collate` is what the data set has; it gets tensors where there were PIL images."""
        self.collate = collate

    def __call__(self, samples: Sequence[Sequence[Any]]) -> Any:
        """Samples (x, y, ..., task label) as one batch."""
        if not isinstance(samples[0][0], Image.Image):
            return self.collate(list(samples))
        pixels = [pixels_of(sample[0]) for sample in samples]
        shapes = sorted({tuple(image.shape) for image in pixels})
        if len(shapes) > 1:
            raise InputError(
                f"images of shapes {list(shapes[0])} and {list(shapes[1])} are in one batch; "
                "give the benchmark a transform that makes them equal"
            )
        return self.collate([(image, *sample[1:]) for image, sample in zip(pixels, samples, strict=True)])


def pixels_of(image: Image.Image) -> Tensor:
    """A PIL image as uint8 [1, H, W] if it is grey, else [3, H, W]."""
    if image.mode.startswith(("I", "F")):
        raise InputError(
            f"an image has pixels of more than 8 bits (mode {image.mode}); give 8 bits a channel, or a tensor"
        )
    pixels = np.array(image.convert("L" if image.mode in _GREY else "RGB"), dtype=np.uint8)
    return torch.from_numpy(pixels.reshape(image.height, image.width, -1)).permute(2, 0, 1).contiguous()


def as_inputs(x: Any) -> Tensor:
    """A batch as [n, f] or [n, c, h, w], uint8 or float32; images without a channel get one."""
    if not isinstance(x, Tensor):
        raise InputError(f"a batch is a {type(x).__name__}; give tensors, arrays or PIL images")
    if x.dtype != torch.uint8 and not x.is_floating_point():
        raise InputError(f"a batch is of {x.dtype}; give uint8 pixels or floats")
    if x.ndim not in (2, 3, 4):
        raise InputError(f"a batch has shape {list(x.shape)}; give features [n, f] or images [n, h, w] or [n, c, h, w]")
    raw: Tensor = x if x.dtype == torch.uint8 else x.float()
    return raw.unsqueeze(1) if raw.ndim == 3 else raw


def as_labels(y: Any, samples: int) -> Tensor:
    """Class or task labels as [n] int64, none below 0."""
    if not isinstance(y, Tensor) or y.is_floating_point() or y.shape != (samples,):
        found = f"{y.dtype} of shape {list(y.shape)}" if isinstance(y, Tensor) else type(y).__name__
        raise InputError(f"labels are {found}; give {samples} whole numbers")
    labels: Tensor = y.long()
    if int(labels.min()) < 0:
        raise InputError(f"label {int(labels.min())} is below 0; labels count up from 0")
    return labels
