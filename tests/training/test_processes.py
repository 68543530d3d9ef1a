"""Seeds over processes that fail, are killed, or are asked to stop once or twice."""

from __future__ import annotations

import multiprocessing
import operator
import os
import signal
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from scale_cl.errors import DivergenceError, Interrupted, ScaleClError
from scale_cl.results import SeedResult
from scale_cl.training.events import Event, Listener, Loaded
from scale_cl.training.parallel import train_over_processes

pytestmark = pytest.mark.usefixtures("quick_processes")


def result(seed: int) -> SeedResult:
    return SeedResult("digits", "er", seed, {}, ["one"], [[50.0]], 1.0, 0.1)


def until_stopped(seed: int, tell: Listener, stop: Callable[[], bool]) -> SeedResult:
    """Trains for ever, unless it is asked to stop."""
    tell(Loaded())
    while not stop():
        time.sleep(0.005)
    raise Interrupted(f"seed {seed} has saved its state")


def at_once(seed: int, tell: Listener, stop: Callable[[], bool]) -> SeedResult:
    return result(seed)


def deaf(seed: int, tell: Listener, stop: Callable[[], bool]) -> SeedResult:
    """Hears of no wish to stop."""
    tell(Loaded())
    time.sleep(600)
    return result(seed)


class Strange(Exception):
    """An error that no other process can read."""

    def __init__(self, one: str, other: str) -> None:
        super().__init__(one)


def failing(how: str, seed: int, tell: Listener, stop: Callable[[], bool]) -> SeedResult:
    if seed == 0:
        return until_stopped(seed, tell, stop)
    if how in ("killed", "broken"):
        os.kill(os.getpid(), signal.SIGKILL if how == "killed" else signal.SIGSEGV)
    if how == "gone":
        os._exit(3)
    if how == "strange":
        raise Strange("of somebody", "else")
    raise DivergenceError("the loss is nan") if how == "ours" else ZeroDivisionError("by nothing")


def ignore(seed: int, event: Event) -> None:
    """Nobody listens."""


def trained(train: Any, *, tell: Callable[[int, Event], None] = ignore, stop: Callable[[], bool] | None = None) -> Any:
    try:
        return train_over_processes(train, [0, 1, 2], 2, tell=tell, stop=stop)
    finally:
        assert multiprocessing.active_children() == [], "all have ended, whatever happened"


def test_three_seeds_over_two_processes_come_back_in_order() -> None:
    assert trained(at_once) == [result(0), result(1), result(2)]


@pytest.mark.parametrize(
    ("how", "kind", "said"),
    [
        ("killed", ScaleClError, r"^a process of this run was killed \(signal 9\), perhaps for want of memory; .*"),
        ("broken", ScaleClError, r"^a process of this run was killed \(signal 11\)$"),
        ("gone", ScaleClError, r"^a process of this run ended by itself \(exit code 3\), and what it printed says .*"),
        ("ours", DivergenceError, "^the loss is nan$"),
        ("foreign", ZeroDivisionError, "by nothing"),
        ("strange", RuntimeError, "^Strange: of somebody$"),
    ],
)
def test_an_error_of_one_seed_stops_the_others_and_comes_out(how: str, kind: type[Exception], said: str) -> None:
    with pytest.raises(kind, match=said) as raised:
        trained(partial(failing, how))
    notes = getattr(raised.value, "__notes__", [])
    assert bool(notes) == (how == "foreign")
    assert all('raise DivergenceError("the loss is nan")' in note for note in notes), "where it arose"


class Unreadable:
    """Can be sent to another process, and not be read there."""

    def __reduce__(self) -> tuple[Any, ...]:
        return operator.getitem, ({}, "gone")


def test_a_process_that_cannot_begin_says_why() -> None:
    with pytest.raises(ScaleClError, match=r"^a process of this run could not begin: KeyError: 'gone'$"):
        trained(Unreadable())


def test_one_wish_lets_seeds_save_and_seeds_that_wait_are_not_begun() -> None:
    heard: set[int] = set()

    def tell(seed: int, event: Event) -> None:
        heard.add(seed)

    with pytest.raises(Interrupted, match="has saved its state"):
        trained(until_stopped, tell=tell, stop=lambda: len(heard) == 2)
    assert heard == {0, 1}


def test_an_interrupt_without_a_wish_lets_seeds_save_too() -> None:
    def tell(seed: int, event: Event) -> None:
        if seed == 0:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt) as raised:
        trained(until_stopped, tell=tell)
    assert isinstance(raised.value.__context__, Interrupted | None)


def test_a_second_wish_ends_processes_that_do_not_listen() -> None:
    heard: set[int] = set()

    def tell(seed: int, event: Event) -> None:
        heard.add(seed)
        signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        trained(deaf, tell=tell, stop=lambda: bool(heard))


def test_an_error_of_a_listener_ends_the_processes() -> None:
    def tell(seed: int, event: Event) -> None:
        raise LookupError("a listener's own")

    with pytest.raises(LookupError, match="a listener's own"):
        trained(deaf, tell=tell)
