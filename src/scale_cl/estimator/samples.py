"""Inputs and labels as users have them (arrays, tensors, tables, loaders) to the tensors that learners take."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.utils import assert_all_finite, column_or_1d
from sklearn.utils.validation import validate_data
from torch import Tensor

from scale_cl.errors import InputError
from scale_cl.estimator.tasks import Label
from scale_cl.nets.inputs import LARGEST_NUMBER
from scale_cl.streams import InputSpec
from scale_cl.streams.from_arrays import Layout, channels_last
from scale_cl.streams.stream import first_bad_row


@dataclass(frozen=True, eq=False)
class InputFormat:
    """What the inputs of an estimator look like; the first inputs decide it."""

    spec: InputSpec
    origin: NDArray[np.float64] | None  # subtracted from features before they are rounded to float32


def read_inputs(estimator: Any, X: Any, known: InputFormat | None) -> tuple[Tensor, InputFormat]:
    """Inputs as [n, *shape] uint8 pixels or float32 values, and their format.

    Args:
        estimator: its parameters layout, pixel_max, standardise and scenario apply.
        X: feature vectors or images.
        known: the format that the inputs must have; None if these are the first.
    """
    array = _plain(X)
    if isinstance(array, np.ndarray) and array.ndim in (3, 4):
        values = _as_images(array, _layout_of(estimator.layout, array.shape, known))
        pixel_max = float(estimator.pixel_max) if values.dtype == np.uint8 else None
        origin = None
    else:
        as_given = {"dtype": "numeric", "ensure_all_finite": False}  # `_shifted` says in which row a number is missing
        values, pixel_max = validate_data(estimator, array, reset=known is None, **as_given), None
        first = values[0].astype(np.float64) if estimator.standardise else None
        origin = first if known is None else known.origin
        _shifted(values[:1], None)  # the origin must be a number before others are compared with it
        values = _shifted(values, origin)
    spec = InputSpec(values.shape[1:], pixel_max, estimator.scenario)
    if known is not None and (spec.shape, spec.pixel_max) != (known.spec.shape, known.spec.pixel_max):
        raise InputError(f"inputs are {_described(spec)}; this estimator was trained on {_described(known.spec)}")
    copied = np.array(values, dtype=values.dtype.newbyteorder("="), order="C")  # it may be read-only or change later
    return torch.from_numpy(copied), known or InputFormat(spec, origin)


def _plain(x: Any) -> Any:
    """Tensors and lists of arrays as one numpy array; tables and everything else unchanged."""
    if isinstance(x, list | tuple) and len(x) and isinstance(x[0], Tensor | np.ndarray) and x[0].ndim > 1:
        x = torch.stack(list(x)) if isinstance(x[0], Tensor) else np.stack(x)
    if isinstance(x, Tensor):
        x = x.detach().cpu()
        return (x.float() if x.dtype in (torch.bfloat16, torch.float16) else x).numpy()
    return x


def _layout_of(layout: Layout, shape: tuple[int, ...], known: InputFormat | None) -> Layout:
    """The layout of images; "auto" follows the shape of the first images."""
    if layout != "auto" or known is None or len(shape) < 4:
        return layout
    if shape[1:] == known.spec.shape:
        return "NCHW"
    return "NHWC" if (shape[3], *shape[1:3]) == known.spec.shape else "auto"


def _as_images(array: NDArray[Any], layout: Layout) -> NDArray[Any]:
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
        with np.errstate(over="ignore"):
            array = array.astype(np.float32)
        _check_numbers(array, "image")
    return array


def _shifted(values: NDArray[Any], origin: NDArray[np.float64] | None) -> NDArray[np.float32]:
    """Features minus `origin` as float32: large values that differ little, such as timestamps, keep their digits."""
    with np.errstate(over="ignore", invalid="ignore"):
        narrow = (values if origin is None else values - origin).astype(np.float32)
    _check_numbers(narrow, "row")
    return narrow


def _check_numbers(array: NDArray[np.float32], what: str) -> None:
    """InputError if a number is missing, or too large to compute with; it names the row."""
    row = first_bad_row(torch.from_numpy(array))
    if row is None:
        return
    bad = "NaN" if np.isnan(array[row]).any() else f"infinity (inf) or a number beyond {LARGEST_NUMBER:g}"
    raise InputError(f"{what} {row} of X (from 0) holds {bad}; fill in what is missing, and scale large numbers down")


def _described(spec: InputSpec) -> str:
    kind = "floats" if spec.pixel_max is None else f"pixels of 0 to {spec.pixel_max:g}"
    return f"{kind} of shape {list(spec.shape)} each"


def read_labels(y: Any, *, name: str) -> NDArray[Any]:
    """Labels [n] as an array, checked by scikit-learn's rules; `name` is the caller's name for errors."""
    if y is None:
        raise InputError(f"{name} requires y to be passed, but the target y is None")
    array = column_or_1d(y.detach().cpu().numpy() if isinstance(y, Tensor) else y, warn=True)
    if array.dtype.kind in "OT":
        if not all(isinstance(value, Label) for value in array.tolist()):
            stranger = next(v for v in array.tolist() if not isinstance(v, Label))
            raise InputError(f"Unknown label type: {stranger!r}; labels are strings or whole numbers, none missing")
        kinds = {isinstance(value, str) for value in array.tolist()}
        if len(kinds) > 1:
            raise InputError("Unknown label type: some labels are strings and some numbers; use one kind")
        if kinds == {False}:
            array = np.array(array.tolist())
        elif array.dtype.kind == "T":
            array = array.astype(object)
    if array.dtype.kind not in "iubfOU":
        raise InputError(f"Unknown label type: {array.dtype}; labels are strings or whole numbers")
    if array.dtype.kind == "f":
        assert_all_finite(array, input_name="y")
        if np.any(array != np.floor(array)):
            raise InputError("Unknown label type: continuous; labels are strings or whole numbers")
    return np.asarray(array)


def is_loader(x: Any) -> bool:
    """Whether iterating over `x` gives batches, as with a DataLoader, rather than the rows of an array."""
    arrays = hasattr(x, "__array__") or hasattr(x, "shape") or hasattr(x, "__array_interface__")
    return hasattr(x, "__iter__") and not arrays and not isinstance(x, list | tuple | str | bytes | dict)


def batches_of(loader: Any, *, labelled: bool) -> Iterator[tuple[Any, Any]]:
    """The batches of a loader: (x, y) pairs, or x alone if labels are not needed."""
    for batch in loader:
        if isinstance(batch, dict):
            x, y = batch.get("x", batch.get("image")), batch.get("y", batch.get("label"))
        elif isinstance(batch, list | tuple):
            x, y = (batch[0], batch[1] if len(batch) > 1 else None) if batch else (None, None)
        else:
            x, y = batch, None
        if x is None or (labelled and y is None):
            raise InputError("a loader must give batches (X, y), or dicts with image and label or x and y")
        yield x, y


def read_ahead(loader: Any, *, labelled: bool) -> Iterator[tuple[Any, Any]]:
    """The batches of a loader, the first of which is read at once; InputError if there is none."""
    batches = batches_of(loader, labelled=labelled)
    for first in batches:
        return itertools.chain([first], batches)
    raise InputError("the loader gave no batch; at least one sample is needed")
