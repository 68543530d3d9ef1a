"""What a run was made with: versions, device, revision and command. No host or user names."""

from __future__ import annotations

import platform
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

import scale_cl


def describe(device: torch.device, threads: int, arguments: list[str] | None = None) -> dict[str, Any]:
    """The `environment` of a result file; `arguments` are those of the command line, without the program."""
    revision, changed = _git_state(Path(scale_cl.__file__).resolve().parent)
    return {
        "scale_cl": scale_cl.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "platform": platform.platform(),
        "device": str(device),
        "device_name": device_name(device),
        "threads": threads,
        "git_revision": revision,
        "git_changed": changed,
        "command": None if arguments is None else shlex.join(["scale-cl", *arguments]),
    }


def device_name(device: torch.device) -> str:
    """The maker's name of the GPU or processor."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return _processor_name() or platform.processor() or platform.machine()


def _processor_name() -> str | None:
    if sys.platform != "linux":
        return None
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), None)


def _git_state(package: Path) -> tuple[str | None, bool | None]:
    """Commit of the checkout the package is imported from, and whether tracked files differ; None if it is not one."""
    top = _git(package, "rev-parse", "--show-toplevel")
    if top is None or Path(top).resolve() / "src" / package.name != package:
        return None, None  # installed, or inside someone else's repository
    revision = _git(package, "rev-parse", "--verify", "HEAD")
    if revision is None:
        return None, None
    changes = _git(package, "status", "--porcelain", "--untracked-files=no")
    return revision, None if changes is None else changes != ""


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=10, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
