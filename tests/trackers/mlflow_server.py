"""A real MLflow server on loopback, and a door to it that can be shut."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

_STARTS_WITHIN = 120.0  # seconds; it takes three on an idle machine


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[str]:
    """Its address, as long as the context lasts; all that it keeps is in `folder`."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    command += ["--backend-store-uri", f"sqlite:///{folder}/mlflow.db", "--artifacts-destination", f"{folder}/files"]
    quiet = {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen(
            command, env={**os.environ, **quiet}, cwd=folder, stdout=log, stderr=log, start_new_session=True
        )
        try:
            _await_health(f"http://127.0.0.1:{port}/health", server, folder / "log")
            yield f"http://127.0.0.1:{port}"
        finally:
            _end(server)


def _await_health(address: str, server: subprocess.Popen[bytes], log: Path) -> None:
    ends = time.monotonic() + _STARTS_WITHIN
    while True:
        with contextlib.suppress(OSError), urllib.request.urlopen(address, timeout=5) as answer:
            assert answer.read() == b"OK"
            return
        assert server.poll() is None, f"the server ended: {log.read_text()[-2000:]}"
        assert time.monotonic() < ends, f"the server did not start: {log.read_text()[-2000:]}"
        time.sleep(0.05)


def _end(server: subprocess.Popen[bytes]) -> None:
    """With all that it has started."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.wait(10)
    server.wait(10)


@contextlib.contextmanager
def door(address: str) -> Iterator[tuple[str, threading.Event]]:
    """Another address of the same server, and an event that shuts it for good."""
    host, port = address.removeprefix("http://").split(":")
    shut = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0.02)

        def accept() -> None:
            while not shut.is_set():
                with contextlib.suppress(TimeoutError):
                    inside, _ = listener.accept()
                    outside = socket.create_connection((host, int(port)))
                    for pair in ((inside, outside), (outside, inside)):
                        threading.Thread(target=_carry, args=(*pair, shut), daemon=True).start()
            listener.close()

        thread = threading.Thread(target=accept)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}", shut
        finally:
            shut.set()
            thread.join()


def _carry(source: socket.socket, target: socket.socket, shut: threading.Event) -> None:
    source.settimeout(0.02)
    with contextlib.suppress(OSError):
        while not shut.is_set():
            with contextlib.suppress(TimeoutError):
                data = source.recv(1 << 16)
                if not data:
                    break
                target.sendall(data)
    for end in (source, target):
        end.close()
