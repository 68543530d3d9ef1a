"""CORe50: 50 objects of 10 categories, filmed in 11 sessions; about 300 frames per object and session, 128x128.

The layout of the archive: `sSESSION/oOBJECT/*.png`. Sessions 3, 7 and 10 are for testing, as its authors propose; of
these, every 20th frame is used (one per second of film). The domain of a training image is its session.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from scale_cl.errors import DataError
from scale_cl.streams.images import image_files
from scale_cl.streams.sources.image_files import ImageFiles, LabelledFile, Listing

CATEGORIES = (
    *("plug adapter", "mobile phone", "scissors", "light bulb", "can"),
    *("glasses", "ball", "marker", "cup", "remote control"),
)
PER_CATEGORY = 5  # objects: o1 to o5 are plug adapters, o6 to o10 mobile phones, and so on
SESSIONS = 11
TEST_SESSIONS = (3, 7, 10)


@dataclass(frozen=True)
class Core50(ImageFiles):
    """The data set with its 50 objects as classes, or with the 10 categories."""

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
