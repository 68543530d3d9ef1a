"""Inputs that are read when they are needed, by workers, ahead of the learner.

`LazyRows` stands where a tensor of all inputs would stand: it has its shape and length, and indexing reads the rows. A
`ReadAhead` gives rows in a fixed order, in batches, while workers read the next ones. What is read depends only on the
row numbers, so a batch has the same bits as one from memory, and a run resumes at any position without saved state.
"""

from __future__ import annotations

import logging
import math
import multiprocessing
import os
import pickle
import signal
import threading
from collections import deque
from collections.abc import Mapping
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import wait
from multiprocessing.util import Finalize
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from scale_cl.errors import FAILURES, DataError, StreamError, one_line
from scale_cl.plugins import files_needed, import_files

OnError = Literal["stop", "skip"]
BLOCK_BYTES = 2 << 20  # a request to a worker: large enough that sending it costs little per image
_FIRST_ROWS = 16  # rows of the first request, so that the first batch is soon there; each further one has twice as many
_SPARE_BLOCKS = 2  # requests that wait, beside one per worker
_MOST_WORKERS = 8  # by default
_NAMED = 10  # at most so many skipped samples are named in warnings
SKIPPING = "stream.on_error=skip (in Python on_error='skip') leaves such samples out"
_log = logging.getLogger("scale_cl")


class Block(NamedTuple):
    """Rows that were read together."""

    x: NDArray[np.uint8] | NDArray[np.float32]  # [n, ...], zero where a row could not be read
    lost: Mapping[int, str] = {}  # why rows could not be read, by position in the block
    y: NDArray[np.int64] | None = None  # head labels, if only the source knows them
    remark: str = ""  # something about the data that the user should know


class RowSource(Protocol):
    """Where rows come from. It is sent to worker processes, so it must be picklable."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one row: (C, H, W) for uint8 images, (F,) for float32 features."""

    @property
    def sequential(self) -> bool:
        """Whether rows can only be read one after another; then one worker reads them."""

    def read(self, rows: NDArray[np.int64]) -> Block:
        """Read these rows; an exception means that reading cannot go on at all."""


class Readers:
    """Reads the rows of a source in worker processes, which start when the first rows are asked for."""

    def __init__(self, source: RowSource, *, workers: int | None = None, on_error: OnError = "stop") -> None:
        """`workers`: number of processes; 0: a thread of this process; None: one per core, at most eight."""
        if workers is not None and workers < 0:
            raise StreamError(f"workers is {workers}; it must be at least 0")
        if on_error not in ("stop", "skip"):
            raise StreamError(f"on_error is {on_error!r}; it must be 'stop' or 'skip'")
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        self.workers = min(cores, _MOST_WORKERS) if workers is None else workers
        if source.sequential:
            self.workers = min(self.workers, 1)
        self.source, self.on_error = source, on_error
        self.skipped: dict[int, str] = {}  # why rows were skipped, by row
        self._named: set[str] = set()  # of these reasons, those that were logged
        self._remarked = False
        self._executor: Executor | None = None
        self._starting = threading.Lock()

    def submit(self, rows: NDArray[np.int64]) -> Future[Block]:
        """Have a worker read these rows."""
        with self._starting:
            if self._executor is None:
                self._executor = self._started()
                # as early as this: a process that multiprocessing has started waits for its children before it ends.
                # Without waiting: garbage is collected in any thread, perhaps while it holds a lock of `threading`
                end, how = self._executor.shutdown, {"wait": False, "cancel_futures": True}
                self._at_exit = Finalize(self, end, kwargs=how, exitpriority=10)
            try:
                if self.workers:
                    return self._executor.submit(_read, rows)
                return self._executor.submit(self.source.read, rows)
            except BrokenProcessPool:
                raise DataError(_KILLED) from None

    def _started(self) -> Executor:
        if not self.workers:
            return ThreadPoolExecutor(1)
        try:
            sent = pickle.dumps(self.source)
        except Exception as error:  # whatever the data set of somebody else raises
            advice = "with workers=0 they are read in this process"
            raise StreamError(f"the data cannot be sent to worker processes ({one_line(error)}); {advice}") from None
        # A server without threads forks the workers: fork would copy this process with its threads and its CUDA state.
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([__name__])
        given = files_needed(sent), sent
        return ProcessPoolExecutor(self.workers, context, initializer=_enter_worker, initargs=given)

    def close(self) -> None:
        """End the workers; they start again when more rows are asked for."""
        with self._starting:
            if self._executor is not None:
                self._at_exit.cancel()
                self._executor.shutdown(cancel_futures=True)
                self._executor = None

    def received(self, block: Future[Block]) -> Block:
        """Wait for a block; DataError if its worker died."""
        try:
            found = block.result()
        except BrokenProcessPool:
            raise DataError(_KILLED) from None
        if found.remark and not self._remarked:
            self._remarked = True
            _log.warning("scale-cl: warning: %s", found.remark)
        return found

    def note_lost(self, row: int, reason: str) -> None:
        """Stop because a row that is needed was not read, or count it as skipped."""
        if self.on_error == "stop":
            raise DataError(f"{reason}; {SKIPPING}")
        self.skipped[row] = reason
        if reason not in self._named and len(self._named) < _NAMED:
            self._named.add(reason)
            more = "; further ones are counted and not named" if len(self._named) == _NAMED else ""
            _log.warning("scale-cl: warning: skipped: %s%s", reason, more)

    def __reduce__(self) -> tuple[object, ...]:
        return _copied, (self.source, self.workers, self.on_error)  # without the workers


