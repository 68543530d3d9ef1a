"""Which processes belong to a Ray: by a mark, by having been seen with it, by who started them."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from pathlib import Path

import pytest

from scale_cl.experiments.ray_cluster import MARK_VARIABLE, belonging, release_guard, start_guard
from tests.experiments.processes import waited_for

pytestmark = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="the system has no /proc")

SLEEP = "import time; time.sleep(60)"
CHILD = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {SLEEP!r}], env={{}}); {SLEEP}"


def parent(mark: str) -> subprocess.Popen[bytes]:
    """A marked process with a child that has another environment."""
    return subprocess.Popen([sys.executable, "-c", CHILD], env={**os.environ, MARK_VARIABLE: mark})


def test_a_marked_process_and_what_it_started_belong() -> None:
    mark = secrets.token_hex(8)
    sign = f"{MARK_VARIABLE}={mark}".encode()
    process = parent(mark)
    try:
        waited_for(lambda: len(belonging(sign, {})) == 2)
        found = belonging(sign, {})
        assert process.pid in found
        assert os.getpid() not in found
        assert belonging(b"a sign that nobody has", found) == found  # once known, always known
        others = {pid: began + 1 for pid, began in found.items()}  # their numbers, come again
        assert belonging(b"a sign that nobody has", others) == {}
    finally:
        for pid in belonging(sign, {}):
            os.kill(pid, 9)
        process.wait()


def test_the_guard_ends_them_all_when_it_is_let_go() -> None:
    mark = secrets.token_hex(8)
    sign = f"{MARK_VARIABLE}={mark}".encode()
    guard, process = start_guard(mark), parent(mark)
    waited_for(lambda: len(belonging(sign, {})) == 2)
    known = belonging(sign, {})
    release_guard(guard)
    process.wait()
    assert belonging(sign, known) == {}
