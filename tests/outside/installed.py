"""Packages with learners of their own, installed into folders, and `scale-cl` in processes that see them."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

PACKAGE = Path(__file__).parent / "package"
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", "install")


def install(source: Path, folder: Path, beside: Path) -> Path:
    """Build the package in `source` and install it into `folder`, without a network; `beside` takes what is built."""
    copy = beside / "source"
    shutil.copytree(source, copy, ignore=shutil.ignore_patterns("build", "*.egg-info", "__pycache__"))
    options = ("--no-build-isolation", "--no-deps", "--no-index", "--target", str(folder))
    done = subprocess.run([*PIP, *options, str(copy)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def entry_points(folder: Path, points: dict[str, str]) -> Path:
    """A package without code in `folder` that has these entry points for learners, as pip would leave it."""
    information = folder / "others-1.0.dist-info"
    information.mkdir(parents=True)
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: others\nVersion: 1.0\n")
    lines = "".join(f"{name} = {value}\n" for name, value in points.items())
    (information / "entry_points.txt").write_text(f"[scale_cl.learners]\n{lines}")
    return folder


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int
    out: str
    err: str


class Shell:
    """Runs `scale-cl` in a directory, in processes that see the packages in `site`."""

    def __init__(self, directory: Path, site: Path) -> None:
        path = os.pathsep.join(filter(None, (str(site), os.environ.get("PYTHONPATH"))))
        self.directory = directory
        self._environment = {**os.environ, "PYTHONPATH": path, "COLUMNS": "200", "OMP_NUM_THREADS": "1"}

    def __call__(self, *words: str | Path) -> Ended:
        """Run to the end."""
        done = subprocess.run(self._line(words), **self._how(), capture_output=True, text=True, timeout=300)  # type: ignore[call-overload]
        return Ended(done.returncode, done.stdout, done.stderr)

    def killed_after(self, pattern: str, *words: str | Path) -> None:
        """Start, and end it as a power cut would once a file that matches `pattern` is there."""
        process = subprocess.Popen(self._line(words), **self._how(), start_new_session=True)  # type: ignore[call-overload]
        try:
            ends = time.monotonic() + 120
            while not list(self.directory.glob(pattern)):
                assert process.poll() is None, f"it ended before {pattern} appeared"
                assert time.monotonic() < ends, f"{pattern} did not appear in time"
                time.sleep(0.002)
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def _line(self, words: tuple[str | Path, ...]) -> list[str]:
        return [sys.executable, "-m", "scale_cl", *map(str, words)]

    def _how(self) -> dict[str, object]:
        return {"cwd": self.directory, "env": self._environment}
