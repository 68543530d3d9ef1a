"""Learners that train at once: over threads on a GPU, over processes on a CPU.

On a GPU each has a thread, because the host takes as long to launch a step as the device takes to run it, and launching
a recorded step does not hold the interpreter's lock. On a CPU each seed has a process with a pipe of its own. Processes
share no lock, so any of them may die at any moment.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import pickle
import queue
import signal
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent import futures
from dataclasses import replace
from functools import partial
from multiprocessing.connection import Connection, wait
from typing import Any, Protocol, TypeVar

from scale_cl.errors import FAILURES, DivergenceError, Interrupted, ScaleClError, one_line
from scale_cl.plugins import give_references, given_references
from scale_cl.results import SeedResult
from scale_cl.training import machine
from scale_cl.training.events import Event, Finished, Listener, Loaded, Started, Stepped, TaskStarted
from scale_cl.training.learner_run import LearnerRun

T = TypeVar("T")
FIRST, MOST = 125, 500  # steps that a thread makes in one block: at first, and at most
QUICK, SLOW = 0.5, 4.0  # seconds: after a quicker block the next is longer, after a slower one shorter
_POLL = 0.1  # seconds between checks whether the run is to stop
_STOP = "stop"
_LOST = 5.0  # seconds until a process that closed its pipe has ended


# ---- threads ---------------------------------------------------------------------------------------------------------
class Runners:
    """Does something with every run and waits until it is done.

    A run always has the same thread, because libraries keep state per thread.
    """

    def __init__(
        self,
        runs: Sequence[LearnerRun],
        threads: dict[int, futures.ThreadPoolExecutor],
        diverged: dict[int, DivergenceError] | None = None,
    ) -> None:
        """`threads` by `id` of the run; if empty, the caller's thread does everything in turn.

        `block` is the number of steps to make before the caller reports progress: many, because steps are recorded one
        run after another, and runs whose step is recorded should not wait.
        """
        self._threads, self._diverged = threads, diverged
        self._numbers = {id(run): number for number, run in enumerate(runs)}
        self.block = FIRST if threads else 1

    def took(self, steps: int, seconds: float) -> None:
        """Adapt the next blocks to the time that one took: long enough to cost nothing, short enough to see progress.

        A block that was cut short by the end of a task or by a checkpoint makes the next ones no longer.
        """
        if not self._threads:
            return
        if seconds > SLOW:
            self.block = max(1, self.block // 2)
        elif seconds < QUICK and steps == self.block:
            self.block = min(2 * self.block, MOST)

    def sound(self, runs: Sequence[LearnerRun]) -> list[LearnerRun]:
        """Those of the runs that have not diverged."""
        return [run for run in runs if self._numbers[id(run)] not in (self._diverged or ())]

    def each(self, runs: Sequence[LearnerRun], do: Callable[[LearnerRun], T]) -> list[T]:
        """The results of `do` for all runs, in parallel; the first run's error is raised when all are done.

        If divergence is to be noted, a run that diverges, or did so before, has no result.
        """
        if not self._threads:
            return self.in_turn(runs, do)
        going = self.sound(runs)
        doing = [self._threads[id(run)].submit(do, run) for run in going]
        futures.wait(doing)
        return self._results({run: one.result for run, one in zip(going, doing, strict=True)})

    def in_turn(self, runs: Sequence[LearnerRun], do: Callable[[LearnerRun], T]) -> list[T]:
        """As `each`, but one run after another: for many small calls that contend for the interpreter's lock.

        Each such call releases the lock and wants it back at once: twenty threads at once take several times as long
        as one after another. An error is raised at once.
        """

        def done(run: LearnerRun) -> T:
            return self._threads[id(run)].submit(do, run).result() if self._threads else do(run)

        return self._results({run: partial(done, run) for run in self.sound(runs)})

    def _results(self, done: Mapping[LearnerRun, Callable[[], T]]) -> list[T]:
        found = []
        for run, result in done.items():
            try:
                found.append(result())
            except DivergenceError as error:
                if self._diverged is None:
                    raise
                self._diverged[self._numbers[id(run)]] = error
        return found


@contextlib.contextmanager
def runners_of(runs: Sequence[LearnerRun], diverged: dict[int, DivergenceError] | None = None) -> Iterator[Runners]:
    """The runners of these runs, whose threads end with the context; for `diverged` see `train_many`."""
    on_gpu = all(run.learner.device.type == "cuda" for run in runs)
    threads = {id(run): futures.ThreadPoolExecutor(1) for run in runs} if on_gpu and len(runs) > 1 else {}
    try:
        yield Runners(runs, threads, diverged)
    finally:
        for thread in threads.values():
            thread.shutdown()


# ---- processes -------------------------------------------------------------------------------------------------------
class TrainSeed(Protocol):
    """Trains one seed in a process of its own; can be pickled."""

    def __call__(self, seed: int, tell: Listener, stop: Callable[[], bool]) -> SeedResult:
        """Pass events to `tell`; once `stop` returns true, save the state and raise Interrupted."""


def train_over_processes(
    train: TrainSeed,
    seeds: Sequence[int],
    processes: int,
    *,
    tell: Callable[[int, Event], None],
    stop: Callable[[], bool] | None,
) -> list[SeedResult]:
    """Train the seeds over so many processes; however this function ends, they have all ended before.

    After an error of a seed or a wish to stop (by `stop`, or an interrupt), the seeds that still train save their state
    and end. After a second wish the processes are killed, which leaves the checkpoints that are there.
    """
    waiting, done, errors = deque(seeds), dict[int, SeedResult](), list[BaseException]()
    with machine.interrupts_held() as interrupts, contextlib.ExitStack() as stack:
        with machine.signals_blocked():
            workers = [_Worker(train, stack) for _ in range(processes)]
        for worker in workers:
            worker.give(waiting.popleft() if waiting else None)
        while running := {worker.pipe: worker for worker in workers if worker.runs}:
            wishes = interrupts() + (stop is not None and stop())
            if wishes > 1:
                break
            if wishes or errors:
                waiting.clear()
                for worker in running.values():
                    worker.stop()
            for pipe in wait([*running], _POLL):
                worker = running[pipe]  # type: ignore[index]  # only pipes were waited for
                match worker.receive():
                    case "event", event:
                        tell(worker.seed, event)
                        continue
                    case "done", result:
                        done[worker.seed] = result
                    case "failed", error:
                        errors.append(error)
                worker.give(waiting.popleft() if waiting else None)
    if len(done) == len(seeds):
        return [done[seed] for seed in seeds]
    errors.append(Interrupted("stopped as asked before training began"))
    raise min(errors, key=lambda error: isinstance(error, Interrupted))


class _Worker:
    """A process that trains one seed after another."""

    def __init__(self, train: TrainSeed, stack: contextlib.ExitStack) -> None:
        """Start it, to be ended with `stack`."""
        spawn = multiprocessing.get_context("spawn")
        self.pipe, theirs = spawn.Pipe()
        self.runs = True
        self.seed = -1  # which it trains
        self._idle, self._stopping = True, False
        self._process = spawn.Process(target=_work, args=(theirs, pickle.dumps(train), given_references()))
        self._process.start()
        stack.callback(self._end)
        theirs.close()

    def give(self, seed: int | None) -> None:
        """The next seed to train, or None: end."""
        self._idle = seed is None
        self.seed = self.seed if seed is None else seed
        self._send(seed)

    def stop(self) -> None:
        """Save the state and end."""
        if not self._stopping:
            self._stopping = True
            self._send(_STOP)

    def receive(self) -> tuple[str, Any]:
        """What it says next: "event", "done" or "failed", and which; "ended" if it was not asked for anything."""
        try:
            said: tuple[str, Any] = self.pipe.recv()
        except (EOFError, OSError):  # the process is gone, perhaps in the middle of a message
            self.runs = False
            return ("ended", None) if self._idle else ("failed", ScaleClError(self._lost()))
        return said

    def _lost(self) -> str:
        """Why it ended in the middle of its work, as far as its exit code tells."""
        self._process.join(_LOST)
        code = self._process.exitcode
        if code is None or code >= 0:
            return (
                f"a process of this run ended by itself (exit code {code}), and what it printed says why; "
                'a script that trains several seeds needs `if __name__ == "__main__":` around what it does'
            )
        guess = ", perhaps for want of memory; try fewer processes" if code == -signal.SIGKILL else ""
        return f"a process of this run was killed (signal {-code}){guess}"

    def _send(self, order: int | str | None) -> None:
        with contextlib.suppress(OSError):  # if it is gone, `receive` finds out
            self.pipe.send(order)

    def _end(self) -> None:
        if self.runs:
            self._process.kill()
        self._process.join()
        self.pipe.close()


# ---- in a process ----------------------------------------------------------------------------------------------------
def _work(pipe: Connection, sent: bytes, references: dict[str, dict[str, str]]) -> None:
    """Train the seeds that the parent sends."""
    machine.die_with_parent()
    try:
        give_references(references)
        train: TrainSeed = pickle.loads(sent)  # only now: its config may have classes of the references
    except FAILURES as error:
        pipe.send(("failed", ScaleClError(f"a process of this run could not begin: {one_line(error)}")))
        return
    given: queue.SimpleQueue[int | None] = queue.SimpleQueue()
    stopping = threading.Event()
    threading.Thread(target=_listen, args=(pipe, given, stopping), daemon=True).start()
    while (seed := given.get()) is not None:
        try:
            if stopping.is_set():
                raise Interrupted("stopped as asked before training began")
            pipe.send(("done", train(seed, partial(_report, pipe), stopping.is_set)))
        except Exception as error:
            pipe.send(("failed", _sendable(error)))


def _listen(pipe: Connection, given: queue.SimpleQueue[int | None], stopping: threading.Event) -> None:
    with contextlib.suppress(EOFError, OSError):  # the parent is gone, with which this process ends
        while True:
            order = pipe.recv()
            if order == _STOP:
                stopping.set()
            else:
                given.put(order)


def _report(pipe: Connection, event: Event) -> None:
    pipe.send(("event", event))


def _sendable(error: Exception) -> Exception:
    """The error, if another process can read it; one that is not ours says where it arose."""
    if not isinstance(error, ScaleClError):
        error.add_note("".join(traceback.format_exception(error)))
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # of many kinds: the error is somebody else's class
        return RuntimeError(one_line(error))
    return error


# ---- events ----------------------------------------------------------------------------------------------------------
class FewSteps:
    """Passes on the events of one seed; of its steps only every twentieth."""

    _EVERY = 20

    def __init__(self, tell: Listener) -> None:
        """`tell` is given the events."""
        self._tell, self._all = tell, 0

    def __call__(self, event: Event) -> None:
        """Pass an event on, or leave it out."""
        if isinstance(event, Started):
            self._all = event.steps
        if isinstance(event, Stepped) and event.steps % self._EVERY and event.steps != self._all:
            return
        self._tell(event)


class MergedEvents:
    """Passes on the events of seeds that train independently as those of one run."""

    def __init__(self, tell: Listener, seeds: list[int]) -> None:
        """`tell` is given the events."""
        self._tell = tell
        self._steps = dict.fromkeys(seeds, 0)
        self._loaded = self._started = False
        self._task = -1
        self._training = set(seeds)

    def take(self, seed: int, event: Event) -> None:
        """Pass on an event of one seed, if it is an event of the whole run as well."""
        match event:
            case Loaded():
                new, self._loaded = not self._loaded, True
            case Started():
                new, self._started = not self._started, True
                event = replace(event, seeds=tuple(self._steps))
            case TaskStarted(task=task):
                new, self._task = task > self._task, max(task, self._task)
            case Stepped(steps=steps):
                self._steps[seed] = steps
                of_each = tuple(self._steps.values())
                new, event = True, Stepped(sum(of_each) // len(of_each), of_each)
            case Finished():
                self._training.discard(seed)
                new = not self._training
            case _:
                new = True
        if new:
            self._tell(event)
