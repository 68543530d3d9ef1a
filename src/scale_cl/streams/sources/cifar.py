"""CIFAR-10 and CIFAR-100: 50,000 training and 10,000 test images, 32x32, in the binary or the python version."""

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
from scale_cl.streams.sources.pickles import read_pickle
from scale_cl.streams.sources.source import CheckedFile, Download, Progress, finding, folder_with, missing
from scale_cl.streams.stream import Arrays

PIXELS = 3 * 32 * 32
Batch = tuple[NDArray[np.uint8], NDArray[np.uint8]]  # images [n, 3, 32, 32], labels [n]


@dataclass(frozen=True)
class Version:
    """A published version: the folders it may be stored in, its files and their MD5."""

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
    label_bytes: int  # label bytes of a binary record; the last one is the label
    label_key: str  # key of the labels in a pickled batch
    versions: tuple[Version, ...]
    downloads: tuple[tuple[Download, ...], ...]
    placing: str
    image_checksums: tuple[str, str]  # of training and test images; see `image_checksum`
    embedded: bool = False

    def present(self, root: Path) -> bool:
        """Whether all files of one version are there."""
        return any(folder_with(root, version.folders, version.files) for version in self.versions)

    def read(self, root: Path, progress: Progress | None = None) -> Arrays:
        """All batches of the first version that is found."""
        version, folder = self._find(root)
        train = [self._batch(folder / file, self._images(version, file), version.pickled) for file in version.train]
        test = self._batch(folder / version.test, self._images(version, version.test), version.pickled)
        x, y = (np.concatenate(parts) for parts in zip(*train, strict=True))
        self._check_counts(folder, "training", y, self.train_per_class)
        self._check_counts(folder, "test", test[1], self.test_per_class)
        x_test = torch.from_numpy(np.array(test[0]))  # a copy, because the batch may be a view of the file
        y_train, y_test = torch.from_numpy(y).long(), torch.from_numpy(test[1].copy()).long()
        return Arrays(torch.from_numpy(x), y_train, x_test, y_test, self.class_names, pixel_max=255.0)

    def check(self, root: Path, progress: Progress | None = None) -> list[CheckedFile]:
        """One finding per file: size, labels and checksum; the published images in another order are accepted."""
        try:
            version, folder = self._find(root)
        except DataError as error:
            return [CheckedFile(self.name, False, str(error))]
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
        if problems and len(batches) == len(version.files):
            parts = [batches[file] for file in version.train], [batches[version.test]]
            if tuple(map(image_checksum, parts)) == self.image_checksums:
                problems, known = {}, "images as published, in an order of their own"
        texts = {file: f"{self._images(version, file)} images, {known}" for file in version.files}
        return [finding(root, folder / file, problems.get(file), text) for file, text in texts.items()]

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
        raise missing(self, root)

    def _images(self, version: Version, file: str) -> int:
        """The number of images that a file must hold."""
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
    """A checksum of labels and pixels that does not depend on the order of images: the sum of their hashes."""
    total = 0
    for x, y in batches:
        for image, label in zip(x.reshape(len(x), PIXELS), y, strict=True):
            total += int.from_bytes(hashlib.sha256(bytes([label]) + image.tobytes()).digest()[:16], "little")
    return f"{total % (1 << 128):032x}"


def entry(batch: Any, key: str) -> Any:
    """The value of `key` in a pickled dictionary; Python 2 wrote keys as bytes."""
    if not isinstance(batch, dict):
        return None
    return batch.get(key, batch.get(key.encode()))


def _archive(name: str, size: int, checksum: str, folder: str) -> tuple[Download]:
    url = f"https://www.cs.toronto.edu/~kriz/{name}.tar.gz"
    return (Download(url, f"{name}.tar.gz", size, checksum, unpacks_to=folder),)


