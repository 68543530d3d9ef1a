"""Whether a run will fit, said before it begins: stream, memories and models against what the device has free."""

from __future__ import annotations

import logging
import math
from pathlib import Path

import torch

from scale_cl.errors import ConfigError
from scale_cl.streams import Stream
from scale_cl.training.config import Config
from scale_cl.training.footprint import Work, footprint, memory_bytes

_PROCESS = 200 * 2**20  # bytes of a process of its own: Python, torch and what they load
_LIBRARIES = 64 * 2**20  # bytes that cuBLAS and cuDNN work in, for each CUDA stream
_UNITS = ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))
_log = logging.getLogger("scale_cl")


def needed(
    config: Config, stream: Stream, *, on_gpu: bool, learners: int, apart: bool = False, whole: bool = True
) -> dict[str, int]:
    """Bytes that a run of so many learners at once takes, beyond what it has taken already, by purpose.

    Learners that run `apart` have a process and a copy of the stream each. Without `whole`, only what is there for
    certain and needs no model to be known: stream, tasks and memory.
    """
    arrays = stream.arrays
    data = sum(t.nbytes for t in (arrays.x_train, arrays.y_train, arrays.x_test, arrays.y_test))
    sample = math.prod(arrays.x_train.shape[1:]) * arrays.x_train.dtype.itemsize
    work = work_of(config, stream, on_gpu=on_gpu)
    parts = {
        "processes": learners * _PROCESS if apart else 0,
        "stream": data if on_gpu else learners * data if apart else 0,
        # a task's own data, permuted or gathered, is made as it begins
        "tasks": learners * max(len(task.train) + len(task.test) for task in stream.tasks) * sample,
        "memory": learners * memory_bytes(config.learner, work),
    }
    if not whole:
        return parts
    one = footprint(config.learner_name, config.learner, work)
    comes_and_goes = {"step": one.step, "evaluation": one.evaluation, "checkpoint": one.checkpoint}
    if on_gpu and config.run.capture:  # a recording keeps its own room
        comes_and_goes["step"] += comes_and_goes.pop("evaluation")
    largest = max(comes_and_goes, key=comes_and_goes.__getitem__)
    parts["model"], parts["copies"] = learners * one.model, learners * one.copies
    parts[largest] = learners * comes_and_goes[largest]
    parts["libraries"] = learners * _LIBRARIES if on_gpu else 0
    return parts


def work_of(config: Config, stream: Stream, *, on_gpu: bool) -> Work:
    """What each learner of a run is to be used for."""
    classes = tuple(task.info.classes for task in stream.tasks)
    tested = max(len(task.test) for task in stream.tasks)
    batch = min(config.run.batch_size, max(len(task.train) for task in stream.tasks))
    return Work(stream.spec, classes, batch, tested, on_gpu)


def check_fits(config: Config, stream: Stream, device: torch.device, *, learners: int, apart: bool = False) -> None:
    """Raise ConfigError if a run of so many learners at once will not fit; nothing if that is not known."""
    free = free_bytes(device)
    if free is None:
        return
    on_gpu = device.type == "cuda"
    parts = needed(config, stream, on_gpu=on_gpu, learners=learners, apart=apart, whole=False)
    if sum(parts.values()) <= free:  # else the model need not be looked at, nor could it be built around such a memory
        try:
            parts = needed(config, stream, on_gpu=on_gpu, learners=learners, apart=apart)
        except Exception as error:  # a guard that cannot count is no reason for a run to fail
            _log.debug("the size of %s is not known: %s", config.learner_name, error)
    total = sum(parts.values())
    if total <= free:
        return
    listed = ", ".join(f"{name} {words(size)}" for name, size in _by_size(parts))
    raise ConfigError(
        f"{learners} learner{'s' if learners > 1 else ''} on {stream.name} need about {words(total)} ({listed}), "
        f"but {device} has {words(free)} free; take {_advice(config, parts, on_gpu=on_gpu, learners=learners)}"
    )


def _by_size(parts: dict[str, int]) -> list[tuple[str, int]]:
    return sorted(((name, size) for name, size in parts.items() if size), key=lambda part: -part[1])


def _advice(config: Config, parts: dict[str, int], *, on_gpu: bool, learners: int) -> str:
    """What to change first, by what takes most, and that less at once is less."""
    most = _by_size(parts)[0][0]
    own = config.stream.own_data is not None
    smaller = "smaller images (stream.size)" if own else "another backbone (learner.backbone)"
    first = {
        "memory": "fewer memory slots (learner.memory)",
        "step": "smaller batches (run.batch_size)",
        "evaluation": smaller,
        "model": smaller,
        "copies": "fewer tasks (stream.tasks)",
        "checkpoint": "fewer memory slots (learner.memory)" if parts["memory"] else "fewer tasks (stream.tasks)",
    }.get(most, "")
    if most == "step" and hasattr(config.learner, "replay"):
        first = "smaller batches (run.batch_size, learner.replay)"
    fewer = "fewer seeds at once (run.seeds)" if on_gpu else "fewer processes (run.processes)"
    ways = [way for way in (first, fewer if learners > 1 else "", "run.device=cpu" if on_gpu else "") if way]
    return " or ".join(ways) or "fewer tasks (stream.tasks)"


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
