"""The streams that a learner is trained on, one after another: known again by a fingerprint, and joined to one stream.

A run that is taught more tasks goes on as if its stream had been longer. The earlier tasks are still tested, as long as
their data is there.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from scale_cl.errors import DataError, ScaleClError, StreamError
from scale_cl.results import StreamTasks
from scale_cl.streams import InputSpec, Stream, Task
from scale_cl.streams.reading import LazyRows, ReadAhead
from scale_cl.streams.stream import Arrays, Arrival
from scale_cl.training import checkpoint
from scale_cl.training.checkpoint import LearntStream, LearntTask
from scale_cl.training.config import StreamSettings

_log = logging.getLogger("scale_cl")


def fingerprint(stream: Stream) -> str:
    """A checksum of the tasks: their names, the order of arrival, the labels and the permutations.

    Of the inputs it covers what is known without reading all of them: the names and sizes of their files, or else the
    first 100. A stream draws all its random numbers from its seed when it is built, so a position in it needs no
    random state. Of joined streams it covers the last.
    """
    if isinstance(stream, JoinedStream):
        return fingerprint(stream.last)
    sums = hashlib.sha256(json.dumps([stream.name, stream.scenario, stream.seed, list(stream.spec.shape)]).encode())
    sums.update(_inputs(stream))
    for task in stream.tasks:
        sums.update(json.dumps([task.name, list(task.classes)]).encode())
        for part in (task.train, task.test, task.permutation, stream.train_labels[task.train]):
            sums.update(b"-" if part is None else part.cpu().numpy().tobytes())
        if task.origin is not None:
            sums.update(task.origin.cpu().numpy().tobytes())
    return sums.hexdigest()


def _inputs(stream: Stream) -> bytes:
    x, rows = stream.arrays.x_train, stream.tasks[0].train[:100]
    if stream.arrays.files:
        return stream.arrays.files.encode()
    return (x.peek(rows) if isinstance(x, LazyRows) else x[rows]).cpu().numpy().tobytes()


def learnt_streams(stream: Stream, here: str | None) -> tuple[LearntStream, ...]:
    """What has to be known of the stream, and of those before it, when its data is gone; `here`: see `LearntStream`."""
    before = stream.before if isinstance(stream, JoinedStream) else ()
    own = stream.tasks[sum(len(one.tasks) for one in before) :]
    tasks = tuple(LearntTask(task.name, task.classes, len(task.train)) for task in own)
    name = stream.last.name if isinstance(stream, JoinedStream) else stream.name
    return (*before, LearntStream(name, fingerprint(stream), here, tasks))


def stream_tasks(stream: Stream) -> tuple[StreamTasks, ...]:
    """The streams that were joined, each with its number of tasks; nothing if it is a single one."""
    if not isinstance(stream, JoinedStream):
        return ()
    return (
        *(StreamTasks(one.name, len(one.tasks)) for one in stream.before),
        StreamTasks(stream.last.name, len(stream.last)),
    )


@dataclass(frozen=True, eq=False)
class JoinedStream(Stream):
    """Streams one after another; `arrays` and labels are those of the last, which keeps the others' device and type.

    A task whose data is gone has no test samples, and as many training samples as it had, which cannot be read.
    """

    parts: tuple[Stream | None, ...] = ()  # in order; None: its data is gone. The last is there
    before: tuple[LearntStream, ...] = ()  # what is known of all but the last

    @property
    def last(self) -> Stream:
        """The newest stream."""
        assert self.parts[-1] is not None
        return self.parts[-1]

    def sources(self) -> list[Arrays]:
        """All arrays behind the stream."""
        return [arrays for part in self.parts if part is not None for arrays in part.sources()]

    def _place(self, k: int) -> tuple[Stream | None, int]:
        """The part that task `k` belongs to, and its number there."""
        for part, known in zip(self.parts, self.before, strict=False):
            if k < len(known.tasks):
                return part, k
            k -= len(known.tasks)
        return self.last, k

    def _there(self, k: int) -> tuple[Stream, int]:
        part, number = self._place(k)
        if part is None:
            raise StreamError(f"the data of task {self.tasks[k].name!r} is gone")
        return part, number

    def origin(self, k: int) -> Tensor:
        """The number of the task that each training sample of stage `k` belongs to."""
        part, number = self._there(k)
        return part.origin(number) + (k - number)

    def train_data(self, k: int) -> tuple[Tensor, Tensor]:
        """All training inputs and head labels of stage `k`."""
        part, number = self._there(k)
        return part.train_data(number)

    def test_data(self, k: int) -> tuple[Tensor, Tensor]:
        """All test inputs and head labels of task `k`."""
        part, number = self._there(k)
        return part.test_data(number)

    def arrival(self, k: int, device: torch.device) -> Arrival | ReadAhead:
        """The training samples of task `k` in order of arrival."""
        part, number = self._there(k)
        return part.arrival(number, device)

    def test_batches(self, k: int, size: int, device: torch.device) -> Iterator[tuple[Tensor, Tensor]]:
        """Test inputs and head labels of task `k`, at most `size` samples at a time."""
        part, number = self._there(k)
        return part.test_batches(number, size, device)

    def test_sample(self, k: int, drawn: Tensor, device: torch.device) -> tuple[Tensor, Tensor]:
        """Some test inputs and head labels of task `k`, by their place in its test set."""
        part, number = self._there(k)
        return part.test_sample(number, drawn, device)

    def to(self, device: torch.device | str) -> Stream:
        """This stream with its data on `device`."""
        parts = [None if part is None else part.to(device) for part in self.parts]
        return _over(self, parts)


Build = Callable[[StreamSettings, Path | None], Stream]
"""Makes a stream; the path is where a relative one begins, if not here."""


def after_earlier(
    last: Stream, before: Sequence[StreamSettings], build: Build, folder: Path | None, *, warn: bool = True
) -> JoinedStream:
    """The stream joined to those before it.

    Args:
        last: the newest.
        before: the settings of those before it, in order.
        build: makes one of them.
        folder: where the checkpoints of a learner are that has learnt these; their data may be gone. None: it has not.
        warn: say of which streams the data is gone.
    """
    saved = None
    if folder is not None and checkpoint.found(folder):
        saved = checkpoint.newest_good(folder, lambda _, found: found, warn=False)
    if folder is None or saved is None:
        earlier = [build(settings, None) for settings in before]
        known: tuple[LearntStream, ...] = ()
        for part in earlier:
            known = learnt_streams(joined(part, [None] * len(known), known, part.spec) if known else part, None)
        return joined(last, earlier, known)
    there: list[Stream | None] = []
    for settings, learnt in zip(before, saved.streams, strict=False):
        try:
            there.append(_found_again(settings, learnt, build, folder.parents[1]))
        except ScaleClError as error:
            there.append(None)
            if warn:
                _log.warning("scale-cl: warning: the tasks of %s are not tested any more: %s", learnt.name, error)
    return joined(last, there, saved.streams[: len(before)], saved.model.spec)


def _found_again(settings: StreamSettings, learnt: LearntStream, build: Build, directory: Path) -> Stream:
    """A stream that was learnt earlier, by the run in `directory`; ScaleClError if its data is gone."""
    own, base = settings.own_data, None
    if own is not None and learnt.here is not None and not own.path.exists():
        there = directory / learnt.here
        base = there if replace(own, base=there).path.exists() else None
    stream = build(settings, base)
    if learnt.data != fingerprint(stream):
        raise DataError(f"{settings.name} has other data now")
    return stream


def joined(
    last: Stream, earlier: Sequence[Stream | None], before: Sequence[LearntStream], spec: InputSpec | None = None
) -> JoinedStream:
    """The streams one after another; StreamError in one line if the last does not go on where the others end.

    Args:
        last: the newest.
        earlier: those before it; None if their data is gone.
        before: what is known of these.
        spec: what the learner was made for, if it was made already.
    """
    _check_inputs(last, spec or next(part.spec for part in earlier if part is not None))
    known = [task for one in before for task in one.tasks]
    if twice := {task.name for task in known} & {task.name for task in last.tasks}:
        raise StreamError(
            f"{last.name} has a task {min(twice)!r}, and a task of that name was learnt already; rename the new one"
        )
    if last.scenario == "domain" and known[0].classes != last.tasks[0].classes:
        raise StreamError(
            f"the classes of {last.name} ({_listed(last.tasks[0].classes)}) are not those learnt "
            f"({_listed(known[0].classes)}); in scenario domain all tasks have the same"
        )
    parts: list[Stream | None] = []
    heads: tuple[str, ...] = ()  # scenario class: all classes, in order of arrival
    for part, tasks in zip((*earlier, last), [one.tasks for one in before] + [()], strict=True):
        if part is not None and part.scenario == "class":
            part = _continued(part, heads)
        heads = tasks[-1].classes if tasks else heads
        parts.append(part)
    absent = torch.zeros(0, dtype=torch.int64)
    all_tasks: list[Task] = []
    for part, one in zip(parts, before, strict=False):
        gone = [Task(t.name, t.classes, torch.full((t.samples,), -1), absent) for t in one.tasks]
        all_tasks += gone if part is None else part.tasks
    assert parts[-1] is not None
    whole = JoinedStream(
        name=before[0].name,
        scenario=last.scenario,
        seed=last.seed,
        tasks=(*all_tasks, *parts[-1].tasks),
        arrays=last.arrays,
        train_labels=last.train_labels,
        test_labels=last.test_labels,
        boundaries=last.boundaries,
        before=tuple(before),
    )
    return _over(whole, parts)


def _over(stream: JoinedStream, parts: Sequence[Stream | None]) -> JoinedStream:
    """The same stream over other copies of its parts."""
    last = parts[-1]
    assert last is not None
    train, test = last.train_labels, last.test_labels
    return replace(stream, parts=tuple(parts), arrays=last.arrays, train_labels=train, test_labels=test)


def _continued(stream: Stream, heads: tuple[str, ...]) -> Stream:
    """A class-incremental stream whose classes are counted after those of `heads`."""
    own = stream.tasks[-1].classes
    every = tuple(dict.fromkeys([*heads, *own]))
    number = {name: i for i, name in enumerate(every)}
    table = torch.tensor([*(number[name] for name in own), -1])  # rows of no task have label -1, the last entry
    tasks = tuple(replace(task, classes=every[: len(dict.fromkeys([*heads, *task.classes]))]) for task in stream.tasks)
    labels = [table.to(y.device)[y] for y in (stream.train_labels, stream.test_labels)]
    return replace(stream, tasks=tasks, train_labels=labels[0], test_labels=labels[1])


def _check_inputs(stream: Stream, spec: InputSpec) -> None:
    """Refuse a stream that the learner was not made for."""
    mine = stream.spec
    if (mine.shape, mine.pixel_max) != (spec.shape, spec.pixel_max):
        sizes = [" x ".join(map(str, one.shape)) + ("" if one.pixel_max else " floats") for one in (mine, spec)]
        advice = ""
        if len(mine.shape) == 3 and mine.shape[0] != spec.shape[0]:
            advice = f"; channels are set by --set stream.channels={spec.shape[0]}"
        elif len(mine.shape) == 3 and spec.pixel_max:
            square = f", or --set stream.size={spec.shape[1]}" if spec.shape[1] == spec.shape[2] else ""
            advice = f"; give images of that size{square}"
        raise StreamError(f"samples of {stream.name} are {sizes[0]}, the model takes {sizes[1]}{advice}")
    if mine.scenario != spec.scenario:
        raise StreamError(
            f"{stream.name} is of scenario {mine.scenario}, the model of scenario {spec.scenario}; it cannot change"
        )
    if mine.boundaries != spec.boundaries:
        told = "is not told where tasks begin" if mine.boundaries else "is told where tasks begin"
        raise StreamError(f"the model {told}, so stream.boundaries has to stay as it was")


def _listed(classes: Sequence[str]) -> str:
    return ", ".join(classes[:5]) + (", ..." if len(classes) > 5 else "")
