"""CIFAR-100 as it would be had it been compressed: through lossy WebP and back, in mosaics of 500 images.

`python benchmarks/compressed_cifar100.py FROM TO --quality 60` reads the binary version below the data root FROM and
writes it below the data root TO, for `scale-cl run --stream scifar100 --data TO`.
"""

from __future__ import annotations

import argparse
import io
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

FOLDER = "cifar-100-binary"
LABELS, SIDE, ROWS, COLUMNS = 2, 32, 25, 20
Bytes = NDArray[np.uint8]


def compressed(images: Bytes, quality: int) -> Bytes:
    """Images [500, 3, 32, 32] after one mosaic of theirs was saved and read."""
    tiles = images.reshape(ROWS, COLUMNS, 3, SIDE, SIDE).transpose(0, 3, 1, 4, 2)
    file = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(tiles.reshape(ROWS * SIDE, COLUMNS * SIDE, 3))).save(
        file, "webp", quality=quality
    )
    picture = np.asarray(Image.open(file).convert("RGB")).reshape(ROWS, SIDE, COLUMNS, SIDE, 3)
    return np.ascontiguousarray(picture.transpose(0, 2, 4, 1, 3)).reshape(images.shape)


def main() -> None:
    """Compress both parts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, metavar="FROM")
    parser.add_argument("target", type=Path, metavar="TO")
    parser.add_argument("--quality", type=int, default=60)
    asked = parser.parse_args()
    (asked.target / FOLDER).mkdir(parents=True, exist_ok=True)
    for part in ("train.bin", "test.bin"):
        whole = np.fromfile(asked.source / FOLDER / part, np.uint8).reshape(-1, LABELS + 3 * SIDE * SIDE)
        new = whole.copy()
        for start in range(0, len(whole), ROWS * COLUMNS):
            some = slice(start, start + ROWS * COLUMNS)
            images = compressed(whole[some, LABELS:].reshape(-1, 3, SIDE, SIDE), asked.quality)
            new[some, LABELS:] = images.reshape(ROWS * COLUMNS, -1)
        new.tofile(asked.target / FOLDER / part)
        print(f"{part}: a value changed by {np.abs(new[:, LABELS:] - whole[:, LABELS:].astype(np.int16)).mean():.1f}")


if __name__ == "__main__":
    main()
