"""A Ray cluster: an existing one, reached by its address, or one on this machine that is started and stopped.

Ray itself waits for minutes at an address that does not answer, and reports that in many lines; so another process
tries the address first, for a limited time. Over a Ray that is started here stands a guard (`python -m` of this module,
which therefore does not import torch): a process that ends whatever is left of Ray when this process is killed.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import secrets
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scale_cl.errors import ConfigError
from scale_cl.experiments.local import cores

PATIENCE = 30.0  # seconds within which a cluster must answer
_CONNECT = 5.0  # seconds within which its port must open
_OBJECT_STORE = 100 * 2**20  # bytes; runs pass no data through it
MARK_VARIABLE = "SCALE_CL_RAY"  # in the environment of every process of a Ray that was started here
_GUARD_POLL = 0.5  # seconds between looks at the parent
_GUARD_PAUSE = 0.2  # seconds until the guard looks for processes that were just being started
_QUIET = {"log_to_driver": False, "logging_level": logging.ERROR, "configure_logging": False}
_TRY = (
    "import logging, sys, ray\n"
    "logging.disable()\n"
    "try:\n"
    "    ray.init(address=sys.argv[1], log_to_driver=False, configure_logging=False)\n"
    "except BaseException as error:\n"
    "    print(type(error).__name__, ' '.join(str(error).split()))\n"
    "    sys.exit(1)\n"
)


@dataclass(frozen=True)
class Share:
    """The CPUs and GPUs that a run takes, or that a node has."""

    cpus: int
    gpus: float = 0.0

    def times_in(self, node: Share) -> int:
        """How many runs with this share fit on a node."""
        by_gpu = int(node.gpus / self.gpus + 1e-6) if self.gpus else node.cpus
        return min(node.cpus // max(1, self.cpus), by_gpu)

    def __str__(self) -> str:
        """`2 CPUs and 0.5 GPUs`."""
        cpus = f"{self.cpus} CPU{'' if self.cpus == 1 else 's'}"
        return cpus + (f" and {self.gpus:g} GPU{'' if self.gpus == 1 else 's'}" if self.gpus else "")


class Cluster:
    """A context manager: a cluster that it started is stopped at the end, one that it connected to is left running."""

    def __init__(self, address: str | None = None, *, gpus: bool = True, patience: float = PATIENCE) -> None:
        """`address` is HOST:PORT or `auto`, on a node of that cluster; None starts Ray here, with or without GPUs."""
        if address is not None and address != "auto" and not re.fullmatch(r"[\w.-]+:\d{1,5}", address):
            what = "HOST:PORT of a cluster that this machine belongs to, or auto"
            raise ConfigError(f"--address: {address!r} is not {what}")
        self.address, self._gpus, self._patience = address, gpus, patience
        self._connected = False
        self._guard: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Connect, or start Ray here; ConfigError if the address does not answer."""
        if self._connected:
            return
        ray = imported_ray()
        logging.getLogger("ray").setLevel(logging.ERROR)
        if ray.is_initialized():
            raise ConfigError("this process is connected to Ray already; call ray.shutdown() first")
        if self.address is None:
            self._start_here(ray)
        else:
            _require_answer(self.address, self._patience)
            ray.init(address=self.address, **_QUIET)
        self._connected = True

    def stop(self) -> None:
        """Disconnect; a cluster that was started here ends with all its processes."""
        if self._connected:
            self._connected = False
            imported_ray().shutdown()
        self._release_guard()

    def nodes(self) -> list[Share]:
        """The resources of every live node."""
        found = [node["Resources"] for node in imported_ray().nodes() if node["Alive"]]
        return [Share(int(node.get("CPU", 0)), float(node.get("GPU", 0))) for node in found]

    def _start_here(self, ray: Any) -> None:
        """Start Ray without usage statistics, protected by a token of its own."""
        limits: dict[str, Any] = {} if self._gpus else {"num_gpus": 0}
        limits |= {"num_cpus": len(cores()), "object_store_memory": _OBJECT_STORE}
        mark = secrets.token_hex(16)
        self._guard = start_guard(mark)
        token = secrets.token_hex(32)
        with _environment({"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_TOKEN": token, MARK_VARIABLE: mark}):
            try:
                ray.init(address="local", include_dashboard=False, **limits, **_QUIET)
            except Exception as error:
                ray.shutdown()
                self._release_guard()
                why = " ".join(str(error).split())[:300]
                raise ConfigError(f"Ray cannot be started on this machine: {why}") from error

    def _release_guard(self) -> None:
        guard, self._guard = self._guard, None
        if guard is not None:
            release_guard(guard)


