"""`scale-cl` in a process of its own, to be sent signals; a server that has torch loaded forks it off in no time."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import time
from pathlib import Path

SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(["scale_cl.training", "scale_cl.cli.main", "sklearn.datasets"])


class Child:
    """One run of the command."""

    def __init__(self, folder: Path, *arguments: str | Path, quick: bool = False) -> None:
        """Start it; what it prints goes to files in `folder`. With `quick`, it forks processes and spawns none."""
        self._out, self._err = folder / "child.out", folder / "child.err"
        for path in (self._out, self._err):
            path.write_text("")  # what an earlier one said
        words = [str(a) for a in arguments]
        self._process = SERVER.Process(target=_main, args=(words, self._out, self._err, quick))
        self._process.start()

    @property
    def pid(self) -> int:
        """Its process number."""
        assert self._process.pid is not None
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether it still runs."""
        return self._process.is_alive()

    def wait_for(self, pattern: Path, seconds: float = 60) -> None:
        """Until something matches `pattern`, or fail."""
        ends = time.monotonic() + seconds
        while not list(pattern.parent.glob(pattern.name)):
            assert self._process.is_alive(), f"{pattern} did not appear: {self.finished()}"
            assert time.monotonic() < ends, f"{pattern} did not appear in time"
            time.sleep(0.005)

    def wait_for_words(self, words: str, seconds: float = 60) -> None:
        """Until it says so on stderr, or fail."""
        ends = time.monotonic() + seconds
        while not self._err.exists() or words not in self._err.read_text():
            assert self._process.is_alive(), f"it never said {words!r}: {self.finished()}"
            assert time.monotonic() < ends, f"it did not say {words!r} in time"
            time.sleep(0.005)

    def signal(self, number: int, *, group: bool = False) -> None:
        """Send a signal, to the child alone or, as a terminal does, to its children as well."""
        with contextlib.suppress(ProcessLookupError):
            (os.killpg if group else os.kill)(self.pid, number)

    def interrupt(self, number: int, *, group: bool = False) -> tuple[int | None, str, str]:
        """Send a signal and wait for the end; how it ended."""
        self.signal(number, group=group)
        return self.finished()

    def kill(self) -> None:
        """End it as a power cut would."""
        self._process.kill()
        self._process.join()

    def finished(self) -> tuple[int | None, str, str]:
        """Wait for its end; exit code, stdout and stderr."""
        self._process.join(120)
        return self._process.exitcode, self._out.read_text(), self._err.read_text()


def _main(arguments: list[str], out: Path, err: Path, quick: bool) -> None:
    os.setsid()
    if quick:
        fork = multiprocessing.get_context("fork")
        multiprocessing.get_context = lambda method=None: fork  # type: ignore[assignment]
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [number])
    for path, stream in ((out, sys.stdout), (err, sys.stderr)):
        stream.flush()
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 1 if stream is sys.stdout else 2)
    sys.argv = ["scale-cl", *arguments]
    from scale_cl.cli.main import main

    main()
