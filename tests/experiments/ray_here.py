"""A Ray cluster of two CPUs for tests, commands that use it, and whether any of their processes is left."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.experiments.processes import waited_for

_MARK = "SCALE_CL_TEST_MARK"  # in the environment of a process and of all that it starts
_SMALL = (f"--object-store-memory={100 * 2**20}", "--disable-usage-stats", "--node-ip-address=127.0.0.1")


def _heeds_interrupts() -> None:
    """As in a terminal, also where the tests themselves run in the background of a shell, which has them ignored."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


class Marked:
    """Commands that carry a mark, so that what they leave behind is found."""

    def __init__(self) -> None:
        self.mark = secrets.token_hex(8)

    def start(self, *arguments: str, cwd: Path, log: Path) -> subprocess.Popen[bytes]:
        """`scale-cl` with these arguments, in a process group of its own."""
        with log.open("wb") as out:
            return subprocess.Popen(
                [sys.executable, "-m", "scale_cl", *arguments],
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env=self.environment(),
                start_new_session=True,
                preexec_fn=_heeds_interrupts,
            )

    def environment(self) -> dict[str, str]:
        """That of this process, marked, and nothing is reported to anyone."""
        quiet = {"RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
        return {k: v for k, v in os.environ.items() if k != "RAY_ADDRESS"} | quiet | {_MARK: self.mark}

    def processes(self) -> list[int]:
        """Those with the mark that still run."""
        sign, found = f"{_MARK}={self.mark}".encode(), []
        for folder in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if folder.name.isdigit() and sign in (folder / "environ").read_bytes():
                    found.append(int(folder.name))
        return found

    def end(self) -> None:
        """Kill what is left."""
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@contextlib.contextmanager
def ray_here() -> Iterator[str]:
    """The address of a cluster of one node with two CPUs; at the end nothing is left of it."""
    folder = tempfile.mkdtemp(prefix="ray-")  # short: Ray makes sockets in it, whose paths have a limit
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    head = ("--head", f"--port={port}", f"--temp-dir={folder}", "--include-dashboard=false")
    try:
        with _node(*head, cpus=2):
            yield f"127.0.0.1:{port}"
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def joined(address: str, *, cpus: int) -> Iterator[Marked]:
    """Another node of a cluster."""
    with _node(f"--address={address}", cpus=cpus) as marked:
        yield marked


@contextlib.contextmanager
def _node(*words: str, cpus: int) -> Iterator[Marked]:
    marked = Marked()
    command = [str(Path(sys.executable).with_name("ray")), "start", "--block", f"--num-cpus={cpus}", *words, *_SMALL]
    with tempfile.NamedTemporaryFile() as out:
        log = Path(out.name)
        environment = marked.environment() | {"RAY_AUTH_MODE": "disabled"}
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=environment, start_new_session=True
        )
        try:
            waited_for(lambda: b"Ray runtime started" in log.read_bytes() or process.poll() is not None, 120)
            assert process.poll() is None, log.read_text()
            yield marked
        finally:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(30)
            marked.end()
            process.wait()
    waited_for(lambda: not marked.processes())
