"""What is measured while a learner trains: loss terms, accuracy at any time, accuracy on batches not learnt yet.

On a GPU everything is counted on the device, copied to the host asynchronously and passed on once it has arrived, so
that training never waits.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from scale_cl import metrics
from scale_cl.errors import DataError
from scale_cl.learners import Learner, StepStats
from scale_cl.metrics import Evaluation, Predictions
from scale_cl.streams import Stream

BLOCK = 500  # samples of several tasks that are tested in one forward
COUNTED = 10  # steps per count of prequential predictions; a sliding window is made of such counts
_SAMPLE = 5  # tells the random draw of test samples from others of the same seed
Then = Callable[[Sequence[Tensor]], None]


class ToHost:
    """Tensors on their way from the device to the host, passed on in order once they have arrived."""

    def __init__(self) -> None:
        """Nothing yet."""
        self._sent: deque[tuple[Sequence[Tensor], torch.cuda.Event | None, Then]] = deque()

    def send(self, tensors: Sequence[Tensor], then: Then) -> None:
        """Copy these tensors to the host and call `then` with the copies; without a GPU, with the tensors."""
        arrived = None
        if any(t.is_cuda for t in tensors):
            copies = [torch.empty(t.shape, dtype=t.dtype, pin_memory=True) for t in tensors]
            tensors = [copy.copy_(t, non_blocking=True) for copy, t in zip(copies, tensors, strict=True)]
            arrived = torch.cuda.Event()
            arrived.record()
        self._sent.append((tensors, arrived, then))

    def pass_on(self, *, wait: bool = False) -> None:
        """Pass on what has arrived, or wait for everything that was sent."""
        while self._sent and (wait or self._sent[0][1] is None or self._sent[0][1].query()):
            tensors, arrived, then = self._sent.popleft()
            if arrived is not None:
                arrived.synchronize()
            then(tensors)


class Timer:
    """Adds up the seconds that something takes, measured on the device if that is a GPU."""

    def __init__(self, device: torch.device) -> None:
        """No time yet."""
        self._on_gpu, self._seconds = device.type == "cuda", 0.0
        self._events: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []

    @contextmanager
    def running(self) -> Iterator[None]:
        """Time what is done in the context."""
        began = time.perf_counter()
        events = [torch.cuda.Event(enable_timing=True) for _ in range(2)] if self._on_gpu else []
        if events:
            events[0].record()
        yield
        if events:
            events[1].record()
            self._events.append((events[0], events[1]))
        else:
            self._seconds += time.perf_counter() - began

    def taken(self) -> float:
        """The seconds since this was last asked; waits for the device."""
        for begin, end in self._events:
            end.synchronize()
            self._seconds += begin.elapsed_time(end) / 1000
        seconds, self._seconds, self._events = self._seconds, 0.0, []
        return seconds


# ---- accuracy at any time --------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class _Block:
    """Test samples of a few tasks, on the learner's device."""

    x: Tensor  # [n, ...]
    y: Tensor  # [n]
    number: Tensor  # [n] the tasks' numbers inside the learner
    members: Tensor  # [tasks, n] which samples are of which task
    first: int  # position of the first of its tasks in the stream


