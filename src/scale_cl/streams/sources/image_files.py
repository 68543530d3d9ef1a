"""Data sets of image files that users place themselves: a layout lists the files, the rest is the same for all."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Self

import torch

from scale_cl import files
from scale_cl.errors import DataError
from scale_cl.streams.images import read_images
from scale_cl.streams.sources.source import CheckedFile, Download, Progress, finding, missing
from scale_cl.streams.stream import Arrays

_LARGEST_TABLE = 64 << 20  # bytes of a text file that lists images
LabelledFile = tuple[Path, int]  # image file, index of its class


@dataclass(frozen=True)
class Listing:
    """The image files of a data set with their classes."""

    classes: tuple[str, ...]
    train: Sequence[LabelledFile]
    test: Sequence[LabelledFile]
    domains: Sequence[int] | None = None  # of each training file


@dataclass(frozen=True)
class ImageFiles(abc.ABC):
    """A data set of image files; a subclass lists the files of its layout."""

    name: str
    size: int  # height and width to which images are resized

    title: ClassVar[str]
    placing: ClassVar[str]
    folders: ClassVar[tuple[str, ...]]  # where it may lie, relative to the data root
    downloads: ClassVar[tuple[tuple[Download, ...], ...]] = ()
    embedded: ClassVar[bool] = False

    @abc.abstractmethod
    def listing(self, folder: Path) -> Listing:
        """The files in `folder`; DataError if they are not in the layout."""

    def at(self, size: int) -> Self:
        """The same data set, with images resized to `size`."""
        return replace(self, size=size)

    def present(self, root: Path) -> bool:
        """Whether one of its folders exists and is not empty."""
        return any(folder.is_dir() and any(folder.iterdir()) for folder in self._places(root))

    def read(self, root: Path, progress: Progress | None = None) -> Arrays:
        """All images, decoded and resized."""
        listed = self._listing(root)
        parts = []
        for part in (listed.train, listed.test):
            x = read_images([path for path, _ in part], (self.size, self.size), progress=progress)
            parts.append((torch.from_numpy(x), torch.tensor([label for _, label in part], dtype=torch.int64)))
        domains = None if listed.domains is None else torch.tensor(listed.domains, dtype=torch.int64)
        return Arrays(*parts[0], *parts[1], class_names=listed.classes, pixel_max=255.0, domains=domains)

    def check(self, root: Path, progress: Progress | None = None) -> list[CheckedFile]:
        """One finding per class: the number of its images and whether all can be decoded."""
        try:
            listed = self._listing(root)
        except DataError as error:
            return [CheckedFile(self.name, False, str(error))]
        findings = []
        files: list[list[Path]] = [[] for _ in listed.classes]
        for path, label in (*listed.train, *listed.test):
            files[label].append(path)
        for done, (name, own) in enumerate(zip(listed.classes, files, strict=True), 1):
            problem = None
            try:
                read_images(own, (self.size, self.size))
            except DataError as error:
                problem = str(error)
            findings.append(finding(root, Path(name), problem, f"{len(own)} images"))
            if progress is not None:
                progress(done, len(files))
        return findings

    def _listing(self, root: Path) -> Listing:
        folder = next((place for place in self._places(root) if place.is_dir()), None)
        if folder is None:
            raise missing(self, root)
        listed = self.listing(folder)
        for part, listing in (("training", listed.train), ("test", listed.test)):
            without = set(range(len(listed.classes))) - {label for _, label in listing}
            if without:
                name = listed.classes[min(without)]
                raise DataError(f"class {name} of {self.title} in {folder} has no {part} images")
        return listed

    def _places(self, root: Path) -> list[Path]:
        return [root / folder for folder in self.folders]


def table(path: Path, columns: int) -> list[list[str]]:
    """The lines of a text file with at least this many words each, cut to them; DataError if it is not one."""
    try:
        text = files.read_plain(path, _LARGEST_TABLE).decode()
    except FileNotFoundError:
        raise DataError(f"{path} is missing") from None
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 text: byte {error.start}") from None
    lines = [line.split() for line in text.splitlines() if line.strip()]
    for number, words in enumerate(lines, 1):
        if len(words) < columns:
            raise DataError(f"{path}, line {number}: it has {len(words)} words; it must have {columns}")
    return [words[:columns] for words in lines]
