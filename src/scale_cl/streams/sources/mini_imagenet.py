"""mini-ImageNet: 100 classes of 600 colour images, 84x84, in any of its common layouts.

Layouts: class folders (flat, or below train, val and test), CSV files with a folder of images, or three cache pickles.
Of each class, sorted by file name, the first 480 images are for training and the last 120 for testing; classes are
numbered by name.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from scale_cl.errors import DataError
from scale_cl.streams.images import image_files, read_images
from scale_cl.streams.sources.cifar import entry
from scale_cl.streams.sources.pickles import read_pickle
from scale_cl.streams.sources.source import CheckedFile, Download, Progress, finding, missing
from scale_cl.streams.stream import Arrays

FOLDERS = ("mini-imagenet", "miniimagenet", "mini_imagenet", "MiniImagenet", "MiniImageNet", "miniImageNet", ".")
PARTS = ("train", "val", "test")
SIZE = (84, 84)
Images = list[Path] | NDArray[np.uint8]  # of one class, in order: files, or pixels [n, 84, 84, 3]


@dataclass(frozen=True)
class MiniImageNet:
    """The data set, or one in the same layout with other sizes."""

    classes: int = 100
    train_per_class: int = 480
    test_per_class: int = 120
    name: str = "mini-imagenet"
    title: str = "mini-ImageNet"
    downloads: tuple[tuple[Download, ...], ...] = ()
    placing: str = (
        "in the folder mini-imagenet: a folder of images for each class, or train.csv, val.csv, test.csv and images/, "
        "or mini-imagenet-cache-train.pkl, -val.pkl and -test.pkl"
    )
    embedded: bool = False

    def present(self, root: Path) -> bool:
        """Whether one of its usual folders exists and is not empty."""
        return any(folder.is_dir() and any(folder.iterdir()) for folder in (root / f for f in FOLDERS[:-1]))

    def read(self, root: Path, progress: Progress | None = None) -> Arrays:
        """All images of all classes, decoded."""
        classes = self._classes(root)
        for name, images in classes.items():
            if len(images) != self.per_class:
                raise DataError(self._count_problem(name, len(images)))
        names = sorted(classes)
        parts = []
        for start, stop in ((0, self.train_per_class), (self.train_per_class, self.per_class)):
            x = self._pixels([classes[name][start:stop] for name in names], progress)
            y = torch.arange(self.classes).repeat_interleave(stop - start)
            parts.append((torch.from_numpy(x), y))
        return Arrays(*parts[0], *parts[1], class_names=tuple(names), pixel_max=255.0)

    def check(self, root: Path, progress: Progress | None = None) -> list[CheckedFile]:
        """One finding per class: the number of images and whether all can be decoded."""
        try:
            classes = self._classes(root)
        except DataError as error:
            return [CheckedFile(self.name, False, str(error))]
        findings = []
        for done, name in enumerate(sorted(classes), 1):
            images, problem = classes[name], None
            if len(images) != self.per_class:
                problem = self._count_problem(name, len(images))
            try:
                self._pixels([images], None)
            except DataError as error:
                problem = str(error)
            findings.append(finding(root, Path(name), problem, f"{len(images)} images"))
            if progress is not None:
                progress(done, len(classes))
        return findings

    @property
    def per_class(self) -> int:
        """Images per class, training and test together."""
        return self.train_per_class + self.test_per_class

    def _count_problem(self, name: str, count: int) -> str:
        return f"class {name} of {self.title} has {count} images; it must have {self.per_class}"

    def _classes(self, root: Path) -> dict[str, Images]:
        """The images of each class, in the first layout that is found."""
        for name in FOLDERS:
            folder = root / name
            for layout in (_cache_pickles, _csv_files, _class_folders) if folder.is_dir() else ():
                classes = layout(folder)
                if len(classes) == self.classes:
                    return classes
                if classes and (name != "." or layout is not _class_folders):  # the root may hold other folders
                    raise DataError(f"{folder} holds {len(classes)} classes; {self.title} has {self.classes}")
        raise missing(self, root)

    def _pixels(self, parts: list[Images], progress: Progress | None) -> NDArray[np.uint8]:
        """Images [N, 3, 84, 84] of all parts, which are either all files or all pixels."""
        arrays = [part for part in parts if not isinstance(part, list)]
        if arrays:
            return np.concatenate([part.transpose(0, 3, 1, 2) for part in arrays])
        files = [path for part in parts if isinstance(part, list) for path in part]
        return read_images(files, SIZE, progress=progress)


def _class_folders(folder: Path) -> dict[str, Images]:
    """PATH/CLASS/*.jpg, or PATH/{train,val,test}/CLASS/*.jpg."""
    parents = [folder / part for part in PARTS]
    parents = parents if all(parent.is_dir() for parent in parents) else [folder]
    found: dict[str, Images] = {}
    for child in sorted(child for parent in parents for child in parent.iterdir() if child.is_dir()):
        if images := image_files(child):
            if child.name in found:
                raise DataError(f"class {child.name} is in two of train, val and test in {folder}; it must be in one")
            found[child.name] = images
    return found


def _csv_files(folder: Path) -> dict[str, Images]:
    """PATH/{train,val,test}.csv with columns filename and label, and PATH/images."""
    tables = [folder / f"{part}.csv" for part in PARTS]
    if not all(table.is_file() for table in tables):
        return {}
    by_class: dict[str, list[Path]] = {}
    for table in tables:
        try:
            with table.open(newline="", encoding="utf-8") as file:
                rows = [(row.get("filename"), row.get("label")) for row in csv.DictReader(file)]
        except (OSError, csv.Error, UnicodeDecodeError) as error:
            raise DataError(f"{table} is not a csv file with columns filename and label: {error}") from error
        for filename, label in rows:
            if not filename or not label or Path(filename).name != filename:
                raise DataError(f"{table} must have columns filename (a name in images/) and label in every row")
            by_class.setdefault(_class_name(label, table), []).append(folder / "images" / filename)
    return {label: sorted(paths) for label, paths in by_class.items()}


def _cache_pickles(folder: Path) -> dict[str, Images]:
    """PATH/mini-imagenet-cache-{train,val,test}.pkl: `image_data` [N, 84, 84, 3] and `class_dict`, label to rows."""
    paths = []
    for part in PARTS:
        spellings = [folder / f"mini-imagenet-cache-{word}.pkl" for word in (part, f"{part}idation")]
        if (path := next((p for p in spellings if p.is_file()), None)) is None:
            return {}
        paths.append(path)
    found: dict[str, Images] = {}
    for path in paths:
        cache = read_pickle(path)
        images, rows_of = entry(cache, "image_data"), entry(cache, "class_dict")
        if not isinstance(images, np.ndarray) or images.dtype != np.uint8 or images.shape[1:] != (*SIZE, 3):
            raise DataError(f"{path} must hold an array `image_data` of N x 84 x 84 x 3 bytes")
        if not isinstance(rows_of, dict):
            raise DataError(f"{path} must hold a dictionary `class_dict` of the rows of each class")
        for key, rows in rows_of.items():
            label = _class_name(key, path)
            if label in found:
                raise DataError(f"class {label} is in two of the cache pickles in {folder}; it must be in one")
            found[label] = images[_rows(rows, len(images), path, label)]
    return found


def _class_name(label: object, path: Path) -> str:
    text = label.decode("ascii", "replace") if isinstance(label, bytes) else label
    if not isinstance(text, str) or not 0 < len(text) <= 100 or not text.isprintable():
        raise DataError(f"{path} has a class whose name is not a short word such as n01532829")
    return text


def _rows(rows: object, count: int, path: Path, label: str) -> NDArray[np.int64]:
    values = rows.tolist() if isinstance(rows, np.ndarray) else rows
    if not isinstance(values, list) or not all(type(row) is int and 0 <= row < count for row in values):
        raise DataError(f"the rows of class {label} in {path} must be a list of numbers below {count}")
    if len(set(values)) != len(values):
        raise DataError(f"the rows of class {label} in {path} must differ from one another")
    return np.array(values, dtype=np.int64)
