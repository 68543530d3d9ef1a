"""Random draws of a stream: a generator of its own for each seed, task and purpose.

Because no generator serves two tasks, the data of task k does not depend on how many tasks are built.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from scale_cl.errors import StreamError

_PURPOSES = {"train": 0, "test": 1, "permutation": 2, "held out": 3}
Purpose = Literal["train", "test", "permutation", "held out"]


def generator(seed: int, task: int, purpose: Purpose) -> np.random.Generator:
    """The generator for one purpose in one task of the stream with this seed."""
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
        raise StreamError(f"seed is {seed!r}; it must be an integer of at least 0")
    sequence = np.random.SeedSequence(int(seed), spawn_key=(task, _PURPOSES[purpose]))
    return np.random.Generator(np.random.PCG64(sequence))


def draw(count: int, of: int, seed: int, task: int, purpose: Purpose) -> Tensor:
    """`count` different indices below `of`, in random order."""
    return as_rows(generator(seed, task, purpose).permutation(of)[:count])


def shuffled(rows: NDArray[np.int64], seed: int, task: int) -> Tensor:
    """`rows` in the order in which they arrive."""
    return as_rows(generator(seed, task, "train").permutation(rows))


def as_rows(rows: NDArray[np.int64]) -> Tensor:
    """Row numbers as the int64 tensor that a task holds."""
    return torch.from_numpy(np.array(rows, dtype=np.int64))
