"""Timing of short calls: rounds of blocks that take turns, so that a busy machine slows all of them alike."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

_PEAK = Path("/proc/self/clear_refs")


@dataclass(frozen=True)
class Clock:
    """How time is told on a device: a CPU's own time where one thread does all the work, the wall's elsewhere."""

    device: torch.device
    threads: int

    @property
    def kind(self) -> str:
        """`cpu` or `wall`."""
        return "cpu" if self.device.type == "cpu" and self.threads == 1 else "wall"

    def now(self) -> float:
        """Seconds; waits for the device."""
        self.wait()
        return time.thread_time() if self.kind == "cpu" else time.perf_counter()

    def wait(self) -> None:
        """Until the device has done all that was asked of it."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def medians(self, calls: Mapping[str, Callable[[], object]], *, rounds: int, block: int) -> dict[str, float]:
        """Seconds of each call: the median over rounds of a block's mean; a first round is not counted."""
        seconds: dict[str, list[float]] = {name: [] for name in calls}
        for counted in [False] + [True] * rounds:
            for name, call in calls.items():
                began = self.now()
                for _ in range(block):
                    call()
                taken = (self.now() - began) / block
                if counted:
                    seconds[name].append(taken)
        return {name: statistics.median(each) for name, each in seconds.items()}

    # ---- memory ------------------------------------------------------------------------------------------------------

    def forget_peak(self) -> None:
        """Begin to measure the peak of memory anew."""
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(self.device)
            return
        with contextlib.suppress(OSError):  # not Linux, or not allowed: the peak is then that of the whole process
            _PEAK.write_text("5")

    def peak_bytes(self) -> int | None:
        """Most memory in use since then: of the GPU's allocator, or of the process; None where that is not known."""
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device)
        try:
            lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
        except OSError:
            return None
        return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")), None)
