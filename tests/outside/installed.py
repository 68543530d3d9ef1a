"""Packages with learners of their own, installed into folders, and `scale-cl` in a process that sees them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
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


def entry_points(folder: Path, points: dict[str, str], group: str = "scale_cl.learners") -> Path:
    """A package without code in `folder` that has these entry points, as pip would leave it."""
    information = folder / "others-1.0.dist-info"
    information.mkdir(parents=True)
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: others\nVersion: 1.0\n")
    lines = "".join(f"{name} = {value}\n" for name, value in points.items())
    (information / "entry_points.txt").write_text(f"[{group}]\n{lines}")
    return folder


def printed(directory: Path, *words: str) -> str:
    """What `scale-cl` prints in a new process, which ends well and complains of nothing."""
    done = subprocess.run(
        [sys.executable, "-m", "scale_cl", *words],
        cwd=directory,
        env={**os.environ, "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout
