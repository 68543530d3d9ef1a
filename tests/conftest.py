"""What all tests share: one thread, no deadlines, and the command line as a fixture."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported: the same bits however many cores there are

import hypothesis
import pytest

# The same examples in every run, so that a change is judged by itself; HYPOTHESIS_PROFILE=random looks for new ones.
hypothesis.settings.register_profile("same", deadline=None, derandomize=True)
hypothesis.settings.register_profile("random", deadline=None)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell that starts tests in the background has it ignored


TOGETHER = (  # tests that share something slow to start or to make: one worker runs all of a line
    "tests/experiments/test_ray_",  # a cluster
    "tests/integrations/",  # Avalanche, to import
    "tests/manual/test_browser",  # Chromium
    "tests/nets/test_convolution",  # compiled kernels
    "tests/nets/test_fused_norm",
    "tests/reports/test_browser",
    "tests/reports/test_texts",  # a report
    "tests/test_packaging.py",  # the built package
    "tests/trackers/test_mlflow_",  # a server
)


CORE = (  # `make quick`: what the rest stands on, and quick to run
    "tests/learners/",
    "tests/memory/",
    "tests/nets/test_backbones",
    "tests/nets/test_film",
    "tests/nets/test_heads",
    "tests/streams/test_from_",
    "tests/streams/test_permuting",
    "tests/streams/test_splitting",
    "tests/streams/test_stream",
    "tests/test_files",
    "tests/test_losses",
    "tests/test_metrics",
    "tests/test_packaging_metadata",
    "tests/test_results.py",
    "tests/test_settings",
    "tests/training/test_config",
    "tests/training/test_evaluation",
    "tests/training/test_loop",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the core tests."""
    for item in items:
        slow = "resnet" in item.name or item.get_closest_marker("soak") is not None
        if item.nodeid.startswith(CORE) and not slow:
            item.add_marker(pytest.mark.core)


def pytest_collection_finish() -> None:
    """What is loaded by now stays to the end: the garbage collector need not look through it again and again."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Each worker gets the next test, or all of a line of `TOGETHER`, which come first.

    xdist's own `--dist loadgroup` does this by a suffix of test names, which pytest 9 ignores.
    """
    from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

    scheduler: Any = LoadScopeScheduling(config, log)
    scheduler._split_scope = lambda nodeid: next(filter(nodeid.startswith, TOGETHER), nodeid)
    return scheduler


@dataclass(frozen=True)
class Finished:
    """What a command left behind."""

    code: int
    out: str
    err: str


@pytest.fixture
def command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Finished]:
    """Run `scale-cl` with these arguments in an empty directory, with no data sets, and say how it ended."""
    from scale_cl.cli.main import main

    directory = tmp_path / "here"
    directory.mkdir()
    monkeypatch.chdir(directory)
    monkeypatch.setenv("SCALE_CL_DATA", str(tmp_path / "no-data"))
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments: str | Path) -> Finished:
        capsys.readouterr()
        monkeypatch.setattr(sys, "argv", ["scale-cl", *map(str, arguments)])
        code = 0
        try:
            main()
        except SystemExit as exit_:
            code = exit_.code if isinstance(exit_.code, int) else int(exit_.code is not None)
        captured = capsys.readouterr()
        return Finished(code, captured.out, captured.err)

    return run


@pytest.fixture
def quick_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes of a run are forked off a server that has torch loaded, and not spawned, which takes seconds each.

    They know of this process as little as spawned ones do: `tests/training/test_run.py` has those.
    """
    from tests.training.child import SERVER

    monkeypatch.setattr(multiprocessing, "get_context", lambda method: SERVER)
