"""Who moves the lanes: on a GPU a thread for each, as sending a step to the device takes the host as long as the step.

Sending a recorded step needs no interpreter, so the threads do not wait for one another. A lane always has the same
thread, because libraries keep state for each. Elsewhere, and with one lane, the caller does it all in turn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import TypeVar

from scale_cl.training.learner_run import LearnerRun

T = TypeVar("T")
FIRST, MOST = 125, 500  # steps of a lane that its thread makes at a stretch: at first, and at most
QUICK, SLOW = 0.5, 4.0  # seconds of a stretch: after a quicker one the next is longer, after a slower one shorter


class Runners:
    """Does something with every lane and waits until it is done."""

    def __init__(self, threads: dict[int, ThreadPoolExecutor]) -> None:
        """`threads` by `id` of the lane; without any, the caller is the runners."""
        self._threads = threads
        self._block = FIRST if threads else 1

    @property
    def block(self) -> int:
        """Steps that are made before the caller looks around.

        Many, as lanes are recorded one after another and those that are done with it should not wait for the rest.
        """
        return self._block

    def took(self, steps: int, seconds: float) -> None:
        """How long a block was: the next ones are to be long enough not to matter and short enough to see progress.

        One that was cut short, by a task's end or a checkpoint, says nothing of longer ones being quick.
        """
        if not self._threads:
            return
        if seconds > SLOW:
            self._block = max(1, self._block // 2)
        elif seconds < QUICK and steps == self._block:
            self._block = min(2 * self._block, MOST)

    def each(self, lanes: Sequence[LearnerRun], do: Callable[[LearnerRun], T]) -> list[T]:
        """What `do` gives for each lane; an error comes out when all are done, the first lane's first."""
        if not self._threads:
            return [do(lane) for lane in lanes]
        doing = [self._threads[id(lane)].submit(do, lane) for lane in lanes]
        wait(doing)
        return [one.result() for one in doing]

    def in_turn(self, lanes: Sequence[LearnerRun], do: Callable[[LearnerRun], T]) -> list[T]:
        """As `each`, one lane after another: for what is many small calls, where threads would wait for one another.

        Each of these calls lets go of the interpreter and wants it back at once, so that twenty threads at once take
        several times as long as the same one by one. An error comes out at once.
        """
        if not self._threads:
            return [do(lane) for lane in lanes]
        return [self._threads[id(lane)].submit(do, lane).result() for lane in lanes]


@contextmanager
def runners_of(lanes: Sequence[LearnerRun]) -> Iterator[Runners]:
    """The runners of these lanes, as long as they are under way."""
    on_gpu = all(lane.learner.device.type == "cuda" for lane in lanes)
    threads = {id(lane): ThreadPoolExecutor(1) for lane in lanes} if on_gpu and len(lanes) > 1 else {}
    try:
        yield Runners(threads)
    finally:
        for thread in threads.values():
            thread.shutdown()
