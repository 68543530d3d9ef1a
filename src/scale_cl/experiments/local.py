"""The engine of this machine: worker processes, each on cores of its own, that do one run after another.

A worker is kept for the next run, so that libraries and data are read once; one that dies is replaced.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from scale_cl.experiments.engine import Listener, Outcome
from scale_cl.experiments.planning import PlannedRun
from scale_cl.experiments.run_worker import as_message

GPU_SLOTS = 2  # runs that share a GPU: while the host of one evaluates, the other keeps the device busy


def cores() -> list[int]:
    """The cores that this process may use."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))


def slots(*, gpus: int, threads: int) -> int:
    """How many runs go at once unless told otherwise: one a core (or a group of cores), some on each GPU."""
    at_most = max(1, len(cores()) // threads)
    return min(at_most, gpus * GPU_SLOTS) if gpus else at_most


class LocalEngine:
    """Runs on this machine's cores or GPUs."""

    def __init__(self, *, root: Path | None = None, threads: int = 1, gpus: Sequence[str] = ()) -> None:
        """`root` is where the data lies; `gpus` are the names by which CUDA_VISIBLE_DEVICES knows the GPUs to share."""
        self._root, self._threads, self._gpus = root, threads, list(gpus)

    def execute(self, runs: Sequence[PlannedRun], *, slots: int, listener: Listener) -> None:
        """Do all runs; whatever ends this function ends every process that it started."""
        waiting = deque(runs)
        answers: _Answers = queue.SimpleQueue()
        workers = [_Worker(self._place(i, slots), answers) for i in range(min(slots, len(runs)))]
        free = list(workers)
        busy: dict[_Worker, tuple[PlannedRun, float]] = {}
        try:
            while waiting or busy:
                while waiting and free:
                    worker, run = free.pop(0), waiting.popleft()
                    busy[worker] = run, time.monotonic()
                    worker.send(as_message(run, self._root))
                worker, process, line = answers.get()
                if process is not worker.process:
                    continue  # the end of one that has been replaced
                answer: dict[str, Any] = json.loads(line) if line else {"error": worker.last_words(), "broken": True}
                if "fraction" in answer:
                    listener.progressed(busy[worker][0], answer["fraction"])
                    continue
                if answer["broken"]:
                    worker.end()  # its next run gets a new process
                if worker in busy:
                    run, began = busy.pop(worker)
                    free.append(worker)
                    listener.ended(Outcome(run, time.monotonic() - began, answer["error"]))
        finally:
            for worker in workers:
                worker.end()

    def _place(self, number: int, slots: int) -> _Place:
        """Cores and environment of the worker in a slot; with more slots than cores, nobody is pinned."""
        own = cores()
        each = len(own) // slots if self._gpus else self._threads
        pinned = own[number * each : (number + 1) * each] if each and slots * each <= len(own) else []
        environment = {name: str(self._threads) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
        if len(self._gpus) > 1:
            environment["CUDA_VISIBLE_DEVICES"] = self._gpus[number % len(self._gpus)]
        return _Place(pinned, environment)


class _Place:
    def __init__(self, cores: Sequence[int], environment: Mapping[str, str]) -> None:
        self.cores, self.environment = list(cores), dict(environment)


class _Worker:
    """A process at the other end of two pipes; it starts with its first run."""

    def __init__(self, place: _Place, answers: _Answers) -> None:
        self.place, self._answers = place, answers
        self.process: subprocess.Popen[str] | None = None
        self._log: IO[bytes] | None = None

    def send(self, message: dict[str, Any]) -> None:
        if self.process is not None and self.process.poll() is not None:
            self.end()
        if self.process is None:
            self.process = self._start()
            self._write({"cores": self.place.cores})
        self._write(message)

    def end(self) -> None:
        """Kill it and all that it started."""
        process, self.process = self.process, None
        if process is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)  # it leads a group of its own
            process.wait()
            if process.stdin is not None:
                with contextlib.suppress(OSError):
                    process.stdin.close()
        if self._log is not None:
            self._log.close()
            self._log = None

    def last_words(self) -> str:
        """Why it died, as far as that can be told."""
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
            [sys.executable, "-m", "scale_cl.experiments.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            encoding="utf-8",
            env=os.environ | self.place.environment,
            start_new_session=True,  # Ctrl-C is for the parent, which ends the whole group
        )
        threading.Thread(target=self._listen, args=(process,), daemon=True).start()
        return process

    def _listen(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        with process.stdout as lines:
            for line in lines:
                self._answers.put((self, process, line))
        self._answers.put((self, process, ""))  # it is dead, or about to be

    def _write(self, message: dict[str, Any]) -> None:
        assert self.process is not None
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # its death is told by the other pipe
            self.process.stdin.write(json.dumps(message) + "\n")
            self.process.stdin.flush()


_Answers = queue.SimpleQueue[tuple[_Worker, "subprocess.Popen[str]", str]]
