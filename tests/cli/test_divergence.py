"""A run that diverges says where and why, and leaves its last good state."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from scale_cl import results


@pytest.mark.parametrize("learner", ["finetune", "gem", "agem", "mir"])
def test_too_large_a_learning_rate_ends_the_run_and_nothing_is_left(command: Callable[..., Any], learner: str) -> None:
    ended = command("run", "--learner", learner, "--set", "lr=1e30", "--tasks", "2", "-q", "--out", "o")
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith("scale-cl: error: seed 0, step ")
    assert " is not a finite number, with lr 1e+30; lower the rate" in ended.err
    assert not Path("o").exists(), "there was no good state yet"


def test_skipping_goes_on_to_the_end(command: Callable[..., Any]) -> None:
    run = ("run", "--learner", "finetune", "--set", "lr=1e30", "--tasks", "2", "-q", "--out", "o")
    assert command(*run, "--on-divergence", "skip").code == 0
    assert results.read(Path("o")).seeds[0].acc is not None
    refused = command(*run, "--on-divergence", "hope", "--force")
    assert refused.code == 2
    assert "run.on_divergence: 'hope' is not one of stop, skip" in refused.err
