"""Threads that train, predict and fork: training and prediction of a learner take turns, and every turn ends."""

from __future__ import annotations

import os
import random
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import pytest
import torch
from torch import Tensor

from scale_cl import InputSpec, TaskInfo
from scale_cl.learners import Er, Learner

PIXELS = torch.randint(0, 256, (60, 3, 8, 8), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
POINTS = torch.randn(60, 4, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(60) % 2


def resnet() -> Learner:
    """A network with batch norm and a weight average, whose statistics are measured for predictions too."""
    config = Er.config_class(weight_average=0.9, norm_on_memory=True, memory=8, replay=4)
    return Er(InputSpec((3, 8, 8), 255.0, "task"), config, seed=3)


def small() -> Learner:
    config = Er.config_class(backbone="mlp-8", memory=8, replay=4)
    learner = Er(InputSpec((4,), None, "task"), config, seed=3)
    learner.begin_task(TaskInfo("first", 2))
    return learner


def trained(learner: Learner) -> dict[str, Tensor]:
    for task, steps in (("first", 3), ("second", 2)):
        learner.begin_task(TaskInfo(task, 2))
        for start in range(0, 4 * steps, 4):
            learner.observe(PIXELS[start : start + 4], LABELS[start : start + 4])
    learner.end_task()
    return learner.state_dict()["tensors"]


@contextmanager
def beside(*calls: Callable[[], object]) -> Iterator[list[object]]:
    """Within the context, each call is repeated in a thread of its own; what the calls return or raise is listed."""
    found: list[object] = []
    over = threading.Event()

    def repeat(call: Callable[[], object]) -> None:
        try:
            while not over.is_set():
                found.append(call())
        except BaseException as error:
            found.append(error)
            raise

    threads = [threading.Thread(target=repeat, args=(call,), daemon=True) for call in calls]
    for thread in threads:
        thread.start()
    try:
        yield found
    finally:
        over.set()
        for thread in threads:
            thread.join(60)
    assert not any(thread.is_alive() for thread in threads)


def test_predictions_of_other_threads_leave_training_as_it_is_to_the_bit() -> None:
    expected, learner = trained(resnet()), resnet()
    learner.begin_task(TaskInfo("first", 2))
    x = PIXELS[:2]
    with beside(lambda: learner.predict(x, "first"), lambda: learner.predict(x)) as found:
        tensors = trained(learner)
    assert all(isinstance(scores, Tensor) and bool(scores.isfinite().all()) for scores in found)
    assert len(found) > 2
    assert [name for name, value in expected.items() if not torch.equal(tensors[name], value)] == []


def test_a_prediction_does_not_wait_for_the_end_of_training() -> None:
    learner = small()
    with beside(lambda: learner.predict(POINTS[:2], "first")) as found:
        for _ in range(400):
            learner.observe(POINTS[:4], LABELS[:4])
            if len(found) > 5:
                break
    assert learner.steps < 400


def test_an_interrupt_gives_the_turn_back() -> None:
    learner, draw = small(), random.Random(0)

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before, interrupted = signal.signal(signal.SIGALRM, interrupt), 0
    try:
        with beside(lambda: learner.predict(POINTS[:2], "first")):
            for _ in range(60):
                try:
                    signal.setitimer(signal.ITIMER_REAL, draw.uniform(1e-4, 3e-3))
                    while True:
                        learner.observe(POINTS[:4], LABELS[:4])
                except KeyboardInterrupt:
                    interrupted += 1
                    torch.set_grad_enabled(True)  # an interrupted `no_grad` may leave it off
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert interrupted == 60
    answers: list[Tensor] = []
    other = threading.Thread(target=lambda: answers.append(learner.predict(POINTS[:2], "first")), daemon=True)
    other.start()
    other.join(60)
    assert len(answers) == 1


def test_a_turn_may_contain_others_and_ends_with_an_error() -> None:
    turns = small().engine.turns

    def fail() -> None:
        turns.take(lambda: None)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        turns.take(fail)
    answers: list[int] = []
    other = threading.Thread(target=lambda: answers.append(turns.take(lambda: 1)), daemon=True)
    other.start()
    other.join(60)
    assert answers == [1]


def forked(child: Callable[[], bool]) -> None:
    """Run `child` in a fork of this process, which must end well and soon."""
    number = os.fork()
    if number == 0:
        signal.alarm(60)  # a child that waits for ever is ended
        code = 1
        try:
            code = 0 if child() else 2
        finally:
            os._exit(code)
    _, status = os.waitpid(number, 0)
    assert os.waitstatus_to_exitcode(status) == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_fork_has_the_learner_between_two_steps_and_its_turns() -> None:
    learner = small()

    def in_child() -> bool:
        torch.set_num_threads(1)
        same = torch.equal(learner.predict(POINTS[:2], "first"), learner.predict(POINTS[:2], "first"))
        steps = learner.steps
        learner.observe(POINTS[:4], LABELS[:4])
        return same and all(m.training for m in learner.net.modules()) and learner.steps == steps + 1

    def step() -> None:
        learner.observe(POINTS[:4], LABELS[:4])

    with beside(step, lambda: learner.predict(POINTS[:2], "first")) as found:
        for _ in range(8):
            forked(in_child)
    assert not [error for error in found if isinstance(error, BaseException)]
