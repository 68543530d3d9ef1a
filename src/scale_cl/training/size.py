"""Whether a run will fit, said before it begins: stream, memories and models against what the device has free."""

from __future__ import annotations

import math
from pathlib import Path

import torch

from scale_cl.errors import ConfigError
from scale_cl.streams import Stream
from scale_cl.training.config import Config

_COPIES = 2  # a memory that grows by doubling is there twice for a moment
_UNITS = ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))


def needed(config: Config, stream: Stream, *, on_gpu: bool, learners: int) -> dict[str, int]:
    """Bytes that a run of so many learners at once takes at least, beyond what it has taken already, by purpose."""
    arrays = stream.arrays
    held = (arrays.x_train, arrays.y_train, arrays.x_test, arrays.y_test)
    parts = {"stream": sum(t.nbytes for t in held) if on_gpu else 0}
    x = arrays.x_train
    sample = math.prod(x.shape[1:]) * x.dtype.itemsize
    slots = int(getattr(config.learner, "memory", 0))
    parts["memory"] = _COPIES * learners * slots * len(stream) * sample
    # a task's own data, permuted or gathered, is made as it begins
    parts["tasks"] = learners * max(len(task.train) + len(task.test) for task in stream.tasks) * sample
    return parts


def check_fits(config: Config, stream: Stream, device: torch.device, *, learners: int) -> None:
    """Raise ConfigError if a run of so many learners at once cannot fit; nothing if that is not known."""
    free = free_bytes(device)
    parts = needed(config, stream, on_gpu=device.type == "cuda", learners=learners)
    total = sum(parts.values())
    if free is None or total <= free:
        return
    listed = ", ".join(f"{name} {words(size)}" for name, size in parts.items() if size)
    advice = "fewer memory slots (learner.memory)" if parts["memory"] > total / 2 else "fewer seeds at once"
    raise ConfigError(
        f"{learners} learner{'s' if learners > 1 else ''} on {stream.name} need {words(total)} ({listed}), "
        f"but {device} has {words(free)} free; take {advice}"
    )


def free_bytes(device: torch.device) -> int | None:
    """What the device has free; None where nobody says."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    known = [n for n in (_available(), _left_in_group()) if n is not None]
    return min(known) if known else None


def words(size: int) -> str:
    """`1.5 GiB`."""
    unit, name = next(((u, n) for u, n in _UNITS if size >= u), (1, "bytes"))
    return f"{size / unit:.1f} {name}" if unit > 1 else f"{size} bytes"


def _available() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, ValueError, StopIteration):
        return None


def _left_in_group(folder: Path = Path("/sys/fs/cgroup")) -> int | None:
    """What a container may still take."""
    try:
        most, now = ((folder / name).read_text().strip() for name in ("memory.max", "memory.current"))
        return max(0, int(most) - int(now))
    except (OSError, ValueError):  # no such files, or "max": no limit
        return None
