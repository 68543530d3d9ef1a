"""A package with streams of its own, installed into a folder as pip would leave it."""

from __future__ import annotations

from pathlib import Path

CODE = '''
"""Streams for tests."""

import numpy as np

from scale_cl import streams


def two_halves(seed: int, samples: int = 40) -> streams.Stream:
    """Two tasks of two classes each: which half of a vector is brighter.

    More text, which is not listed.
    """
    tasks = []
    for number in range(2):
        draw = np.random.default_rng((seed, number))
        y = np.arange(samples) % 2
        x = draw.normal(size=(samples, 6)).astype(np.float32)
        x[np.arange(samples), 3 * y + number] += 4
        tasks.append((x, y, x, y))
    return streams.from_arrays(tasks, seed=seed, name="another name")


def no_stream(seed: int) -> list[int]:
    return [seed]


def demanding(seed: int, size: int) -> streams.Stream:
    return two_halves(seed)


def failing(seed: int) -> streams.Stream:
    raise RuntimeError("no\\ndata")


number = 7
'''


def install(folder: Path, entry_points: dict[str, str], package: str = "halves") -> Path:
    """Install the package into `folder`, with these entry points of the group `scale_cl.streams`."""
    info = folder / f"{package}-1.0.dist-info"
    info.mkdir(parents=True)
    (folder / f"{package}.py").write_text(CODE)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    lines = [f"{name} = {value}" for name, value in entry_points.items()]
    (info / "entry_points.txt").write_text("\n".join(["[scale_cl.streams]", *lines, ""]))
    return folder
