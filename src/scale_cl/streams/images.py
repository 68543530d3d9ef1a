"""Reads image files into one uint8 array with several threads."""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from scale_cl.errors import DataError
from scale_cl.streams.sources.source import Progress

EXTENSIONS = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"})
_MOST_PIXELS = 100_000_000  # a small file can declare an image that fills the memory
_CHUNK = 64
_NAMED = 10  # at most so many broken files are named in an error
_DECODING_ERRORS = (
    *(OSError, SyntaxError, ValueError, EOFError, LookupError, TypeError, ArithmeticError, MemoryError),
    *(NotImplementedError, struct.error),
    Image.DecompressionBombError,
    Image.DecompressionBombWarning,  # if warnings are turned into errors
)


class UndecodableError(DataError):
    """A file is not an image or is damaged."""


def image_files(folder: Path) -> list[Path]:
    """The image files of a folder, sorted by name."""
    return sorted(p for p in folder.iterdir() if p.suffix.lower() in EXTENSIONS and not p.name.startswith("."))


def size_of(path: Path) -> tuple[int, int]:
    """Height and width of an image file, from its header."""
    with _opened(path) as image:
        return image.height, image.width


def recipe(size: tuple[int, int], channels: int, *, resize: bool) -> str:
    """A description of what `read_images` does to a file, for users who preprocess images themselves."""
    mode, measures = "RGB" if channels == 3 else "grey", f"{size[0]} x {size[1]}"
    fitted = f"resized to {measures} (bilinear)" if resize else f"{measures} (height x width), not resized"
    return f"{mode}, {fitted}, channels first"


def read_images(
    paths: Sequence[Path],
    size: tuple[int, int],
    *,
    channels: int = 3,
    resize: bool = True,
    progress: Progress | None = None,
) -> NDArray[np.uint8]:
    """All images as [N, channels, height, width]; images of another size are resized, or refused if `resize` is False.

    All files that cannot be decoded are named in one error.
    """
    out = np.empty((len(paths), channels, *size), dtype=np.uint8)
    broken: dict[int, UndecodableError] = {}

    def decode(start: int) -> int:
        for i in range(start, min(start + _CHUNK, len(paths))):
            try:
                out[i] = _decoded(paths[i], size, channels, resize)
            except UndecodableError as error:
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
    if len(broken) == 1:
        raise broken.popitem()[1]
    if broken:
        raise UndecodableError(_named([paths[i] for i in sorted(broken)]))
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


def _decoded(path: Path, size: tuple[int, int], channels: int, resize: bool) -> NDArray[np.uint8]:
    """One image as [channels, height, width]."""
    with _opened(path) as file:
        image: Image.Image = file
        if (image.height, image.width) != size and not resize:
            raise DataError(
                f"{path} is {image.height} x {image.width}, the first image {size[0]} x {size[1]}; "
                "give a size to which all are resized, such as stream.size=32 (in Python: size=32)"
            )
        if image.mode.startswith(("I", "F")):
            raise DataError(f"{path} has pixels of more than 8 bits (mode {image.mode}); give 8 bits per channel")
        try:
            if "transparency" in image.info:  # a palette with transparency must be converted through RGBA
                image = image.convert("RGBA")
            picture = image.convert("RGB" if channels == 3 else "L")
        except _DECODING_ERRORS as error:
            raise UndecodableError(f"{path} cannot be decoded ({error}): the file is damaged") from error
    if (picture.height, picture.width) != size:
        picture = picture.resize((size[1], size[0]), Image.Resampling.BILINEAR)
    pixels = np.asarray(picture, dtype=np.uint8)
    return pixels.reshape(*size, channels).transpose(2, 0, 1)


def _opened(path: Path) -> Image.Image:
    try:
        image = Image.open(path)
    except FileNotFoundError as error:
        raise DataError(f"{path} is missing") from error
    except _DECODING_ERRORS as error:
        raise UndecodableError(f"{path} is not an image that can be read: replace or remove it") from error
    if image.width * image.height > _MOST_PIXELS:
        image.close()
        raise DataError(f"{path} claims {image.height} x {image.width} pixels; at most {_MOST_PIXELS} are read")
    return image
