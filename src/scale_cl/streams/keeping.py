"""Whether data stays in memory or is read as it comes: free memory against the size of the decoded inputs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from scale_cl.errors import StreamError
from scale_cl.streams.reading import OnError, Readers, RowSource

Keep = Literal["auto", "memory", "disk"]
SHARE = 0.5  # of free memory that decoded inputs may take: beside all of them, those of a task are gathered


@dataclass(frozen=True)
class Reading:
    """How data is read that may be larger than memory."""

    keep: Keep | int = "auto"  # a number: in memory if the decoded inputs take at most so many bytes
    workers: int | None = None
    on_error: OnError = "stop"
    window: int | None = None

    def __post_init__(self) -> None:
        """Check the values."""
        if self.keep not in ("auto", "memory", "disk") and not isinstance(self.keep, int):
            raise StreamError(f"keep is {self.keep!r}; it must be 'auto', 'memory', 'disk' or a number of bytes")
        if self.window is not None and self.window < 1:
            raise StreamError(f"window is {self.window}; it must be at least 1, or None")

    def in_memory(self, size: int) -> bool:
        """Whether inputs of `size` bytes are kept in memory.

        If unreadable samples are skipped, they are not, unless that is asked for: which samples a batch has must not
        depend on the memory of the machine.
        """
        if self.keep in ("memory", "disk"):
            return self.keep == "memory"
        return self.on_error == "stop" and size <= (self.keep if isinstance(self.keep, int) else room())

    def readers(self, source: RowSource) -> Readers:
        """Readers of a source, with these settings."""
        return Readers(source, workers=self.workers, on_error=self.on_error)


def room(device: torch.device | None = None, *, copies: int = 1) -> int:
    """Bytes that decoded inputs may take to be kept in memory, in so many processes, for a learner on `device`."""
    free = free_memory()
    host = 2**62 if free is None else int(SHARE * free) // copies
    if device is None or device.type != "cuda":
        return host
    return min(host, int(SHARE * torch.cuda.mem_get_info(device)[0]))


def free_memory() -> int | None:
    """Bytes of memory that this process may still take; None if that is not known."""
    known = [n for n in (_available(), _left_in_group(), _left_of_limit()) if n is not None]
    return min(known) if known else None


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


def _left_of_limit() -> int | None:
    """What this process may still take of its limit (ulimit -v)."""
    try:
        import resource

        most = resource.getrlimit(resource.RLIMIT_AS)[0]
        taken = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
    except (ImportError, OSError, ValueError):  # another system
        return None
    return None if most == resource.RLIM_INFINITY else max(0, most - taken)
