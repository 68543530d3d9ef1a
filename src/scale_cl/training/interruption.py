"""SIGINT and SIGTERM as a wish: the run ends its step, saves, and stops. A second SIGINT ends it at once.

Processes that a run starts have these signals blocked and follow their parent's word; they never outlive it.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import wait
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Wish:
    """Whether the run is to stop; call it to ask."""

    def __init__(self) -> None:
        """Not yet."""
        self.asked = False

    def __call__(self) -> bool:
        """Whether it was asked."""
        return self.asked


@contextmanager
def watched() -> Iterator[Wish]:
    """While inside, signals become a wish; outside the main thread, where Python has none, nothing changes."""
    wish = Wish()

    def ask(number: int, _frame: FrameType | None) -> None:
        if wish.asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        wish.asked = True

    if threading.current_thread() is not threading.main_thread():
        yield wish
        return
    before = {number: signal.signal(number, ask) for number in _SIGNALS}
    try:
        yield wish
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def blocked() -> Iterator[None]:
    """Processes started inside have the signals blocked for good: a terminal sends Ctrl-C to them as well."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def die_with_parent() -> None:
    """In a process that a run has started: end at once when the parent is gone, however it went."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_await_end, args=(parent.sentinel,), daemon=True).start()


def _await_end(sentinel: int) -> None:
    wait([sentinel])
    os._exit(1)
