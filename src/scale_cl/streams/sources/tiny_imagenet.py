"""Tiny-ImageNet: 200 classes of 64x64 colour images, 500 for training and 50 for testing per class.

The layout of the archive: `wnids.txt`, `train/WNID/images/*.JPEG`, `val/images/*.JPEG` with `val/val_annotations.txt`.
The labels of its test folder are not public, so `val` is for testing, as is usual. Class folders without `images/`, and
a `val` that was sorted into class folders, are read as well. Classes are numbered by WordNet id.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from scale_cl.errors import DataError
from scale_cl.streams.images import image_files
from scale_cl.streams.sources.image_files import ImageFiles, LabelledFile, Listing, table


@dataclass(frozen=True)
class TinyImageNet(ImageFiles):
    """The data set, or one in the same layout with other numbers of classes and images."""

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
