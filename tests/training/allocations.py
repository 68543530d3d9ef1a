"""What torch really allocates while something is done: every allocation and release on the CPU, by its profiler."""

from __future__ import annotations

import gc
from collections.abc import Callable

import torch
from torch.profiler import ProfilerActivity, profile


def peak_bytes(work: Callable[[], object]) -> int:
    """The most that was allocated at once, beyond what there was before."""
    gc.collect()  # what earlier work has left is not to be released meanwhile
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as watched:
        work()
    assert watched.profiler is not None
    events = watched.profiler.kineto_results.events()
    on_cpu = torch.autograd.DeviceType.CPU  # type: ignore[attr-defined]
    changes = sorted((e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]" and e.device_type() == on_cpu)
    now = most = 0
    for _, size in changes:
        now += size
        most = max(most, now)
    return most
