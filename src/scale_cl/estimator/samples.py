"""Inputs as people have them: arrays, tensors, tables and loaders, to the tensors that learners take."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from scale_cl.errors import InputError

Layout = Literal["auto", "NHWC", "NCHW"]


class Batch(NamedTuple):
    """What a loader gives at once."""

    x: Any
    y: Any


def is_loader(x: Any) -> bool:
    """Whether `x` gives batches when it is iterated, as a DataLoader does, and is not itself an array."""
    arrays = hasattr(x, "__array__") or hasattr(x, "shape") or hasattr(x, "__array_interface__")
    return hasattr(x, "__iter__") and not arrays and not isinstance(x, list | tuple | str | bytes | dict)


def batches_of(loader: Any, *, labelled: bool) -> Iterator[Batch]:
    """The batches of a loader: (x, y) pairs, or x alone where labels are not needed."""
    for batch in loader:
        if isinstance(batch, dict):
            x, y = batch.get("x", batch.get("image")), batch.get("y", batch.get("label"))
        elif isinstance(batch, list | tuple):
            x, y = (batch[0], batch[1] if len(batch) > 1 else None) if batch else (None, None)
        else:
            x, y = batch, None
        if x is None or (labelled and y is None):
            raise InputError("a loader must give batches (X, y), or dicts with image and label or x and y")
        yield Batch(x, y)


def plain(x: Any) -> Any:
    """Tensors and lists of arrays as one numpy array; tables and everything else as they are."""
    if isinstance(x, list | tuple) and len(x) and isinstance(x[0], Tensor | np.ndarray) and x[0].ndim > 1:
        x = torch.stack(list(x)) if isinstance(x[0], Tensor) else np.stack(x)
    if isinstance(x, Tensor):
        x = x.detach().cpu()
        return (x.float() if x.dtype in (torch.bfloat16, torch.float16) else x).numpy()
    return x


def as_images(array: NDArray[Any], layout: Layout) -> NDArray[Any]:
    """Images [N, H, W], [N, H, W, C] or [N, C, H, W] as [N, C, H, W]: uint8 pixels, or finite float32 values."""
    if array.dtype.kind not in "uif":
        raise InputError(f"images are of {array.dtype}; give uint8 pixels or floats")
    if array.ndim == 3:
        array = array[:, None]
    elif channels_last(array.shape, layout):
        array = array.transpose(0, 3, 1, 2)
    if 0 in array.shape:
        raise InputError(f"images have shape {list(array.shape)}; at least one image, and one pixel in it, is needed")
    if array.dtype != np.uint8:
        array = array.astype(np.float32)
        if not np.isfinite(array).all():
            raise InputError("images hold NaN or infinity; they must be finite")
    return array


def channels_last(shape: tuple[int, ...], layout: Layout) -> bool:
    """Whether images of this shape have their channels last; the side that has 1, 3 or 4 of them, if that is clear."""
    if layout != "auto":
        if layout not in ("NHWC", "NCHW"):
            raise InputError(f"layout is {layout!r}; it must be 'auto', 'NHWC' or 'NCHW'")
        return layout == "NHWC"
    first, last = shape[1] in (1, 3, 4), shape[3] in (1, 3, 4)
    if first == last:
        raise InputError(f"images have shape {list(shape)}, channels first or last? Give layout='NHWC' or 'NCHW'")
    return last


def writable(array: NDArray[Any]) -> Tensor:
    """A tensor that shares nothing with `array`, which may be read-only or change later."""
    return torch.from_numpy(np.array(array, dtype=array.dtype.newbyteorder("="), order="C"))
