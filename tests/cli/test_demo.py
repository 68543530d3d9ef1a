"""`scale-cl demo`, for real."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.training.child import Child


def test_the_demo_shows_forgetting_avoided(command: Callable[..., Any]) -> None:
    finished = command("demo", "--seeds", "1")
    assert finished.code == 0
    rows = {line.split("│")[1].strip(): line.split("│")[2:-1] for line in finished.out.splitlines() if "│" in line}
    fine_tuned, scale = (
        [float(n) for cell in rows[name] for n in cell.split("→")] for name in ("fine-tuning", "SCALE")
    )
    acc, forgetting, _, just_learnt, at_the_end = range(5)
    assert scale[acc] > fine_tuned[acc] + 10
    assert scale[forgetting] < fine_tuned[forgetting] - 10
    assert fine_tuned[just_learnt] - fine_tuned[at_the_end] > scale[just_learnt] - scale[at_the_end] + 10
    assert "scale-cl run" in finished.out
    assert list(Path().iterdir()) == []


def test_ctrl_c_ends_the_demo(tmp_path: Path) -> None:
    child = Child(tmp_path, "demo", "--seeds", "1")
    child.wait_for_words("task 1/10")
    code, out, err = child.interrupt(signal.SIGINT, group=True)
    assert code == 130
    assert err.endswith("scale-cl: stopped as asked; nothing was kept\n")
    assert "ACC" not in out
