"""CUB-200-2011: 200 species of birds, 5,994 training and 5,794 test images of many sizes, resized to a square.

The layout of the archive: `images.txt`, `image_class_labels.txt`, `train_test_split.txt` and `classes.txt`, which refer
to each other by number, and `images/CLASS/*.jpg`. Its own split into training and test images is used.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import ClassVar

from scale_cl.errors import DataError
from scale_cl.streams.sources.image_files import ImageFiles, LabelledFile, Listing, table


@dataclass(frozen=True)
class Cub(ImageFiles):
    """The data set, or one in the same layout with other numbers of images."""

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
