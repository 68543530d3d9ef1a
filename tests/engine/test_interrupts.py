"""Ctrl-C at any line of a call: the learner goes on as if it had not begun, or refuses; modes are as they were."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
import torch

from scale_cl.errors import ScaleClError
from scale_cl.learners import Batch, Learner, registry
from scale_cl.streams import TaskInfo
from tests.engine.test_no_effect import all_but_draws, changed, make, open_task
from tests.learners.tiny import VECTORS, batch

PLACES = 3  # of each call that are tried, spread over its lines


class Interrupt:
    """Raises KeyboardInterrupt before the n-th line that runs in this package, or in torch's switches of modes."""

    def __init__(self, after: int) -> None:
        self.left = after

    def __call__(self, frame: FrameType, event: str, _: Any) -> Any:
        file = frame.f_code.co_filename
        if "scale_cl" not in file and not file.endswith(("grad_mode.py", "autocast_mode.py")):
            return None
        if event == "line":
            self.left -= 1
            if self.left == 0:
                raise KeyboardInterrupt
        return self


def interrupted(call: Callable[[], object], after: int) -> bool:
    """Whether the call was interrupted before that line; grad mode must be as it was."""
    before = sys.gettrace()
    interrupt = Interrupt(after)
    sys.settrace(interrupt)
    try:
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
        assert torch.is_grad_enabled()
        assert not torch.is_autocast_enabled("cpu")
    return False


def lines_of(call: Callable[[], object]) -> int:
    counter = Interrupt(10**9)
    before = sys.gettrace()
    sys.settrace(counter)
    try:
        call()
    finally:
        sys.settrace(before)
    return 10**9 - counter.left


def calls(learner: Learner) -> dict[str, Callable[[], object]]:
    x, y = batch(VECTORS, 4, seed=70)
    return {
        "predict": lambda: learner.predict(x, "open"),
        "observe": lambda: learner.observe(x, y),
        "end_task": learner.end_task,
        "begin_task": lambda: learner.begin_task(TaskInfo("next", 3)),
    }


@pytest.mark.parametrize("name", registry.names())
def test_an_interrupted_learner_goes_on_or_refuses(name: str) -> None:
    learner = open_task(make(name, True, mode="stop"))
    sound = learner.state_dict()
    for what in calls(learner):
        learner.load_state_dict(sound)
        if what == "begin_task":
            learner.end_task()
        start = learner.state_dict()
        total = lines_of(calls(learner)[what])
        for place in range(PLACES):
            learner.load_state_dict(start)
            before, after = all_but_draws(learner), 1 + total * place // PLACES + place
            if not interrupted(calls(learner)[what], after):
                continue
            assert learner.net.training
            try:
                now = all_but_draws(learner)
            except ScaleClError as refusal:
                assert what in ("begin_task", "end_task")
                assert str(refusal).startswith(f"{what} was interrupted or failed half-way")  # noqa: PT017
                with pytest.raises(ScaleClError, match="half-way"):
                    learner.observe(*batch(VECTORS, 4))
                with pytest.raises(ScaleClError, match="half-way"):
                    learner.predict(batch(VECTORS, 4)[0], "open")
                learner.load_state_dict(start)
                assert changed(before, all_but_draws(learner)) == []
            else:
                done = learner.steps > start["meta"]["steps"] or learner.current_task != start["meta"]["current"]
                assert done or changed(before, now) == [], f"{what} at line {after} of {total}"
            calls(learner)[what]()


def test_a_step_that_fails_leaves_the_learner_as_it_was() -> None:
    learner = open_task(make("er", True, memory=8, memory_policy="reservoir", memory_budget="total"))
    good, real = all_but_draws(learner), learner.update

    def update(batch: Batch) -> None:
        real(batch)
        raise KeyboardInterrupt

    learner.update = update  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        learner.observe(*batch(VECTORS, 4, seed=3))
    assert changed(good, all_but_draws(learner)) == []
    learner.update = real  # type: ignore[method-assign]
    learner.observe(*batch(VECTORS, 4, seed=3))
    assert changed(good, all_but_draws(learner)) != []
    assert learner.skipped_steps == 0