@contextlib.contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    """Set environment variables temporarily; variables that are set already keep their value."""
    new = {name: value for name, value in values.items() if name not in os.environ}
    os.environ.update(new)
    try:
        yield
    finally:
        for name in new:
            os.environ.pop(name, None)


def imported_ray() -> Any:
    """The module `ray`; ConfigError if the extra is not installed."""
    try:
        import ray
    except ImportError:
        raise ConfigError("the engine ray needs the extra: pip install 'scale-cl[ray]'") from None
    return ray


def _require_answer(address: str, patience: float) -> None:
    """ConfigError unless a Ray cluster answers at `address` in time."""
    if address != "auto":
        host, _, port = address.rpartition(":")
        try:
            socket.create_connection((host, int(port)), timeout=min(_CONNECT, patience)).close()
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise ConfigError(f"--address {address} does not answer: {reason}; is Ray running there?") from None
    try:
        tried = subprocess.run(
            [sys.executable, "-c", _TRY, address],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=patience,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ConfigError(f"--address {address} does not answer as Ray does, in {patience:.0f} s") from None
    if tried.returncode:
        words = tried.stdout.decode("utf-8", "replace").split()
        reason = " ".join(words)[:300] or f"the attempt ended with code {tried.returncode}"
        raise ConfigError(f"--address {address} cannot be used: {reason}")


def start_guard(mark: str) -> subprocess.Popen[bytes]:
    """Start a process that kills all processes with this mark once this process has ended or calls `release_guard`.

    Ray's own processes notice that their master was killed, but some only after a minute.
    """
    environment = {name: value for name, value in os.environ.items() if name != MARK_VARIABLE}
    return subprocess.Popen(
        [sys.executable, "-m", "scale_cl.experiments.ray_cluster", mark, str(os.getpid())],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=environment,
        start_new_session=True,  # Ctrl-C must not end it
    )


def release_guard(guard: subprocess.Popen[bytes]) -> None:
    """Let the guard kill the processes, and wait until it has."""
    assert guard.stdin is not None
    guard.stdin.close()
    guard.wait()


def main() -> None:
    """The guard: wait until standard input is closed or the parent has ended, then kill until no process is left."""
    sign, parent, known = f"{MARK_VARIABLE}={sys.argv[1]}".encode(), int(sys.argv[2]), dict[int, int]()
    while os.getppid() == parent:  # a process that is just being forked may keep the input open
        known = belonging(sign, known)
        ready, _, _ = select.select([sys.stdin], [], [], _GUARD_POLL)
        if ready and not os.read(sys.stdin.fileno(), 1024):
            break
    while known := belonging(sign, known):
        for pid in known:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_GUARD_PAUSE)


def belonging(sign: bytes, known: Mapping[int, int]) -> dict[int, int]:
    """Processes with `sign` in their environment, those `known` before, and all their descendants.

    Some of Ray's processes overwrite their environment with a title, so they must be known from before. The result
    maps each process ID to its start time, since IDs are reused.
    """
    started: dict[int, int] = {}
    children: dict[int, list[int]] = {}
    waiting: list[int] = []
    for folder in Path("/proc").glob("[0-9]*"):  # empty where the system has no /proc
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
