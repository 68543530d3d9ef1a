"""What CIFAR-10 and CIFAR-100 have in common: binary records or pickled batches of 32x32 colour images."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from scale_cl.errors import DataError
from scale_cl.files import digest
from scale_cl.streams.progress import Progress
from scale_cl.streams.sources.layouts import finding, folder_with, missing
from scale_cl.streams.sources.pickles import read_pickle
from scale_cl.streams.sources.source import Download, Finding
from scale_cl.streams.stream import Arrays

PIXELS = 3 * 32 * 32
Batch = tuple[NDArray[np.uint8], NDArray[np.uint8]]  # images [n, 3, 32, 32], labels [n]


@dataclass(frozen=True)
class Version:
    """One published form: the folders it is found in, its files, and their published MD5."""

    folders: tuple[str, ...]
    train: tuple[str, ...]
    test: str
    pickled: bool
    md5: dict[str, str]

    @property
    def files(self) -> tuple[str, ...]:
        """All files that are read."""
        return (*self.train, self.test)


@dataclass(frozen=True)
class Cifar:
    """CIFAR-10 or CIFAR-100."""

    name: str
    title: str
    class_names: tuple[str, ...]
    train_per_class: int
    test_per_class: int
    label_bytes: int  # of a binary record; the last of them is the label
    label_key: str  # of a pickled batch
    versions: tuple[Version, ...]
    downloads: tuple[tuple[Download, ...], ...]
    placing: str
    image_checksums: tuple[str, str]  # of training and test images, see `image_checksum`
    embedded: bool = False

    def present(self, root: Path) -> bool:
        """Whether the files of one version are there."""
        return any(folder_with(root, version.folders, version.files) for version in self.versions)

    def read(self, root: Path, progress: Progress | None = None) -> Arrays:
        """All batches of the first version that is there."""
        version, folder = self._find(root)
        train = [self._batch(folder / file, self._images(version, file), version.pickled) for file in version.train]
        test = self._batch(folder / version.test, self._images(version, version.test), version.pickled)
        x, y = (np.concatenate(parts) for parts in zip(*train, strict=True))
        self._check_counts(folder, "training", y, self.train_per_class)
        self._check_counts(folder, "test", test[1], self.test_per_class)
        x_test = torch.from_numpy(np.array(test[0]))  # a copy: the batch may be a view of the file
        y_train, y_test = torch.from_numpy(y).long(), torch.from_numpy(test[1].copy()).long()
        return Arrays(torch.from_numpy(x), y_train, x_test, y_test, self.class_names, pixel_max=255.0)

    def check(self, root: Path, progress: Progress | None = None) -> list[Finding]:
        """Size, labels and checksum of each file; the same images in another order are right, too."""
        try:
            version, folder = self._find(root)
        except DataError as error:
            return [Finding(self.name, False, str(error))]
        problems: dict[str, str] = {}
        batches: dict[str, Batch] = {}
        for file in version.files:
            try:
                batches[file] = self._batch(folder / file, self._images(version, file), version.pickled)
                if digest(folder / file, "md5") != version.md5[file]:
                    problems[file] = "altered: its checksum is not that of the published file"
            except (DataError, OSError) as error:
                problems[file] = str(error)
        known = "checksum as published"
        if problems and len(batches) == len(version.files) and self._same_images(version, batches):
            problems, known = {}, "images as published, in an order of their own"
        texts = {file: f"{self._images(version, file)} images, {known}" for file in version.files}
        return [finding(root, folder / file, problems.get(file), text) for file, text in texts.items()]

    def _same_images(self, version: Version, batches: dict[str, Batch]) -> bool:
        """Whether training and test images are those published, whatever their order."""
        train = image_checksum([batches[file] for file in version.train])
        return (train, image_checksum([batches[version.test]])) == self.image_checksums

    def _find(self, root: Path) -> tuple[Version, Path]:
        for version in self.versions:
            if folder := folder_with(root, version.folders, version.files):
                return version, folder
        for version in self.versions:
            for folder in (root / f for f in version.folders if f != "."):
                if folder.is_dir():
                    absent = [file for file in version.files if not (folder / file).is_file()]
                    if len(absent) < len(version.files):
                        raise DataError(f"{absent[0]} is missing in {folder}: run `scale-cl data get {self.name}`")
        raise missing(self.title, self.name, root, self.placing)

    def _images(self, version: Version, file: str) -> int:
        """Images that a file must hold."""
        classes = len(self.class_names)
        if file == version.test:
            return classes * self.test_per_class
        return classes * self.train_per_class // len(version.train)

    def _batch(self, path: Path, images: int, pickled: bool) -> Batch:
        x, y = self._pickled(path, images) if pickled else self._binary(path, images)
        if y.max(initial=0) >= len(self.class_names):
            raise DataError(
                f"{path} holds label {y.max()}; labels of {self.title} are 0 to {len(self.class_names) - 1}, "
                "so the file is altered"
            )
        return x.reshape(-1, 3, 32, 32), y

    def _binary(self, path: Path, images: int) -> Batch:
        record = self.label_bytes + PIXELS
        if (size := path.stat().st_size) != images * record:
            raise DataError(f"{path} has {size} bytes; it must have {images * record} ({images} records of {record})")
        records = np.fromfile(path, dtype=np.uint8)
        if records.size != images * record:
            raise DataError(f"{path} changed while it was read")
        records = records.reshape(images, record)
        return records[:, self.label_bytes :], records[:, self.label_bytes - 1]

    def _pickled(self, path: Path, images: int) -> Batch:
        batch = read_pickle(path)
        x, labels = entry(batch, "data"), entry(batch, self.label_key)
        if not isinstance(x, np.ndarray) or x.dtype != np.uint8 or x.shape != (images, PIXELS):
            raise DataError(f"{path} must hold an array `data` of {images} x {PIXELS} bytes")
        right = isinstance(labels, list) and len(labels) == images
        if not right or not all(type(label) is int and 0 <= label < 256 for label in labels):
            raise DataError(f"{path} must hold a list `{self.label_key}` of {images} labels")
        return x, np.array(labels, dtype=np.uint8)

    def _check_counts(self, folder: Path, part: str, y: NDArray[np.uint8], expected: int) -> None:
        counts = np.bincount(y, minlength=len(self.class_names))
        if (counts != expected).any():
            wrong = int(np.flatnonzero(counts != expected)[0])
            raise DataError(
                f"{folder} holds {counts[wrong]} {part} images of class {wrong} ({self.class_names[wrong]}); "
                f"{self.title} has {expected} of each, so the files are altered"
            )


def image_checksum(batches: Sequence[Batch]) -> str:
    """A checksum of labels and pixels that does not depend on their order: the sum of each image's own."""
    total = 0
    for x, y in batches:
        for image, label in zip(x.reshape(len(x), PIXELS), y, strict=True):
            total += int.from_bytes(hashlib.sha256(bytes([label]) + image.tobytes()).digest()[:16], "little")
    return f"{total % (1 << 128):032x}"


def entry(batch: Any, key: str) -> Any:
    """The value under `key` of a pickled dictionary, whose keys Python 2 wrote as bytes."""
    if not isinstance(batch, dict):
        return None
    return batch.get(key, batch.get(key.encode()))
