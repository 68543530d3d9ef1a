"""A Ray cluster: one that runs already and is reached by its address, or one of this machine, started and stopped.

Ray itself waits for minutes at an address where nobody answers, and says so in many lines. So another process tries the
address first, for a bounded time.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import secrets
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from scale_cl.errors import ConfigError
from scale_cl.experiments import ray_guard
from scale_cl.experiments.local import cores

PATIENCE = 30.0  # seconds that a cluster has to answer
_DOOR = 5.0  # seconds that its port has to open
_OBJECT_STORE = 100 * 2**20  # bytes; runs pass nothing through it
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
    """What a run takes of a node, or what a node has."""

    cpus: int
    gpus: float = 0.0

    def times_in(self, node: Share) -> int:
        """How many of these fit into a node."""
        by_gpu = int(node.gpus / self.gpus + 1e-6) if self.gpus else node.cpus
        return min(node.cpus // max(1, self.cpus), by_gpu)

    def __str__(self) -> str:
        """`2 CPUs and 0.5 GPUs`."""
        cpus = f"{self.cpus} CPU{'' if self.cpus == 1 else 's'}"
        return cpus + (f" and {self.gpus:g} GPU{'' if self.gpus == 1 else 's'}" if self.gpus else "")


class Cluster:
    """Use it in a `with`: what it started is stopped at the end, what it found stays as it was."""

    def __init__(self, address: str | None = None, *, gpus: bool = True, patience: float = PATIENCE) -> None:
        """`address` is HOST:PORT or `auto`, on a node of that cluster; None starts Ray here, with GPUs or without."""
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
        """Leave the cluster; one that was started here ends with all its processes."""
        if self._connected:
            self._connected = False
            imported_ray().shutdown()
        self._release_guard()

    def nodes(self) -> list[Share]:
        """What each node that is alive has in all."""
        found = [node["Resources"] for node in imported_ray().nodes() if node["Alive"]]
        return [Share(int(node.get("CPU", 0)), float(node.get("GPU", 0))) for node in found]

    def _start_here(self, ray: Any) -> None:
        """Nothing is reported to anyone, and who has not the token of this one cluster cannot use it."""
        limits: dict[str, Any] = {} if self._gpus else {"num_gpus": 0}
        limits |= {"num_cpus": len(cores()), "object_store_memory": _OBJECT_STORE}
        mark = secrets.token_hex(16)
        self._guard = ray_guard.start(mark)
        with _lent({"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_TOKEN": secrets.token_hex(32), ray_guard.VARIABLE: mark}):
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
            ray_guard.release(guard)


@contextlib.contextmanager
def _lent(values: dict[str, str]) -> Iterator[None]:
    """Set variables that nobody has set, for a while."""
    new = {name: value for name, value in values.items() if name not in os.environ}
    os.environ.update(new)
    try:
        yield
    finally:
        for name in new:
            os.environ.pop(name, None)


def imported_ray() -> Any:
    """The module `ray`; ConfigError without the extra."""
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
            socket.create_connection((host, int(port)), timeout=min(_DOOR, patience)).close()
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
