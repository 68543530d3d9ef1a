"""Items of other libraries' data sets as rows: read by number (`MapItems`) or one after another (`IteratedItems`).

An item is (image, label) or a dict with both. Images may be PIL images, arrays or tensors; no library is imported.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps
from torch import Tensor
from torch.utils.data import IterableDataset

from scale_cl.errors import DataError, StreamError, one_line
from scale_cl.nets.inputs import LARGEST_NUMBER
from scale_cl.streams.reading import Block

_IMAGE_FIELDS = ("image", "img", "x", "pixel_values")
_LABEL_FIELDS = ("label", "labels", "fine_label", "y")
_OPEN = 2  # iterables of a source that are read at once: the training data and the test data of a task


def is_iterable(dataset: Any) -> bool:
    """Whether items come one after another only, without numbers."""
    if isinstance(dataset, IterableDataset):  # has an item method that always fails
        return True
    return hasattr(dataset, "__iter__") and not (hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__"))


@dataclass(frozen=True)
class ItemFormat:
    """Where an item has its image and its label, and the size of its image."""

    image: str | None = None
    label: str | None = None
    size: int | tuple[int, int] | None = None

    def row(self, item: Any) -> tuple[NDArray[Any], Any]:
        """The image of an item as [C, H, W] uint8, or its vector as float32, and its label."""
        if isinstance(item, Mapping):
            x, y = _field(item, self.image, _IMAGE_FIELDS, "image"), _field(item, self.label, _LABEL_FIELDS, "label")
        elif isinstance(item, list | tuple) and len(item) >= 2:
            x, y = item[0], item[1]
        else:
            raise StreamError(f"an item is a {type(item).__name__}; it must be (image, label) or a dict with both")
        return _pixels(x, self.size), y.item() if hasattr(y, "item") else y

    def names(self, dataset: Any) -> Sequence[str] | None:
        """Names of label numbers, if torchvision's `classes` or Hugging Face's `features` have any."""
        names, features = getattr(dataset, "classes", None), getattr(dataset, "features", None)
        if names is None and isinstance(features, Mapping):
            fields = (self.label,) if self.label is not None else _LABEL_FIELDS
            names = next((getattr(features[f], "names", None) for f in fields if f in features), None)
        if not isinstance(names, list | tuple) or not names or not all(isinstance(n, str) for n in names):
            return None
        return names if len(set(names)) == len(names) else None

    def item(self, dataset: Any, i: int, number: int) -> tuple[NDArray[Any], Any]:
        """Image and label of an item of data set `number` (from 0); DataError that names it if it cannot be read."""
        try:
            return self.row(dataset[i])
        except StreamError:  # it says what to do
            raise
        except Exception as error:  # the code of others may raise anything
            raise DataError(f"item {i} of data set {number + 1} cannot be read: {one_line(error)}") from None

    def labels(self, dataset: Any, number: int) -> NDArray[Any]:
        """All labels of data set `number`: its column or `targets` if it has one, else read from the items."""
        for known in self._listed(dataset):
            if len(known) == len(dataset) and all(self._may_be(known[i], dataset, i) for i in (0, -1 % len(known))):
                return np.asarray(known)
        return np.asarray([self.item(dataset, i, number)[1] for i in range(len(dataset))])

    def _may_be(self, label: Any, dataset: Any, i: int) -> bool:
        """Whether an item has this label, as far as it can be read."""
        try:
            return bool(label == self.item(dataset, i, 0)[1])
        except DataError:
            return True

    def _listed(self, dataset: Any) -> Iterator[Sequence[Any]]:
        columns = getattr(dataset, "column_names", None)
        if isinstance(columns, list):
            fields = (self.label,) if self.label is not None else _LABEL_FIELDS
            yield from (list(dataset[f]) for f in fields if f in columns)
        targets = getattr(dataset, "targets", None)
        if isinstance(targets, Tensor | np.ndarray):
            yield targets.tolist()
        elif isinstance(targets, list):
            yield targets


def _field(item: Mapping[str, Any], given: str | None, usual: tuple[str, ...], what: str) -> Any:
    for name in (given,) if given is not None else usual:
        if name in item:
            return item[name]
    raise StreamError(f"items have fields {', '.join(map(str, item))}; say which is the {what}: {what}=...")


def _pixels(x: Any, size: int | tuple[int, int] | None) -> NDArray[Any]:
    """An image as [C, H, W] uint8, or a vector as float32."""
    if isinstance(x, Image.Image):
        picture = ImageOps.exif_transpose(x)
        picture = picture if picture.mode in ("L", "RGB") else picture.convert("RGB")
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


def _problem(x: NDArray[Any], shape: tuple[int, ...]) -> str:
    """Why an input cannot be a row of this shape; empty if it can."""
    if x.shape != shape:
        return f"has shape {list(x.shape)}, the first sample {list(shape)}; give a size to resize all to"
    if x.dtype == np.uint8 or bool((np.abs(x) <= LARGEST_NUMBER).all()):
        return ""
    return f"holds NaN, infinity or a number beyond {LARGEST_NUMBER:g}; features must be finite and smaller"


def _empty(count: int, shape: tuple[int, ...]) -> NDArray[Any]:
    return np.zeros((count, *shape), np.uint8 if len(shape) == 3 else np.float32)


class MapItems:
    """The rows of data sets with a length and items, one after another."""

    sequential = False

    def __init__(self, datasets: Sequence[Any], how: ItemFormat, shape: tuple[int, ...]) -> None:
        """All items must have `shape`."""
        self._datasets, self._how, self.shape = list(datasets), how, shape
        self._ends = np.cumsum([len(dataset) for dataset in datasets])

    def read(self, rows: NDArray[np.int64]) -> Block:
        """Read the items of these rows."""
        out, lost = _empty(len(rows), self.shape), {}
        for i, row in enumerate(rows.tolist()):
            number = int(np.searchsorted(self._ends, row, side="right"))
            item = row - (int(self._ends[number - 1]) if number else 0)
            try:
                x, _ = self._how.row(self._datasets[number][item])
                problem = _problem(x, self.shape)
            except Exception as error:  # the code of others may raise anything
                problem = f"cannot be read: {one_line(error)}"
            if problem:
                lost[i] = f"item {item} of data set {number + 1} {problem}"
            else:
                out[i] = x
        return Block(out, lost)


@dataclass
class Iterated:
    """One iterable of a stream: the training or test samples of a task."""

    dataset: Any
    length: int
    what: str  # such as: the training data of task 'a'
    head: Mapping[str, int]  # label of each class
    names: Sequence[str] | None  # names of label numbers

    def start(self, position: int) -> Iterator[Any]:
        """The items from a position on; the data set is not touched before the first of them is asked for."""
        if not is_iterable(self.dataset):
            yield from (self.dataset[i] for i in range(position, len(self.dataset)))
        elif position and hasattr(self.dataset, "skip"):
            yield from self.dataset.skip(position)
        else:
            yield from itertools.islice(self.dataset, position, None)

    def first(self, how: ItemFormat, *, skip: bool) -> NDArray[Any]:
        """The input of the first sample, with `skip` of the first that can be read; an error says why there is none."""
        items, problem = self.start(0), f"{self.what} yields nothing; leave its task out, or give samples"
        for number in range(1, self.length + 1):
            try:
                item = next(items)
            except StopIteration:
                break
            except Exception as error:  # the code of others may raise anything
                raise DataError(f"{self.what} failed at sample {number}: {one_line(error)}") from None
            try:
                return how.row(item)[0]
            except StreamError as error:
                problem = f"sample {number} of {self.what}: {error}"
                if not skip:
                    break
        raise StreamError(problem)

    def label(self, y: Any) -> int | None:
        """The number of a label in the head; None if it has no such class."""
        named = self.names is not None and isinstance(y, int) and 0 <= y < len(self.names)
        return self.head.get(self.names[y] if named and self.names is not None else str(y))


class IteratedItems:
    """The rows of iterables, each with as many rows as it is said to have.

    Within a window rows may be asked for in any order; they are held until then. A window before the one that was read
    last is read anew from the start of the iterable.
    """

    sequential = True

    def __init__(self, parts: Sequence[Iterated], how: ItemFormat, shape: tuple[int, ...], window: int) -> None:
        """Items of `parts` one after another, with the order of arrival shuffled within windows."""
        self._parts, self._how, self.shape, self._window = list(parts), how, shape, window
        self._ends = np.cumsum([part.length for part in parts])
        self._open: dict[int, _Cursor] = {}

    def read(self, rows: NDArray[np.int64]) -> Block:
        """Read these rows, in this order."""
        out, y, lost = _empty(len(rows), self.shape), np.zeros(len(rows), np.int64), {}
        for i, row in enumerate(rows.tolist()):
            number = int(np.searchsorted(self._ends, row, side="right"))
            found = self._row(number, row - (int(self._ends[number - 1]) if number else 0))
            if isinstance(found, str):
                lost[i] = found
            else:
                out[i], y[i] = found
        return Block(out, lost, y)

    def _row(self, number: int, position: int) -> tuple[NDArray[Any], int] | str:
        cursor = self._open.pop(number, None)
        if cursor is None or not cursor.reaches(position):
            cursor = _Cursor(self._parts[number], self._how, self.shape, position - position % self._window)
        self._open[number] = cursor  # the last one is the one used last
        while len(self._open) > _OPEN:
            self._open.pop(next(iter(self._open)))
        return cursor.take(position, position - position % self._window)

    def __reduce__(self) -> tuple[object, ...]:
        return IteratedItems, (self._parts, self._how, self.shape, self._window)  # without open iterators


class _Cursor:
    """Reads an iterable from a position on, and holds what was read and not yet taken."""

    def __init__(self, part: Iterated, how: ItemFormat, shape: tuple[int, ...], position: int) -> None:
        self._part, self._how, self._shape, self._position = part, how, shape, position
        self._items = part.start(position)
        self._held: dict[int, tuple[NDArray[Any], int] | str] = {}

    def reaches(self, position: int) -> bool:
        """Whether the row is held or still to come."""
        return position in self._held or position >= self._position

    def take(self, position: int, window: int) -> tuple[NDArray[Any], int] | str:
        """A row, or why there is none; `window` is the start of its window, before which nothing is needed."""
        while self._position <= position:
            self._held[self._position] = self._next()
            self._position += 1
        for gone in [i for i in self._held if i < window]:
            del self._held[gone]
        return self._held.pop(position)

    def _next(self) -> tuple[NDArray[Any], int] | str:
        part, here = self._part, self._position
        try:
            item = next(self._items)
        except StopIteration:
            self._items = iter(())
            if here == 0:
                raise DataError(f"{part.what} yields nothing; leave its task out, or give samples") from None
            return f"{part.what} ended before its {part.length} samples; say how many there are: lengths=..."
        except Exception as error:  # the code of others may raise anything
            raise DataError(f"{part.what} failed at sample {here + 1}: {one_line(error)}") from None
        try:
            x, y = self._how.row(item)
        except StreamError as error:
            return f"sample {here + 1} of {part.what}: {error}"
        label = part.label(y)
        if label is None:
            return f"sample {here + 1} of {part.what} has label {y!r}, which is none of the task's classes"
        problem = _problem(x, self._shape)
        return f"sample {here + 1} of {part.what} {problem}" if problem else (x, label)
