"""scikit-learn's handwritten digits: 1,797 images, 8x8, pixels 0 to 16; no download."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from scale_cl.streams.sources.source import Download, Finding, Progress
from scale_cl.streams.stream import Arrays

TEST_IMAGES = 500


@dataclass(frozen=True)
class Digits:
    """The data set that comes with scikit-learn."""

    name: str = "digits"
    title: str = "scikit-learn digits"
    downloads: tuple[tuple[Download, ...], ...] = ()
    placing: str = "digits comes with scikit-learn: there is nothing to download or to place"
    embedded: bool = True

    def present(self, root: Path) -> bool:
        """Always."""
        return True

    def read(self, root: Path, progress: Progress | None = None) -> Arrays:
        """All images; the same 500 are test images for every seed."""
        from sklearn.datasets import load_digits

        bunch = load_digits()
        x = torch.from_numpy(bunch.images.astype(np.uint8)).unsqueeze(1)
        y = torch.from_numpy(bunch.target.astype(np.int64))
        order = torch.from_numpy(np.random.RandomState(0).permutation(len(x)).astype(np.int64))
        test, train = order[:TEST_IMAGES], order[TEST_IMAGES:]
        return Arrays(x[train], y[train], x[test], y[test], tuple("0123456789"), pixel_max=16.0)

    def check(self, root: Path, progress: Progress | None = None) -> list[Finding]:
        """One finding: the data is part of scikit-learn."""
        arrays = self.read(root)
        return [Finding("digits", True, f"{len(arrays.x_train) + len(arrays.x_test)} images, part of scikit-learn")]