CIFAR10 = Cifar(
    name="cifar10",
    title="CIFAR-10",
    class_names=("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
    train_per_class=5000,
    test_per_class=1000,
    label_bytes=1,
    label_key="labels",
    versions=(
        Version(
            folders=("cifar-10-batches-bin", "cifar10/cifar-10-batches-bin", "cifar10", "cifar-10-binary", "."),
            train=tuple(f"data_batch_{i}.bin" for i in range(1, 6)),
            test="test_batch.bin",
            pickled=False,
            md5={
                "data_batch_1.bin": "5dd7e06a14cb22eb9f671a540d1b7c25",
                "data_batch_2.bin": "5ea93a67294ea407fff1d09f752e9692",
                "data_batch_3.bin": "942cd6a4bcdd0dd3c604fbe906cb4421",
                "data_batch_4.bin": "ae636b3ba5c66a11e91e8cb52e771fcb",
                "data_batch_5.bin": "53f37980c15c3d472c316c40844f3f0d",
                "test_batch.bin": "803d5f7f4d78ea53de84dbe85f74fb6d",
            },
        ),
        Version(
            folders=("cifar-10-batches-py", "cifar10/cifar-10-batches-py", "cifar10", "cifar-10-python", "."),
            train=tuple(f"data_batch_{i}" for i in range(1, 6)),
            test="test_batch",
            pickled=True,
            md5={
                "data_batch_1": "c99cafc152244af753f735de768cd75f",
                "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
                "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
                "data_batch_4": "634d18415352ddfa80567beed471001a",
                "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
                "test_batch": "40351d587109b95175f43aff81a1287e",
            },
        ),
    ),
    downloads=(
        _archive("cifar-10-binary", 170_052_171, "c32a1d4ab5d03f1284b67883e8d87530", "cifar-10-batches-bin"),
        _archive("cifar-10-python", 170_498_071, "c58f30108f718f92721af3b95e74349a", "cifar-10-batches-py"),
    ),
    placing="the folder cifar-10-batches-bin or cifar-10-batches-py of the official archive",
    image_checksums=("3020052945433ce9e5ff232bf34b19e4", "7b9413a1ccbc1e48cbedc5f1f3a8dd44"),
)

_CIFAR100_CLASSES = """
apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can castle
caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin elephant
flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster man maple_tree
motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate
poppy porcupine possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake spider
squirrel streetcar sunflower sweet_pepper table tank telephone television tiger tractor train trout tulip turtle
wardrobe whale willow_tree wolf woman worm
"""


CIFAR100 = Cifar(
    name="cifar100",
    title="CIFAR-100",
    class_names=tuple(_CIFAR100_CLASSES.split()),
    train_per_class=500,
    test_per_class=100,
    label_bytes=2,  # coarse, fine
    label_key="fine_labels",
    versions=(
        Version(
            folders=("cifar-100-binary", "cifar100/cifar-100-binary", "cifar100", "."),
            train=("train.bin",),
            test="test.bin",
            pickled=False,
            md5={"train.bin": "6172c7755cfe09b2fe270c85cebc1b15", "test.bin": "4499cfba6c016c1be1438163640a0898"},
        ),
        Version(
            folders=("cifar-100-python", "cifar100/cifar-100-python", "cifar100", "."),
            train=("train",),
            test="test",
            pickled=True,
            md5={"train": "16019d7e3df5f24257cddd939b257f8d", "test": "f0ef6b0ae62326f3e7ffdfab6717acfc"},
        ),
    ),
    downloads=(
        _archive("cifar-100-binary", 168_513_733, "03b5dce01913d631647c71ecec9e9cb8", "cifar-100-binary"),
        _archive("cifar-100-python", 169_001_437, "eb9058c3a382ffc7106e4002c42a8d85", "cifar-100-python"),
    ),
    placing="the folder cifar-100-binary or cifar-100-python of the official archive",
    image_checksums=("897abebd74e0da3b116b2ae5ecfb3b61", "2471856e1ba25664ba09dde9fd5d9853"),
)