_KILLED = (
    "a process that reads data was killed, perhaps for want of memory; take fewer (stream.workers, in Python workers=) "
    'or 0; a script that trains needs `if __name__ == "__main__":` around what it does'
)


def _copied(source: RowSource, workers: int, on_error: OnError) -> Readers:
    return Readers(source, workers=workers, on_error=on_error)


# ---- in a worker -----------------------------------------------------------------------------------------------------
_source: RowSource | str = ""  # a text: why there is none


def _enter_worker(files: list[str], sent: bytes) -> None:
    global _source
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what an interrupt means
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent.sentinel,), daemon=True).start()
    torch.set_num_threads(1)
    try:
        import_files(files)
        _source = pickle.loads(sent)
    except FAILURES as error:  # the code of others may raise anything
        _source = one_line(error)


def _end_with(sentinel: int) -> None:
    wait([sentinel])
    os._exit(1)


def _read(rows: NDArray[np.int64]) -> Block:
    if isinstance(_source, str):
        advice = "define it in a file that can be imported, or have it read in this process, with workers=0"
        raise DataError(f"the data set cannot be made again in a worker process ({_source}); {advice}")
    return _source.read(rows)


# ---- in place of a tensor --------------------------------------------------------------------------------------------
class LazyRows(Tensor):
    """Inputs [N, ...] without storage: rows `first` to `first + count` of a source, read when they are indexed.

    It is a tensor in its shape, type and length; anything else than indexing by row numbers is refused.
    """

    readers: Readers
    first: int

    @staticmethod
    def __new__(cls, readers: Readers, first: int, count: int) -> LazyRows:
        """Nothing is read yet."""
        shape = readers.source.shape
        dtype = torch.uint8 if len(shape) == 3 else torch.float32
        made = Tensor._make_wrapper_subclass(cls, (count, *shape), dtype=dtype)
        made.readers, made.first = readers, first
        return made

    def __init__(self, readers: Readers, first: int, count: int) -> None:
        """All is done by `__new__`."""

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        """Refuse whatever needs the values of all rows."""
        raise StreamError(f"{function} needs all inputs, but these are read as they come; index the rows that you need")

    @property
    def row_bytes(self) -> int:
        """Bytes of one row in memory."""
        return math.prod(self.shape[1:]) * self.dtype.itemsize

    @property
    def ahead_bytes(self) -> int:
        """Bytes that a `ReadAhead` holds at most, beside the batch that it gives."""
        return (self.readers.workers + _SPARE_BLOCKS + 1) * max(BLOCK_BYTES, self.row_bytes)

    def __getitem__(self, rows: Any) -> Tensor:
        """Read the row or rows with these numbers, a slice or a tensor; DataError if one cannot be read."""
        numbers = torch.arange(len(self))[[rows] if isinstance(rows, int) else rows]
        x, _ = ReadAhead(self, numbers, numbers, whole=True).take(0, len(numbers))
        return x[0] if isinstance(rows, int) else x

    def peek(self, rows: Tensor) -> Tensor:
        """The given rows, zero where one cannot be read."""
        return torch.from_numpy(self.readers.source.read(rows.numpy() + self.first).x)

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"LazyRows({list(self.shape)}, {self.dtype})"

    def __reduce_ex__(self, protocol: Any) -> tuple[object, ...]:
        return LazyRows, (self.readers, self.first, len(self))


