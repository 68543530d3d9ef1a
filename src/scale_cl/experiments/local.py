"""The engine of this machine: worker processes that execute one run after another; if they fill it, each has its cores.

On a GPU it executes groups of runs that train side by side. A worker is reused for the next run, so that libraries and
data are loaded once; one that dies is replaced. This module is also the program of the workers (`python -m`), so it
imports torch only after the process is pinned.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple, TextIO

from scale_cl.errors import ScaleClError, one_line
from scale_cl.experiments.engine import Listener, Outcome

if TYPE_CHECKING:
    from scale_cl.experiments.planning import PlannedRun

LANES = 20  # seeds that train side by side: a GPU then has three times the throughput that it has with one


def cores() -> list[int]:
    """The cores that this process may use."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))


def slots(*, gpus: int, threads: int) -> int:
    """Default number of simultaneous runs: one per core (or group of cores); or of groups of runs: one per GPU.

    Processes that share a GPU take turns, so a second group slows the first by as much as it gains; lanes of one
    process run at the same time.
    """
    return gpus or max(1, len(cores()) // threads)


def lane_groups(runs: Sequence[PlannedRun], *, gpus: int = 1) -> list[list[PlannedRun]]:
    """The runs in groups that train side by side, of at most `LANES` seeds and enough of them for all GPUs.

    The runs of a group differ only in settings of the learner, class order and seeds. A run whose time counts, or whose
    features are stored, is a group of its own.
    """
    alike: dict[str, list[PlannedRun]] = {}
    for run in runs:
        kind = str(run.folder) if run.alone or run.features else _kind(run)
        alike.setdefault(kind, []).append(run)
    most = min(LANES, -(-_lanes(runs) // gpus))
    return [group for own in alike.values() for group in _evenly(own, most)]


def _kind(run: PlannedRun) -> str:
    """A text that is equal for runs that may train side by side: their tasks have the same lengths, too."""
    from scale_cl.streams import catalog

    c = run.config
    sections, entry = c.as_dict(), catalog.entry(c.stream.name)
    how = {name: value for name, value in sections["run"].items() if name not in ("seed", "seeds")}
    stream, seeds = dict(sections["stream"]), c.seeds
    if entry.source and not entry.uneven and c.stream.train_share == 1:  # neither changes the lengths of tasks
        stream, seeds = stream | {"class_order": None}, []
    epochs = getattr(c.learner, "epochs", 1)
    return json.dumps([run.experiment, c.learner_name, epochs, stream, seeds, how], sort_keys=True)


def _evenly(runs: list[PlannedRun], most: int) -> list[list[PlannedRun]]:
    """As few groups as have at most so many seeds, if they are of several runs, with about as many seeds each."""
    count = min(-(-_lanes(runs) // most), len(runs))
    while True:
        groups: list[list[PlannedRun]] = [[] for _ in range(count)]
        for run in sorted(runs, key=lambda run: -len(run.config.seeds)):
            min(groups, key=_lanes).append(run)
        if all(len(group) == 1 or _lanes(group) <= most for group in groups):
            return groups
        count += 1


def _lanes(runs: Sequence[PlannedRun]) -> int:
    return sum(len(run.config.seeds) for run in runs)


class LocalEngine:
    """Executes runs on the cores or GPUs of this machine.

    Its workers are processes of its own, not a `ProcessPoolExecutor`: one that dies fails a single run instead of the
    whole pool, each may be pinned to cores before torch starts, and all end with their parent even if it is killed.
    """

    def __init__(self, *, root: Path | None = None, threads: int = 1, gpus: Sequence[str] = ()) -> None:
        """`root` is the data directory; `gpus` are the GPUs to use, as CUDA_VISIBLE_DEVICES names them."""
        self._root, self._threads, self._gpus = root, threads, list(gpus)

    def groups(self, runs: Sequence[PlannedRun]) -> list[list[PlannedRun]]:
        """The runs that train side by side: on a GPU, groups of them."""
        return lane_groups(runs, gpus=len(self._gpus)) if self._gpus else [[run] for run in runs]

    def execute(self, runs: Sequence[PlannedRun], *, slots: int, listener: Listener) -> None:
        """Execute all runs; however this function ends, it ends every process that it started.

        A group whose process dies, or breaks for want of memory, starts again as two halves.
        """
        from scale_cl.experiments.run_worker import as_message

        waiting = deque(self.groups(runs))
        answers: _Answers = queue.SimpleQueue()
        count = min(slots, len(waiting))
        workers = [_Worker(self._place(i, count), answers) for i in range(count)]
        free = list(workers)
        busy: dict[_Worker, tuple[list[PlannedRun], float]] = {}
        try:
            while waiting or busy:
                while waiting and free:
                    worker, group = free.pop(0), waiting.popleft()
                    busy[worker] = group, time.monotonic()
                    worker.send({"runs": [as_message(run, self._root) for run in group]})
                worker, process, line = answers.get()
                if process is not worker.process:
                    continue  # from a process that has been replaced
                answer: dict[str, Any] = json.loads(line) if line else {"broken": worker.last_words()}
                if "fraction" in answer:
                    for run in busy[worker][0]:
                        listener.progressed(run, answer["fraction"])
                    continue
                if answer["broken"]:
                    worker.end()  # the next run gets a new process
                if worker not in busy:
                    continue
                group, began = busy.pop(worker)
                free.append(worker)
                if answer["broken"] and len(group) > 1:
                    waiting.extendleft((group[len(group) // 2 :], group[: len(group) // 2]))
                    for run in group:
                        listener.retried(run, answer["broken"])
                    continue
                errors = [answer["broken"]] if answer["broken"] else answer["errors"]
                for run, error in zip(group, errors, strict=True):
                    listener.ended(Outcome(run, time.monotonic() - began, error))
        finally:
            for worker in workers:
                worker.end()

    def _place(self, number: int, workers: int) -> _WorkerPlace:
        """Cores and environment of one of so many workers.

        Workers are pinned only if they fill the machine: with fewer, two programs would pin theirs to the same cores.
        """
        own = cores()
        each = len(own) // workers if self._gpus else self._threads
        pinned = own[number * each : (number + 1) * each] if each and workers == len(own) // each else []
        environment = {name: str(self._threads) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
        if len(self._gpus) > 1:
            environment["CUDA_VISIBLE_DEVICES"] = self._gpus[number % len(self._gpus)]
        return _WorkerPlace(pinned, environment)


class _WorkerPlace(NamedTuple):
    """Where a worker runs."""

    cores: list[int]
    environment: dict[str, str]  # variables


class _Worker:
    """A process connected by two pipes; it starts with its first run."""

    def __init__(self, place: _WorkerPlace, answers: _Answers) -> None:
        self.place, self._answers = place, answers
        self.process: subprocess.Popen[str] | None = None
        self._log: IO[bytes] | None = None

    def send(self, message: dict[str, Any]) -> None:
        from scale_cl.training.machine import interrupts_held

        if self.process is not None and self.process.poll() is not None:
            self.end()
        if self.process is None:
            with interrupts_held():  # so that none leaves a process that `end` does not know of
                self.process = self._start()
            self._write({"cores": self.place.cores})
        self._write(message)

    def end(self) -> None:
        """Kill the process and all that it started."""
        process, self.process = self.process, None
        if process is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)  # it leads its own process group
            process.wait()
            if process.stdin is not None:
                with contextlib.suppress(OSError):
                    process.stdin.close()
        if self._log is not None:
            self._log.close()
            self._log = None

    def last_words(self) -> str:
        """Why the process died, as far as known."""
        code = self.process.wait() if self.process is not None else None
        how = f"signal {signal.Signals(-code).name}" if code is not None and code < 0 else f"exit code {code}"
        lines: list[str] = []
        if self._log is not None:
            self._log.seek(0)
            lines = self._log.read()[-4000:].decode("utf-8", "replace").strip().splitlines()
        hint = f": {lines[-1].strip()}" if lines else "; it may have run out of memory" if code == -9 else ""
        return f"the process of this run ended with {how}{hint}"

    def _start(self) -> subprocess.Popen[str]:
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `end`
        process = subprocess.Popen(
            [sys.executable, "-m", "scale_cl.experiments.local"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            encoding="utf-8",
            env=os.environ | self.place.environment,
            start_new_session=True,  # Ctrl-C goes to the parent, which ends the whole group
        )
        threading.Thread(target=self._listen, args=(process,), daemon=True).start()
        return process

    def _listen(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        with process.stdout as lines:
            for line in lines:
                self._answers.put((self, process, line))
        self._answers.put((self, process, ""))  # end of the process

    def _write(self, message: dict[str, Any]) -> None:
        assert self.process is not None
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # the other pipe reports its death
            self.process.stdin.write(json.dumps(message) + "\n")
            self.process.stdin.flush()


_Answers = queue.SimpleQueue[tuple[_Worker, "subprocess.Popen[str]", str]]


def main() -> None:
    """Worker process: read runs as JSON lines from standard input, execute them, answer in JSON lines.

    It ends, with everything that it started, when its input is closed: so it never outlives its parent.
    """
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # output of libraries must not mix with the answers
    messages: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    threading.Thread(target=_read_messages, args=(sys.stdin, messages), daemon=True).start()
    own = messages.get()["cores"]
    if own and hasattr(os, "sched_setaffinity"):
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, own)
    while True:
        _answer(answers, messages.get())


def reason_of(error: BaseException) -> str:
    """An error as one line; with its class if it is not one of ours."""
    return " ".join(str(error).split()) if isinstance(error, ScaleClError) else one_line(error)


def _read_messages(lines: TextIO, messages: queue.SimpleQueue[dict[str, Any]]) -> None:
    for line in lines:
        messages.put(json.loads(line))
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


def _answer(answers: TextIO, message: dict[str, Any]) -> None:
    """Execute runs; after an error that is not ours the process may be broken (its CUDA state is) and is replaced."""
    from scale_cl.experiments.run_worker import Pace, carry_out_together

    def tell(fraction: float) -> None:
        print(json.dumps({"fraction": fraction}), file=answers, flush=True)

    answer: dict[str, Any] = {"broken": None}  # or why
    try:
        errors = carry_out_together(message["runs"], Pace(tell))
        answer["errors"] = [None if error is None else reason_of(error) for error in errors]
    except Exception as failure:
        answer["broken"] = reason_of(failure)
        traceback.print_exc()
    clear()
    print(json.dumps(answer), file=answers, flush=True)


def clear() -> None:
    """Free the memory of the run: other runs share the GPU."""
    import torch

    gc.collect()
    if torch.cuda.is_initialized():
        with contextlib.suppress(RuntimeError):
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
