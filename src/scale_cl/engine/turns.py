"""One thread at a time: training and prediction of a learner take turns.

A prediction switches the network to evaluation, where a step would lose its batch statistics, and a step moves the
weights under a prediction. So every call that touches the state of a learner is a turn of its own. A turn may contain
others of the same thread. What is interrupted, by Ctrl-C for instance, gives its turn back.

`fork` copies only the thread that calls it. It waits until it has the turn of every learner, so that no learner is
copied in the middle of a step, and no turn belongs to a thread that the new process does not have.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec, Protocol, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

_MOMENT = 1e-4  # seconds in which a waiting thread wakes up
_PATIENCE = 30.0  # seconds that a fork waits for a turn; a thread that needs longer may be waiting for the fork


class Turns:
    """Gives one thread after another its turn."""

    def __init__(self) -> None:
        """Nobody has a turn."""
        self._lock = threading.RLock()
        self._waiting: set[object] = set()  # one object for each call that waits
        self._depth = 0  # of turns within turns; 0: nobody has one
        number = id(self)
        _all[number] = weakref.ref(self, lambda _: _all.pop(number, None))

    def take(self, function: Callable[P, T], *given: P.args, **named: P.kwargs) -> T:
        """What `function` returns, called when no other thread has a turn."""
        call = object()
        try:
            self._waiting.add(call)
            with self._lock:  # a lock's own `with` is the one form in which no interrupt can leave it locked
                self._waiting.discard(call)
                self._depth += 1
                try:
                    return function(*given, **named)
                finally:
                    self._depth -= 1
        finally:
            self._waiting.discard(call)
            if self._waiting and not self._depth:  # a lock is not fair: this thread could be the next one again
                time.sleep(_MOMENT)

    def __reduce__(self) -> tuple[type[Turns], tuple[()]]:
        """A copy of a learner has turns of its own."""
        return Turns, ()

    def hold(self) -> bool:
        """Take a turn that lasts until `let_go`; False if another thread did not end its own in time."""
        return self._lock.acquire(timeout=_PATIENCE)

    def let_go(self) -> None:
        """End a turn that `hold` began."""
        self._lock.release()

    def renew(self) -> None:
        """In a new process: nobody has a turn, and nobody waits."""
        self._lock = threading.RLock()
        self._waiting.clear()


class TakesTurns(Protocol):
    """Something whose methods are turns."""

    @property
    def turns(self) -> Turns:
        """Shared by all that touch the same learner."""


S = TypeVar("S", bound=TakesTurns)


def in_turn(method: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[S, P], T]:
    """A method that is a turn: it runs while no other thread has one."""

    @wraps(method)
    def alone(self: S, /, *given: P.args, **named: P.kwargs) -> T:
        return self.turns.take(method, self, *given, **named)

    return alone


# ---- fork ------------------------------------------------------------------------------------------------------------
_all: dict[int, weakref.ref[Turns]] = {}
_held = threading.local()  # by the thread that forks


def _existing() -> list[Turns]:
    return [turns for found in list(_all.values()) if (turns := found()) is not None]


def _before_fork() -> None:
    _held.turns = [turns for turns in _existing() if turns.hold()]


def _after_fork() -> None:
    for turns in _held.__dict__.pop("turns", []):
        turns.let_go()


def _after_fork_in_child() -> None:
    _held.__dict__.clear()
    for turns in _existing():
        turns.renew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork_in_child)
