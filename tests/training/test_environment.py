"""The environment of a result: what made it, and nothing about who."""

from __future__ import annotations

import getpass
import json
import platform
import re
import shutil
import socket
import subprocess
from pathlib import Path

import pytest
import torch

from scale_cl.training import machine


def test_versions_device_and_command_are_recorded() -> None:
    made_with = machine.describe(torch.device("cpu"), 2, ["run", "--out", "a folder"])
    assert made_with["torch"] == torch.__version__
    assert made_with["python"] == platform.python_version()
    assert (made_with["device"], made_with["threads"]) == ("cpu", 2)
    assert made_with["device_name"]
    assert made_with["command"] == "scale-cl run --out 'a folder'"
    assert made_with["git_revision"] is None or re.fullmatch(r"[0-9a-f]{40,64}", made_with["git_revision"])


def test_neither_host_nor_user_nor_home_is_recorded() -> None:
    text = json.dumps(machine.describe(torch.device("cpu"), 1))
    assert socket.gethostname() not in text
    assert str(Path.home()) not in text
    assert f'"{getpass.getuser()}"' not in text


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_the_revision_is_that_of_a_checkout_of_this_package_only(tmp_path: Path) -> None:
    def git(*arguments: str) -> None:
        identity = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
        subprocess.run(["git", "-C", str(tmp_path), *identity, *arguments], check=True, capture_output=True)

    package = tmp_path.resolve() / "src" / "scale_cl"
    package.mkdir(parents=True)
    (package / "a.py").write_text("1\n")
    git("init")
    assert machine._git_state(package) == (None, None)  # no commit yet
    git("add", ".")
    git("commit", "-m", "one")
    revision, changed = machine._git_state(package)
    assert revision
    assert changed is False
    (package / "a.py").write_text("2\n")
    assert machine._git_state(package) == (revision, True)
    elsewhere = tmp_path / "site-packages" / "scale_cl"
    elsewhere.mkdir(parents=True)
    assert machine._git_state(elsewhere) == (None, None)