class AnytimeTests:
    """Tests a learner, while it learns, on a fixed sample of the test set of each task begun so far.

    The samples are drawn by the stream's seed and gathered once. Several tasks are tested in one forward, unless the
    method's own `scores` may need to know a single task.
    """

    def __init__(
        self, learner: Learner, stream: Stream, *, every: int, samples: int, report: Callable[[Evaluation], None]
    ) -> None:
        """Test every `every` steps on at most `samples` samples per task; `report` gets each evaluation."""
        self._learner, self._stream, self._samples, self._report = learner, stream, samples, report
        self.every = every
        self._mixed = tells_tasks(stream) and type(learner).scores is Learner.scores
        self._together = max(1, BLOCK // samples) if self._mixed or not tells_tasks(stream) else 1
        self._blocks: list[_Block] = []
        self._sizes: list[int] = []  # samples per task
        self._to_host = ToHost()

    @torch.no_grad()
    def evaluate(self, step: int, tasks: int) -> None:
        """Test on the first `tasks` tasks, all of which have begun, after `step` steps: device work only."""
        for task in range(len(self._sizes), tasks):
            self._gather(task)
        right = torch.cat([self._right(block) for block in self._blocks])
        self._to_host.send([right], partial(self._arrived, step))
        self._to_host.pass_on()

    def flush(self) -> None:
        """Report all evaluations; waits for the device."""
        self._to_host.pass_on(wait=True)

    def _gather(self, task: int) -> None:
        """Put the samples of one more task into the last block, or into a new one."""
        learner, name, count = self._learner, self._stream.tasks[task].name, len(self._stream.tasks[task].test)
        drawn = np.random.default_rng((self._stream.seed, task, _SAMPLE)).permutation(count)[: self._samples]
        sample = self._stream.test_sample(task, torch.from_numpy(drawn), learner.device)
        x, y = (part.to(learner.device) for part in sample)
        self._sizes.append(len(y))
        if not len(y):
            raise DataError(f"none of the {len(drawn)} test samples of task {name!r} that were drawn can be read")
        number = torch.full_like(y, learner.tasks.index(name) if self._mixed else 0)
        block = _Block(x, y, number, torch.ones_like(y, dtype=torch.bool).unsqueeze(0), task)
        if self._blocks and len(self._blocks[-1].members) < self._together:
            last = self._blocks.pop()
            pairs = (last.x, block.x), (last.y, block.y), (last.number, block.number)
            x, y, number = (torch.cat(pair) for pair in pairs)
            block = _Block(x, y, number, torch.block_diag(last.members, block.members).bool(), last.first)
        self._blocks.append(block)

    def _right(self, block: _Block) -> Tensor:
        """Correct predictions per task of the block."""
        if self._mixed:
            scores = self._learner.engine.predict_mixed(block.x, block.number)
        else:
            scores = predicted(self._learner, self._stream, block.x, block.first)
        return (block.members & (scores.argmax(1) == block.y)).sum(1)

    def _arrived(self, step: int, right: Sequence[Tensor]) -> None:
        counts = right[0].tolist()
        self._report(Evaluation(step, tuple(100 * n / size for n, size in zip(counts, self._sizes, strict=False))))


def tells_tasks(stream: Stream) -> bool:
    """Whether a learner is told the task of what it predicts."""
    return stream.scenario != "class" and stream.boundaries == "told"


def predicted(learner: Learner, stream: Stream, x: Tensor, task: int) -> Tensor:
    """Scores [B, classes] of samples of one task of the stream, whose name the learner is told if it is told tasks."""
    return learner.predict(x, stream.tasks[task].name if tells_tasks(stream) else None)


# ---- prequential accuracy --------------------------------------------------------------------------------------------
class Prequential:
    """Counts the samples that are predicted correctly before they are learnt, over every `COUNTED` steps."""

    def __init__(self, counts: list[Predictions], report: Callable[[int, float, float], None]) -> None:
        """Add to `counts`, the last of which may be unfinished, and report step, accuracy so far and in the window."""
        unfinished = counts.pop() if counts and counts[-1].step % COUNTED else Predictions(0, 0, 0)
        self._step, self._samples = unfinished.step, unfinished.samples
        self._right: Tensor | int = unfinished.right
        self._counts, self._report, self._to_host = counts, report, ToHost()
        self._all_samples, self._all_right = (sum(count[of] for count in counts) for of in (1, 2))

    @torch.no_grad()
    def take(self, step: int, scores: Tensor | None, y: Tensor) -> None:
        """The batch of a step and its scores; None counts as wrong. Device work only."""
        self._step = step
        self._samples += len(y)
        if scores is not None:
            self._right = (scores.argmax(1) == y.to(scores.device)).sum() + self._right
        if step % COUNTED == 0:
            self._send()
        self._to_host.pass_on()

    def flush(self) -> None:
        """Report all finished counts; waits for the device."""
        self._to_host.pass_on(wait=True)

    def finish(self) -> None:
        """Training is over: report the last count, even if it is a short one; waits for the device."""
        if self._samples:
            self._send()
        self.flush()

    def unfinished(self) -> list[Predictions]:
        """The count that is not finished yet, if there is one; waits for the device."""
        return [Predictions(self._step, self._samples, int(self._right))] if self._samples else []

    def _send(self) -> None:
        then = partial(self._arrived, self._step, self._samples)
        self._to_host.send([torch.as_tensor(self._right)], then)
        self._samples = self._right = 0

    def _arrived(self, step: int, samples: int, right: Sequence[Tensor]) -> None:
        self._counts.append(Predictions(step, samples, int(right[0])))
        self._all_samples, self._all_right = self._all_samples + samples, self._all_right + int(right[0])
        window = metrics.prequential_curve(self._counts[-(metrics.WINDOW // COUNTED + 1) :])
        self._report(step, 100 * self._all_right / self._all_samples, window[-1][2])


# ---- loss terms ------------------------------------------------------------------------------------------------------
@dataclass
class _Sum:
    """The sum of terms that occurred together, over some steps."""

    total: Tensor  # [terms] float64, on the learner's device
    steps: int


class LossTerms:
    """Sums the loss terms of every step on the device and reports their means every so many steps."""

    def __init__(self, every: int, *, done: int, report: Callable[[int, dict[str, float]], None]) -> None:
        """Call `report(step, means)` at every multiple of `every`; `done` steps were made before."""
        self._every, self._step, self._report = every, done, report
        self._sums: dict[tuple[str, ...], _Sum] = {}
        self._to_host = ToHost()

    @torch.no_grad()
    def take(self, stats: StepStats) -> None:
        """Add the terms of the next step, which may be overwritten afterwards: device work only."""
        self._step += 1
        terms = {name: t for name, t in stats.items() if t.dim() == 0}
        if terms:
            values = list(terms.values())
            alike = len({t.dtype for t in values}) == 1  # as losses are: two kernel launches are enough
            row = torch.stack(values if alike else [t.double() for t in values]).double()
            known = self._sums.get(tuple(terms))
            if known is None:
                self._sums[tuple(terms)] = _Sum(row, 1)
            else:
                known.total += row
                known.steps += 1
        if self._step % self._every == 0:
            self._send()
        self._to_host.pass_on()

    def flush(self) -> None:
        """Report everything gathered so far; waits for the device."""
        self._send()
        self._to_host.pass_on(wait=True)

    def _send(self) -> None:
        sums, self._sums = self._sums, {}
        if sums:
            steps = {names: part.steps for names, part in sums.items()}
            self._to_host.send([part.total for part in sums.values()], partial(self._arrived, self._step, steps))

    def _arrived(self, step: int, counts: dict[tuple[str, ...], int], sums: Sequence[Tensor]) -> None:
        """Report the mean of each term over the steps that had it."""
        totals: dict[str, float] = {}
        steps: dict[str, int] = {}
        for (names, count), part in zip(counts.items(), sums, strict=True):
            for name, value in zip(names, part.tolist(), strict=True):
                totals[name] = totals.get(name, 0.0) + value
                steps[name] = steps.get(name, 0) + count
        self._report(step, {name: total / steps[name] for name, total in totals.items()})
