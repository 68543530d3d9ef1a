"""Mutated files, each a function of its format and a seed: success or an error of scale-cl, in bounded time and memory.

What was tried is counted by the stage that it reached and recorded in `.soak/`, so that a long run can be stopped and
continued, and its counts add up.
"""

from __future__ import annotations

import contextlib
import json
import resource
import signal
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random
from types import FrameType

from scale_cl import files
from scale_cl.errors import ScaleClError
from tests.fuzzing.formats import FORMATS, FileFormat

RECORDS = Path(__file__).parents[2] / ".soak"
_SECONDS = 30  # that one input may take on a busy machine
_MEMORY = 640 << 20  # bytes that one input may add to the process
_LONGEST = 12_000  # characters of a message; a path of 5,000 may be named twice
_RECORDED = 1000  # inputs between two records


class TooSlow(BaseException):
    """An input took too long; nothing may catch it."""


def once(kind: FileFormat, name: str, seed: int) -> str:
    """Try the input of this seed; "right checksum, loaded, refused", say. Raises whatever is not an error of ours."""
    right = kind.write(Random(f"{name} {seed}"))
    reached, end = "opened", "accepted"
    signal.setitimer(signal.ITIMER_REAL, _SECONDS)
    try:
        for stage in kind.use():
            reached = stage
    except ScaleClError as error:
        end = _refusal(str(error))
    except BaseException as error:
        error.add_note(f"the input is {name} {seed}")
        raise
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    assert end in ("accepted", "refused"), f"{name} {seed} was {end}"
    return f"{'right checksum, ' if right else ''}{reached}, {end}"


def _refusal(message: str) -> str:
    """How an input was refused; for want of memory means that too much was asked for before anybody looked."""
    if not message.isprintable():
        return "refused in an unprintable way"
    if len(message) > _LONGEST:
        return "refused at great length"
    return "refused for want of memory" if "alloc" in message or "MemoryError" in message else "refused"


def tried(name: str, folder: Path, first: int, count: int) -> Counter[str]:
    """Try the inputs of seeds `first` and on; how many had which end."""
    with bounded():
        kind = FORMATS[name](folder)
        return Counter(once(kind, name, seed) for seed in range(first, first + count))


def soaked(name: str, folder: Path, target: int) -> Counter[str]:
    """Go on from what is recorded until `target` inputs of a format were tried; the counts of all."""
    record = RECORDS / f"fuzzing-{name}.json"
    counts: Counter[str] = Counter(json.loads(record.read_text()) if record.exists() else {})
    with bounded():
        kind = FORMATS[name](folder)
        while (done := counts.total()) < target:
            counts.update(once(kind, name, seed) for seed in range(done, min(done + _RECORDED, target)))
            files.write_json(record, dict(counts))
    return counts


@contextlib.contextmanager
def bounded() -> Iterator[None]:
    """Limits on the memory of this process and the time of one input; warnings of decoders are not our subject."""

    def too_slow(number: int, frame: FrameType | None) -> None:
        raise TooSlow(f"{_SECONDS} s were not enough")

    earlier = signal.signal(signal.SIGALRM, too_slow)
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + _MEMORY, hard))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        signal.signal(signal.SIGALRM, earlier)
