"""A run that diverges says where and why, and leaves its last good state."""

from __future__ import annotations

import re
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
    advice = "lower the rate, or let such steps be skipped (run.on_divergence=skip)\n"
    assert ended.err.endswith(f" is not a finite number, with lr 1e+30; {advice}")
    assert not Path("o").exists(), "there was no good state yet"


def test_skipping_goes_on_to_the_end_and_says_what_it_cost(
    command: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    run = ("run", "--learner", "finetune", "--set", "lr=1e30", "--tasks", "2", "-q", "--out", "o")
    finished = command(*run, "--on-divergence", "skip")
    assert finished.code == 0
    assert re.fullmatch(
        r"scale-cl: warning: seed 0: 1\d\d of 200 steps were skipped, because a loss or gradient was not finite; "
        "the model is likely useless: lower the rate",
        caplog.records[-1].getMessage(),
    )
    assert results.read(Path("o")).seeds[0].acc is not None
    refused = command(*run, "--on-divergence", "hope", "--force")
    assert refused.code == 2
    assert "run.on_divergence: 'hope' is not one of stop, skip" in refused.err


def test_what_diverges_when_a_task_ends_leaves_no_result(command: Callable[..., Any]) -> None:
    ended = command(
        "run", "--learner", "gdumb", "--set", "lr=1e6", "--set", "clip=0", "--tasks", "2", "-q", "--out", "o"
    )
    assert (ended.code, ended.out) == (2, "")
    assert re.fullmatch(
        r"scale-cl: error: seed 0: gdumb diverged when task '.+' ended: what it learned is not finite, "
        r"with lr 1e\+06, last_lr 0.0005; lower the rate\n",
        ended.err,
    )
    assert not Path("o").exists()
