"""Data sets of image files by their layouts: Tiny-ImageNet, CUB-200-2011 and CORe50.

Each class lists the files of a layout, as the archive of the data set has it; `image_files` does the rest.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import ClassVar

from scale_cl.errors import DataError
from scale_cl.streams.images import image_files
from scale_cl.streams.sources.image_files import ImageFiles, LabelledFile, Listing, table

CATEGORIES = (
    *("plug adapter", "mobile phone", "scissors", "light bulb", "can"),
    *("glasses", "ball", "marker", "cup", "remote control"),
)
PER_CATEGORY = 5  # objects: o1 to o5 are plug adapters, o6 to o10 mobile phones, and so on
SESSIONS = 11
TEST_SESSIONS = (3, 7, 10)


@dataclass(frozen=True)
class TinyImageNet(ImageFiles):
    """Tiny-ImageNet: 200 classes of 64x64 colour images, 500 for training and 50 for testing per class.

    The layout: `wnids.txt`, `train/WNID/images/*.JPEG`, `val/images/*.JPEG` with `val/val_annotations.txt`. The labels
    of its test folder are not public, so `val` is for testing, as is usual. Class folders without `images/`, and a
    `val` that was sorted into class folders, are read as well. Classes are numbered by WordNet id. Another data set in
    the same layout may have other numbers of classes and images.
    """

    name: str = "tiny-imagenet"
    size: int = 64
    classes: int = 200
    train_per_class: int = 500
    test_per_class: int = 50

    title: ClassVar[str] = "Tiny-ImageNet"
    placing: ClassVar[str] = "the folder tiny-imagenet-200 of its archive, with wnids.txt, train/ and val/"
    folders: ClassVar[tuple[str, ...]] = ("tiny-imagenet-200", "tiny-imagenet", "tinyimagenet", "TinyImageNet")

    def listing(self, folder: Path) -> Listing:
        """Training images by class folder, test images by annotation or class folder."""
        names = tuple(sorted(words[0] for words in table(folder / "wnids.txt", 1)))
        if len(set(names)) != self.classes:
            raise DataError(f"{folder / 'wnids.txt'} names {len(set(names))} classes; {self.title} has {self.classes}")
        train = _class_folders(folder / "train", names)
        sorted_out = not (folder / "val" / "val_annotations.txt").is_file()
        test = _class_folders(folder / "val", names) if sorted_out else _annotated(folder / "val", names)
        for part, files, each in (("training", train, self.train_per_class), ("test", test, self.test_per_class)):
            counts = [0] * len(names)
            for _, label in files:
                counts[label] += 1
            for name, count in zip(names, counts, strict=True):
                if count != each:
                    raise DataError(f"class {name} of {self.title} has {count} {part} images; it must have {each}")
        return Listing(names, train, test)


def _class_folders(folder: Path, names: tuple[str, ...]) -> list[LabelledFile]:
    files: list[LabelledFile] = []
    for label, name in enumerate(names):
        own = folder / name / "images" if (folder / name / "images").is_dir() else folder / name
        if not own.is_dir():
            raise DataError(f"{folder / name} is missing; it must hold the images of this class")
        files += [(path, label) for path in image_files(own)]
    return files


def _annotated(folder: Path, names: tuple[str, ...]) -> list[LabelledFile]:
    annotations, index = folder / "val_annotations.txt", {name: label for label, name in enumerate(names)}
    files: list[LabelledFile] = []
    for file, name in table(annotations, 2):
        if Path(file).name != file or name not in index:
            raise DataError(f"{annotations} must have the name of an image and a class of wnids.txt in every line")
        files.append((folder / "images" / file, index[name]))
    return sorted(files, key=lambda entry: (entry[1], entry[0]))


@dataclass(frozen=True)
class Cub(ImageFiles):
    """CUB-200-2011: 200 species of birds, 5,994 training and 5,794 test images of many sizes, resized to a square.

    The layout: `images.txt`, `image_class_labels.txt`, `train_test_split.txt` and `classes.txt`, which refer to each
    other by number, and `images/CLASS/*.jpg`. Its own split into training and test images is used. Another data set in
    the same layout may have other numbers of images.
    """

    name: str = "cub-200"
    size: int = 84
    train: int = 5994
    test: int = 5794

    title: ClassVar[str] = "CUB-200-2011"
    placing: ClassVar[str] = "the folder CUB_200_2011 of its archive, with images.txt, classes.txt and images/"
    folders: ClassVar[tuple[str, ...]] = ("CUB_200_2011", "CUB_200_2011/CUB_200_2011", "cub-200")

    def listing(self, folder: Path) -> Listing:
        """The images of `images.txt` in its order, by the split of the data set."""
        classes = _numbered(folder / "classes.txt")
        numbers = {number: label for label, number in enumerate(classes)}
        labels, parts = (_numbered(folder / f"{name}.txt") for name in ("image_class_labels", "train_test_split"))
        train: list[LabelledFile] = []
        test: list[LabelledFile] = []
        for number, path in _numbered(folder / "images.txt").items():
            inside = PurePosixPath(path)
            if inside.is_absolute() or ".." in inside.parts:
                raise DataError(f"{folder / 'images.txt'} names {path}; paths must be inside images/")
            if labels.get(number) not in numbers:
                raise DataError(f"image {number} of {folder} has no class of classes.txt in image_class_labels.txt")
            if parts.get(number) not in ("0", "1"):
                raise DataError(f"image {number} of {folder} is neither 0 nor 1 in train_test_split.txt")
            of = train if parts[number] == "1" else test
            of.append((folder / "images" / inside, numbers[labels[number]]))
        if (len(train), len(test)) != (self.train, self.test):
            found, right = f"{len(train)} training and {len(test)} test images", f"{self.train} and {self.test}"
            raise DataError(f"{folder} has {found}; {self.title} has {right}")
        return Listing(tuple(classes.values()), train, test)


def _numbered(path: Path) -> dict[str, str]:
    """The second word of each line by the first, which must be numbers that differ."""
    rows = table(path, 2)
    found = dict(rows)
    if len(found) != len(rows) or not all(number.isdecimal() for number in found):
        raise DataError(f"{path} must begin every line with a number of its own")
    return found


@dataclass(frozen=True)
class Core50(ImageFiles):
    """CORe50: 50 objects of 10 categories, filmed in 11 sessions; about 300 frames per object and session, 128x128.

    The layout: `sSESSION/oOBJECT/*.png`. Sessions 3, 7 and 10 are for testing, as its authors propose; of these, every
    20th frame is used (one per second of film). The domain of a training image is its session. Its classes are the
    objects, or the categories.
    """

    name: str = "core50"
    size: int = 64
    categories: bool = False
    test_every: int = 20  # frames of the test sessions from one that is used to the next

    title: ClassVar[str] = "CORe50"
    placing: ClassVar[str] = "the folder core50_128x128 of its archive, with s1/o1/*.png to s11/o50/*.png"
    folders: ClassVar[tuple[str, ...]] = ("core50_128x128", "core50/core50_128x128", "core50_32x32", "core50")

    def listing(self, folder: Path) -> Listing:
        """The frames by session, object and time."""
        train: list[LabelledFile] = []
        test: list[LabelledFile] = []
        domains: list[int] = []
        for session in range(1, SESSIONS + 1):
            for number in range(len(CATEGORIES) * PER_CATEGORY):
                own = folder / f"s{session}" / f"o{number + 1}"
                frames = image_files(own) if own.is_dir() else []
                if not frames:
                    raise DataError(f"{own} has no images; {self.title} has those of every object in every session")
                label = number // PER_CATEGORY if self.categories else number
                if session in TEST_SESSIONS:
                    test += [(frame, label) for frame in frames[:: self.test_every]]
                else:
                    train += [(frame, label) for frame in frames]
                    domains += [session] * len(frames)
        objects = tuple(f"{name} {i + 1}" for name in CATEGORIES for i in range(PER_CATEGORY))
        return Listing(CATEGORIES if self.categories else objects, train, test, domains)


CORE50 = Core50()
CORE50_CATEGORIES = Core50("core50-10", categories=True)