class _Piece(NamedTuple):
    """A block on the learner's device: positions `start` to `stop` of the order."""

    start: int
    stop: int
    x: Tensor
    y: Tensor
    lost: Mapping[int, str]


class ReadAhead:
    """Rows in a fixed order with their labels, read ahead by workers; `take` gives any slice, best one after another.

    A row that cannot be read is an error when its batch is taken, or is left out of it if errors are skipped.
    """

    def __init__(
        self,
        x: LazyRows,
        rows: Tensor,
        labels: Tensor,
        device: torch.device | None = None,
        *,
        permutation: Tensor | None = None,
        whole: bool = False,
    ) -> None:
        """Prepare to read.

        Args:
            x: the inputs.
            rows: which of them, in order.
            labels: what belongs to each position of the order, [n] or [n, ...].
            device: where batches are wanted.
            permutation: of the pixels of each input.
            whole: every row is needed: skip no errors.
        """
        self._x, self._readers = x, x.readers
        self._rows, self._labels = rows.cpu().numpy() + x.first, labels.cpu()
        self._device, self._whole = device or x.device, whole
        self._permutation = None if permutation is None else permutation.to(self._device)
        self._most = max(1, BLOCK_BYTES // x.row_bytes)
        self._restart(0)

    def __len__(self) -> int:
        return len(self._rows)

    def take(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """Inputs and labels of positions `start` to `stop`, on the device; fewer if some are skipped."""
        stop = min(stop, len(self))
        if not self._front() <= start <= self._asked:
            self._restart(start)
        while self._received < stop:
            self._fill()
            self._receive()
        self._fill()
        parts = [self._part(p, max(start, p.start), min(stop, p.stop)) for p in self._pieces if start < p.stop]
        while self._pieces and self._pieces[0].stop <= stop:
            self._pieces.popleft()
        return parts[0] if len(parts) == 1 else (torch.cat([x for x, _ in parts]), torch.cat([y for _, y in parts]))

    def _front(self) -> int:
        """The first position that is still there."""
        return self._pieces[0].start if self._pieces else self._received

    def _restart(self, start: int) -> None:
        for _, _, block in getattr(self, "_waiting", ()):
            block.cancel()
        self._waiting: deque[tuple[int, int, Future[Block]]] = deque()
        self._pieces: deque[_Piece] = deque()
        self._received = self._asked = start
        self._size = min(_FIRST_ROWS, self._most)

    def _fill(self) -> None:
        """Ask for more, unless enough is on its way."""
        while self._asked < len(self) and len(self._waiting) < self._readers.workers + _SPARE_BLOCKS:
            end = min(self._asked + self._size, len(self))
            self._waiting.append((self._asked, end, self._readers.submit(self._rows[self._asked : end])))
            self._asked, self._size = end, min(2 * self._size, self._most)

    def _receive(self) -> None:
        """Wait for the next block and send it to the device, which is not waited for."""
        start, stop, future = self._waiting.popleft()
        block = self._readers.received(future)
        x = torch.from_numpy(block.x)
        y = self._labels[start:stop] if block.y is None else torch.from_numpy(block.y)
        if self._device.type == "cuda":
            x, y = (part.pin_memory().to(self._device, non_blocking=True) for part in (x, y))
        if self._permutation is not None:
            x = x.flatten(1)[:, self._permutation].reshape(x.shape)
        self._pieces.append(_Piece(start, stop, x, y, block.lost))
        self._received = stop

    def _part(self, piece: _Piece, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """Positions `start` to `stop`, which lie in the piece, without those that are skipped."""
        low, high = start - piece.start, stop - piece.start
        x, y, lost = piece.x[low:high], piece.y[low:high], {i - low for i in piece.lost if low <= i < high}
        for i in sorted(lost):
            reason = piece.lost[low + i]
            if self._whole:
                raise DataError(reason)
            self._readers.note_lost(int(self._rows[start + i]), reason)
        if not lost:
            return x, y
        kept = torch.tensor([i for i in range(high - low) if i not in lost], dtype=torch.int64).to(self._device)
        return x[kept], y[kept]
