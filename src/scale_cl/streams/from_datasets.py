"""Streams from the data sets of other libraries, such as torchvision's and Hugging Face's.

A data set is anything with a length whose items are (image, label) or dicts with both. None of these libraries is
imported: images may be PIL images, arrays or tensors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from scale_cl.errors import StreamError
from scale_cl.streams.builders import split
from scale_cl.streams.from_arrays import from_arrays
from scale_cl.streams.stream import Scenario, Stream

_IMAGE_FIELDS = ("image", "img", "x", "pixel_values")
_LABEL_FIELDS = ("label", "labels", "fine_label", "y")


def from_dataset(
    tasks: Any,
    test: Any = None,
    *,
    classes_per_task: int | None = None,
    scenario: Scenario = "task",
    names: Sequence[str] | None = None,
    image: str | None = None,
    label: str | None = None,
    size: int | tuple[int, int] | None = None,
    shuffle: bool = True,
    seed: int = 0,
    name: str = "datasets",
) -> Stream:
    """A stream from data sets whose items are (image, label) or dicts with an image and a label.

    `from_dataset([(train, test), ...])` makes one task per pair; `from_dataset(train, test, classes_per_task=5)`
    splits the classes of one pair over tasks.

    Args:
        tasks: pairs of training and test data sets, or one training data set.
        test: the test data set that belongs to the one training data set.
        classes_per_task: number of classes per task if one data set is split; it must divide the number of classes.
        scenario: "task": each task has a head for its own classes; "domain": all tasks share one head; "class": one
            head for all classes, numbered in the order in which tasks bring them.
        names: names of the tasks, for pairs; by default task-1, task-2, ...
        image: field of a dict that holds the image; by default "image", "img", "x" or "pixel_values".
        label: field of a dict that holds the label; by default "label", "labels", "fine_label" or "y".
        size: height and width to resize PIL images to; by default all images must have the same size.
        shuffle: False: samples arrive in the order of the data sets, for pairs.
        seed: decides the order of arrival.
        name: name of the stream.
    """
    pairs = [(tasks, test)] if test is not None else list(tasks)
    if any(not isinstance(pair, list | tuple) or len(pair) != 2 for pair in pairs):
        raise StreamError("give pairs of data sets [(train, test), ...], or one pair: from_dataset(train, test)")
    if (test is not None) != (classes_per_task is not None):
        raise StreamError("classes_per_task splits the classes of one training and one test data set; give all or none")
    if classes_per_task is not None and scenario == "domain":
        raise StreamError(f"scenario is {scenario!r}; tasks of different classes are of scenario 'task' or 'class'")
    groups = []
    for pair in pairs:
        parts = [_read(dataset, image, label, size) for dataset in pair]
        groups.append((*parts[0], *parts[1]))
    layout: Any = "NCHW" if groups[0][0].ndim == 4 else "auto"
    options: dict[str, Any] = {"layout": layout, "seed": seed, "name": name}
    if classes_per_task is None:
        return from_arrays(groups, scenario=scenario, names=names, shuffle=shuffle, **options)
    arrays = from_arrays(groups, **options).arrays
    return split(arrays, classes_per_task=classes_per_task, scenario=scenario, seed=seed, name=name)


def _read(
    dataset: Any, image: str | None, label: str | None, size: int | tuple[int, int] | None
) -> tuple[NDArray[Any], NDArray[Any]]:
    """All images [N, C, H, W] uint8, or vectors [N, F] float32, and all labels, as names if the data set has names."""
    if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
        raise StreamError(f"a {type(dataset).__name__} is no data set: it must have a length and items")
    if len(dataset) == 0:
        raise StreamError("a data set is empty; every task needs training and test samples")
    images, labels = [], []
    for i in range(len(dataset)):
        x, y = _item(dataset[i], image, label)
        images.append(_pixels(x, size))
        labels.append(y.item() if hasattr(y, "item") else y)
    shapes = {x.shape for x in images}
    if len(shapes) > 1:
        one, other = sorted(shapes)[:2]
        raise StreamError(f"a data set has images of {list(one)} and {list(other)}; give a size to resize all to")
    return np.stack(images), _named(np.array(labels), dataset, label)


def _item(item: Any, image: str | None, label: str | None) -> tuple[Any, Any]:
    if isinstance(item, Mapping):
        return _field(item, image, _IMAGE_FIELDS, "image"), _field(item, label, _LABEL_FIELDS, "label")
    if isinstance(item, list | tuple) and len(item) >= 2:
        return item[0], item[1]
    raise StreamError(f"an item is a {type(item).__name__}; it must be (image, label) or a dict with both")


def _field(item: Mapping[str, Any], given: str | None, usual: tuple[str, ...], what: str) -> Any:
    for name in (given,) if given is not None else usual:
        if name in item:
            return item[name]
    raise StreamError(f"items have fields {', '.join(map(str, item))}; say which is the {what}: {what}=...")


def _pixels(x: Any, size: int | tuple[int, int] | None) -> NDArray[Any]:
    """An image as [C, H, W] uint8, or a vector as float32."""
    if isinstance(x, Image.Image):
        picture = x if x.mode in ("L", "RGB") else x.convert("RGB")
        if size is not None:
            height, width = (size, size) if isinstance(size, int) else size
            picture = picture.resize((width, height), Image.Resampling.BILINEAR)
        array = np.asarray(picture)
    else:
        array = x.detach().cpu().numpy() if isinstance(x, Tensor) else np.asarray(x)
    if array.ndim == 1:
        return array.astype(np.float32)
    if array.ndim == 2:
        array = array[None]
    elif array.ndim == 3 and array.shape[0] not in (1, 3) and array.shape[2] in (1, 3):
        array = array.transpose(2, 0, 1)
    if array.ndim != 3:
        raise StreamError(f"an image has shape {list(array.shape)}; it must be [H, W], [H, W, C] or [C, H, W]")
    if array.dtype.kind == "f":  # the output of torchvision's ToTensor
        if not (np.isfinite(array).all() and array.min() >= 0 and array.max() <= 1):
            raise StreamError("float images must be within 0 and 1; leave normalisation out, or give uint8 pixels")
        array = np.round(array * 255)
    return array.astype(np.uint8)


def _named(labels: NDArray[Any], dataset: Any, label: str | None) -> NDArray[Any]:
    """Label numbers replaced by their names, if torchvision's `classes` or Hugging Face's `features` have any."""
    names = getattr(dataset, "classes", None)
    features = getattr(dataset, "features", None)
    if names is None and isinstance(features, Mapping):
        fields = (label,) if label is not None else _LABEL_FIELDS
        names = next((getattr(features[f], "names", None) for f in fields if f in features), None)
    usable = isinstance(names, list | tuple) and all(isinstance(n, str) for n in names) and labels.dtype.kind in "iu"
    if not usable or not names or labels.min() < 0 or labels.max() >= len(names) or len(set(names)) < len(names):
        return labels
    named: NDArray[Any] = np.array(names)[labels]
    return named
