"""Image files to uint8 pixels: all at once by several threads, or as rows that are read when they are needed.

An image is turned upright as its EXIF orientation says. Of an animation the first frame is read.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import struct
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image, ImageOps

from scale_cl import files
from scale_cl.errors import DataError
from scale_cl.streams.reading import Block
from scale_cl.streams.sources.source import Progress

EXTENSIONS = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"})
_MOST_PIXELS = 100_000_000  # a small file can declare an image that fills the memory
_LONGEST_SIDE = 1 << 16  # pixels; Pillow cannot resize much longer ones
_CHUNK = 64
_NAMED = 10  # at most so many broken files are named in an error
_ANIMATED = ("GIF", "PNG", "WEBP", "TIFF")  # formats that can hold several frames
_ORIENTED = ("exif", "Raw profile type exif", "xmp", "XML:com.adobe.xmp")  # where files say which side is up
_log = logging.getLogger("scale_cl")
_DECODING_ERRORS = (
    *(OSError, SyntaxError, ValueError, EOFError, LookupError, TypeError, ArithmeticError, MemoryError),
    *(NotImplementedError, struct.error),
    Image.DecompressionBombError,
    Image.DecompressionBombWarning,  # if warnings are turned into errors
)


class UndecodableError(DataError):
    """A file is not an image or is damaged."""


class WrongSizeError(DataError):
    """An image has another size than the others, and is not to be resized."""

    def __init__(self, path: str | Path, found: tuple[int, int], size: tuple[int, int]) -> None:
        """Sizes are height and width."""
        self.found = f"{path} is {found[0]} x {found[1]}"
        super().__init__(
            f"{self.found}, the first image {size[0]} x {size[1]}; "
            "give a size to which all are resized, such as stream.size=32 (in Python: size=32)"
        )


def image_files(folder: Path) -> list[Path]:
    """The image files of a folder, sorted by name."""
    return [Path(folder, name) for name, _ in image_names(folder)]


def image_names(folder: str | Path) -> list[tuple[str, int]]:
    """Names of the image files of a folder and their sizes in bytes, sorted by name."""
    with os.scandir(folder) as entries:
        found = [e for e in entries if not e.name.startswith(".") and Path(e.name).suffix.lower() in EXTENSIONS]
        return sorted((entry.name, _bytes(entry)) for entry in found)


def _bytes(entry: os.DirEntry[str]) -> int:
    try:
        return entry.stat().st_size
    except OSError:  # a link to nothing: reading it names it
        return 0


def size_of(path: str | Path) -> tuple[int, int]:
    """Height and width of an image file, upright."""
    with _opened(path) as image:
        if any(name in image.info for name in _ORIENTED):
            with contextlib.suppress(*_DECODING_ERRORS):  # an orientation that cannot be read is none
                if image.getexif().get(ExifTags.Base.Orientation, 1) >= 5:
                    return image.width, image.height
        return image.height, image.width


class ImageFiles:
    """The rows of a list of image files, decoded to [channels, height, width]."""

    sequential = False

    def __init__(self, paths: Iterable[str], size: tuple[int, int], *, channels: int = 3, resize: bool = True) -> None:
        """Images of another size are resized, or refused if `resize` is False."""
        names = [os.fsencode(path) for path in paths]
        self._names, self._ends = b"".join(names), np.cumsum([0, *map(len, names)])  # a million paths are 100 MB
        self._size, self._channels, self._resize = size, channels, resize

    def __len__(self) -> int:
        return len(self._ends) - 1

    @property
    def shape(self) -> tuple[int, ...]:
        """Channels, height, width."""
        return self._channels, *self._size

    def path(self, row: int) -> str:
        """The file of a row."""
        return os.fsdecode(self._names[self._ends[row] : self._ends[row + 1]])

    def read(self, rows: NDArray[np.int64]) -> Block:
        """Decode the files of these rows."""
        out, lost, animated = np.zeros((len(rows), *self.shape), np.uint8), {}, ""
        for i, row in enumerate(rows.tolist()):
            path = self.path(row)
            try:
                out[i], frames = _decoded(path, self._size, self._channels, self._resize)
            except DataError as error:
                lost[i] = str(error)
                continue
            animated = animated or (path if frames else "")
        remark = f"{animated} has several frames; of such files the first frame is used" if animated else ""
        return Block(out, lost, remark=remark)


def recipe(size: tuple[int, int], channels: int, *, resize: bool) -> str:
    """A description of what `read_images` does to a file, for users who preprocess images themselves."""
    mode, measures = "RGB" if channels == 3 else "grey", f"{size[0]} x {size[1]}"
    fitted = f"resized to {measures} (bilinear)" if resize else f"{measures} (height x width), not resized"
    return f"{mode}, {fitted}, channels first"


def read_images(
    paths: Sequence[str | Path],
    size: tuple[int, int],
    *,
    channels: int = 3,
    resize: bool = True,
    progress: Progress | None = None,
    unread: dict[int, DataError] | None = None,
) -> NDArray[np.uint8]:
    """All images as [N, channels, height, width]; images of another size are resized, or refused if `resize` is False.

    All files that cannot be decoded are named in one error. If `unread` is given, it receives the error of each file
    that cannot be read, and none is raised.
    """
    out = np.empty((len(paths), channels, *size), dtype=np.uint8)
    broken: dict[int, DataError] = {} if unread is None else unread
    animated = itertools.count()

    def decode(start: int) -> int:
        for i in range(start, min(start + _CHUNK, len(paths))):
            try:
                out[i], frames = _decoded(paths[i], size, channels, resize)
                if frames:
                    next(animated)
            except DataError as error:
                if unread is None and not isinstance(error, UndecodableError):
                    raise
                broken[i] = error
        return min(start + _CHUNK, len(paths))

    with ThreadPoolExecutor(max_workers=min(16, os.cpu_count() or 1)) as pool:
        try:
            for done in pool.map(decode, range(0, len(paths), _CHUNK)):
                if progress is not None:
                    progress(done, len(paths))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    if count := next(animated):
        many = "1 file has" if count == 1 else f"{count} files have"
        _log.warning("scale-cl: warning: %s several frames; the first frame is used", many)
    if len(broken) == 1 and unread is None:
        raise broken.popitem()[1]
    if broken and unread is None:
        raise UndecodableError(_named([Path(paths[i]) for i in sorted(broken)]))
    return out


def _named(broken: Sequence[Path]) -> str:
    """An error message that names several broken files."""
    try:
        folder = Path(os.path.commonpath([path.parent for path in broken]))
        names, place = [str(path.relative_to(folder)) for path in broken], f" in {folder}"
    except ValueError:  # relative and absolute paths have no common folder
        names, place = [str(path) for path in broken], ""
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    named = f"{', '.join(names[:_NAMED])}{more}"
    return f"{len(names)} images{place} cannot be decoded: {named}; remove or replace them"


def _decoded(path: str | Path, size: tuple[int, int], channels: int, resize: bool) -> tuple[NDArray[np.uint8], bool]:
    """One image as [channels, height, width], and whether the file has more frames."""
    with _opened(path) as file:
        image: Image.Image = file
        if image.mode.startswith(("I", "F")):
            raise DataError(f"{path} has pixels of more than 8 bits (mode {image.mode}); give 8 bits per channel")
        try:
            frames = image.format in _ANIMATED and bool(getattr(image, "is_animated", False))
            if "transparency" in image.info:  # a palette with transparency must be converted through RGBA
                image = image.convert("RGBA")
            picture = image.convert("RGB" if channels == 3 else "L")
        except _DECODING_ERRORS as error:
            raise UndecodableError(f"{path} cannot be decoded ({error}): the file is damaged") from error
    if any(name in picture.info for name in _ORIENTED):
        with contextlib.suppress(*_DECODING_ERRORS):  # an orientation that cannot be read is none
            picture = ImageOps.exif_transpose(picture)
    if (picture.height, picture.width) != size:
        if not resize:
            raise WrongSizeError(path, (picture.height, picture.width), size)
        picture = picture.resize((size[1], size[0]), Image.Resampling.BILINEAR)
    pixels = np.asarray(picture, dtype=np.uint8)
    return pixels.reshape(*size, channels).transpose(2, 0, 1), frames


def _opened(path: str | Path) -> Image.Image:
    try:
        files.check_plain(path)
        image = Image.open(path)
    except FileNotFoundError as error:
        raise DataError(f"{path} is missing") from error
    except _DECODING_ERRORS as error:
        raise UndecodableError(f"{path} is not an image that can be read: replace or remove it") from error
    if image.width * image.height > _MOST_PIXELS or max(image.size) > _LONGEST_SIDE:
        image.close()
        most = f"at most {_MOST_PIXELS}, and {_LONGEST_SIDE} a side,"
        raise DataError(f"{path} claims {image.height} x {image.width} pixels; {most} are read")
    return image
