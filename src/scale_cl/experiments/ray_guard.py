"""A process that outlives the one which started Ray on this machine, and ends what is left of that Ray.

Ray's own processes notice that their master was killed, but some of them only after a minute.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

VARIABLE = "SCALE_CL_RAY"  # in the environment of everything that belongs to one Ray
_LOOK = 0.5  # seconds between looks at the parent
_AGAIN = 0.2  # seconds: what was being started while its parent was killed


def start(mark: str) -> subprocess.Popen[bytes]:
    """A guard over all processes with this mark; it acts when its standard input is closed or this process is gone."""
    environment = {name: value for name, value in os.environ.items() if name != VARIABLE}
    return subprocess.Popen(
        [sys.executable, "-m", "scale_cl.experiments.ray_guard", mark, str(os.getpid())],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=environment,
        start_new_session=True,  # Ctrl-C is not for it
    )


def release(guard: subprocess.Popen[bytes]) -> None:
    """Let it act, and wait until it has."""
    assert guard.stdin is not None
    guard.stdin.close()
    guard.wait()


def main() -> None:
    """Wait for the end of the input or of the parent, then kill until nobody is left."""
    sign, parent, known = f"{VARIABLE}={sys.argv[1]}".encode(), int(sys.argv[2]), dict[int, int]()
    while os.getppid() == parent:  # a process in the making may hold the other end of the input open for long
        known = belonging(sign, known)
        ready, _, _ = select.select([sys.stdin], [], [], _LOOK)
        if ready and not os.read(sys.stdin.fileno(), 1024):
            break
    while known := belonging(sign, known):
        for pid in known:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_AGAIN)


def belonging(sign: bytes, known: Mapping[int, int]) -> dict[int, int]:
    """Processes with `sign` in their environment, those that were `known` before, and all that these have started.

    Some of Ray's write a title over their environment once they run, so they are to be known before. By number, with
    the time of their start: a number may come again.
    """
    started: dict[int, int] = {}
    children: dict[int, list[int]] = {}
    waiting: list[int] = []
    for folder in Path("/proc").glob("[0-9]*"):  # none where the system has no such folder
        with contextlib.suppress(OSError):
            fields = (folder / "stat").read_bytes().rpartition(b")")[2].split()
            if fields[0] == b"Z":
                continue
            pid = int(folder.name)
            started[pid] = int(fields[19])
            children.setdefault(int(fields[1]), []).append(pid)
            if known.get(pid) == started[pid] or sign in (folder / "environ").read_bytes():
                waiting.append(pid)
    found: dict[int, int] = {}
    while waiting:
        pid = waiting.pop()
        if pid not in found:
            found[pid] = started[pid]
            waiting += children.get(pid, [])
    return found


if __name__ == "__main__":
    main()
