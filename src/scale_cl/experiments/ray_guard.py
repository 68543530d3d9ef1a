"""A process that outlives the one which started Ray on this machine, and ends what is left of that Ray.

Ray's own processes notice that their master was killed, but some of them only after a minute.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

VARIABLE = "SCALE_CL_RAY"  # in the environment of everything that belongs to one Ray
_AGAIN = 0.2  # seconds: what was being started while its parent was killed


def start(mark: str) -> subprocess.Popen[bytes]:
    """A guard over all processes with this mark; it acts when its standard input is closed."""
    environment = {name: value for name, value in os.environ.items() if name != VARIABLE}
    return subprocess.Popen(
        [sys.executable, "-m", "scale_cl.experiments.ray_guard", mark],
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
    """Wait for the end of the input, then kill until nobody is left."""
    sys.stdin.buffer.read()
    while found := _marked(f"{VARIABLE}={sys.argv[1]}".encode()):
        for pid in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_AGAIN)


def _marked(sign: bytes) -> list[int]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):  # none where the system has no such folder
        with contextlib.suppress(OSError):
            if sign in (folder / "environ").read_bytes():
                found.append(int(folder.name))
    return found


if __name__ == "__main__":
    main()
