"""Progress for people: of a run a live bar on a terminal, one line per task elsewhere; of other work a plain bar.

Everything is written to stderr; stdout holds the result alone.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from scale_cl.cli import counted
from scale_cl.errors import printable

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from scale_cl.streams.sources.source import Progress as Done
    from scale_cl.training.events import Event, Started

_REFRESH = 0.1  # seconds between updates of the bar
_BAR = 16  # characters
_PERCENT = len("  100 %  ")


class Work:
    """What each seed has done, how long this process took for it, and so how long the rest will take.

    Steps of the first task, which mostly have nothing to replay, later steps, and tests, which grow with every task,
    are timed apart. What an earlier process did is done, but counts for no speed.
    """

    _FIRST, _LATER, _TEST = "step of the first task", "later step", "test of one task"

    def __init__(self, seeds: Sequence[int] = (), tasks: int = 0, steps: int = 0) -> None:
        """Nothing is done yet; `steps` are of each seed."""
        self.tasks, self.steps = tasks, steps
        self.first = steps // max(1, tasks)  # steps of the first task, until that is known
        self.stepped = dict.fromkeys(seeds, 0)  # steps done, by seed
        self.tested = dict.fromkeys(seeds, 0)  # tasks after which it was tested, by seed
        self.began = self._mark = time.monotonic()
        self._units: Counter[str] = Counter()
        self._seconds: defaultdict[str, float] = defaultdict(float)

    def restore(self, seed: int, steps: int, tests: int) -> None:
        """An earlier process did so much of this seed."""
        self.stepped[seed], self.tested[seed] = steps, tests

    def step(self, of_each: Sequence[int]) -> None:
        """The seeds have done so many steps each."""
        for seed, steps in zip(self.stepped, of_each, strict=True):
            if steps > self.stepped[seed]:
                self._count(self._LATER if self.tested[seed] else self._FIRST, steps - self.stepped[seed])
                self.stepped[seed] = steps

    def test(self, seed: int, task: int) -> None:
        """A seed was tested on all tasks up to `task`."""
        self._count(self._TEST, task + 1)
        self.tested[seed] = task + 1

    def _count(self, kind: str, units: int) -> None:
        now = time.monotonic()
        self._units[kind] += units
        self._seconds[kind] += now - self._mark
        self._mark = now

    @property
    def rate(self) -> float:
        """Steps per second of each seed, in this process."""
        elapsed = time.monotonic() - self.began
        steps = (self._units[self._FIRST] + self._units[self._LATER]) / max(1, len(self.stepped))
        return steps / elapsed if elapsed > 0 else 0.0

    @property
    def left(self) -> str:
        """The time left, such as `12 s left`; `over 12 s left` until a later step was timed; empty before the first."""
        todo: Counter[str] = Counter()
        for seed, steps in self.stepped.items():
            early = 0 if self.tested[seed] else max(0, self.first - steps)
            todo[self._FIRST] += early
            todo[self._LATER] += self.steps - steps - early
            todo[self._TEST] += sum(range(self.tested[seed] + 1, self.tasks + 1))
        known = {kind: self._seconds[kind] / units for kind, units in self._units.items()}
        timed = [known[kind] for kind in (self._LATER, self._FIRST) if kind in known]
        if not timed:
            return ""
        guess = {self._FIRST: timed[-1], self._LATER: timed[0], self._TEST: 0.0} | known
        bound = "over " if todo[self._LATER] > 0 and self._LATER not in known else ""
        return f"{bound}{clock(sum(units * guess[kind] for kind, units in todo.items()))} left"

    @property
    def active(self) -> list[int]:
        """The seeds in training now."""
        unfinished = [seed for seed, tests in self.tested.items() if tests < self.tasks]
        return [seed for seed in unfinished if self.stepped[seed]] or unfinished[:1] or list(self.tested)[-1:]


class Silent:
    """A listener that shows nothing; the base of those that do: it keeps count."""

    def __init__(self) -> None:
        self.work = Work()
        self.latest: dict[int, float] = {}  # mean accuracy over the tasks so far, by seed
        self.places: dict[str, str] = {}  # where to look, by tracker

    def __call__(self, event: Event) -> None:
        """Count the event and show it."""
        from scale_cl.training.events import Evaluated, Finished, Loaded, Restored, Started, Stepped, TaskStarted

        work = self.work
        match event:
            case Loaded(remarks=remarks):
                for remark in remarks:
                    self.show_remark(remark)
            case Started():
                self.work, self.latest = Work(event.seeds, event.tasks, event.steps), {}
                for name, place in self.places.items():
                    _write(f"tracked with {name}: {place}")
                self.show_start(event)
            case Restored(seed=seed, steps=steps, matrix=matrix):
                work.restore(seed, steps, sum(any(a is not None for a in row) for row in matrix))
            case TaskStarted(task=0, steps=steps):
                work.first = steps
            case Stepped(steps=steps, of_each=of_each):
                work.step(of_each or [steps] * len(work.stepped))
                self.show_step()
            case Evaluated(seed=seed, task=task, accuracies=accuracies):
                work.test(seed, task)
                if tested := [a for a in accuracies if a is not None]:
                    self.latest[seed] = statistics.fmean(tested)
                self.show_test(seed, task)
            case Finished():
                self.show_end()

    def show_remark(self, remark: str) -> None:
        """Something about the data is odd."""

    def show_start(self, event: Started) -> None:
        """Training begins."""

    def show_step(self) -> None:
        """A step, or a block of steps, is done."""

    def show_test(self, seed: int, task: int) -> None:
        """A seed was tested after `task`."""

    def show_end(self) -> None:
        """Training is over."""

    def close(self) -> None:
        """Leave the terminal as it was, also after an error."""

    @property
    def accuracy(self) -> float | None:
        """Mean over seeds and the tasks so far."""
        return statistics.fmean(self.latest.values()) if self.latest else None


class Spoken(Silent):
    """Says what is to come, and what is odd about the data."""

    def show_remark(self, remark: str) -> None:
        """Write it."""
        _write(f"note: {remark}")

    def show_start(self, event: Started) -> None:
        """Write what is to come."""
        size = f"{counted(event.tasks, 'task')}, {counted(event.steps, 'step')}"
        _write(f"{event.learner} on {event.stream}: {size}, {_named(event.seeds)}")


class Lines(Spoken):
    """One line per task, for logs and pipes; seeds that train independently get lines of their own."""

    def __init__(self) -> None:
        super().__init__()
        self._tested: dict[int, list[int]] = {}  # seeds tested after a task whose line is not written yet, by task

    def show_test(self, seed: int, task: int) -> None:
        """Write one line once all seeds are tested."""
        tested = self._tested.setdefault(task, [])
        tested.append(seed)
        if len(tested) == len(self.work.tested):
            del self._tested[task]
            self._write(sorted(tested), task, self.accuracy)

    def show_step(self) -> None:
        """Write a line for each seed that was tested before the others."""
        for task, seeds in self._tested.items():
            for seed in seeds:
                self._write([seed], task, self.latest.get(seed))
        self._tested.clear()

    show_end = show_step

    def _write(self, seeds: Sequence[int], task: int, accuracy: float | None) -> None:
        who = f"{_named(seeds)}, " if len(self.work.tested) > 1 else ""
        reached = "" if accuracy is None else f"accuracy so far {accuracy:.1f}"  # a stream may have nothing to test on
        parts = [reached, f"{self.work.rate:.0f} steps/s", self.work.left]
        _write(f"{who}task {task + 1}/{self.work.tasks}: {', '.join(filter(None, parts))}")


def _named(seeds: Sequence[int]) -> str:
    if len(seeds) == 1:
        return f"seed {seeds[0]}"
    in_a_row = seeds[-1] - seeds[0] == len(seeds) - 1
    return f"seeds {seeds[0]} to {seeds[-1]}" if in_a_row else f"seeds {', '.join(map(str, seeds))}"


def _write(line: str) -> None:
    print(printable(line), file=sys.stderr, flush=True)


class Bar(Spoken):
    """A progress bar of one line."""

    def __init__(self) -> None:
        super().__init__()
        self._progress: Progress | None = None
        self._bar: TaskID | None = None
        self._drawn = 0.0

    def show_start(self, event: Started) -> None:
        """Draw the empty bar under what is to come."""
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        self.close()
        super().show_start(event)
        self._progress = Progress(
            BarColumn(bar_width=_BAR),
            TextColumn("{task.percentage:3.0f} %  {task.fields[state]}"),
            console=Console(stderr=True),
            auto_refresh=False,
        )
        self._bar = self._progress.add_task("", total=event.steps, state="")
        self._progress.start()
        self._draw()

    def show_step(self) -> None:
        """Move the bar, a few times per second."""
        if time.monotonic() - self._drawn > _REFRESH:
            self._draw()

    def show_test(self, seed: int, task: int) -> None:
        """Show the new accuracy."""
        self._draw()

    def show_end(self) -> None:
        """Leave the full bar standing."""
        self._draw()
        self.close()

    def close(self) -> None:
        """Show the cursor again."""
        if self._progress is not None:
            self._progress.stop()
            self._progress = None

    def _draw(self) -> None:
        self._drawn = time.monotonic()
        if self._progress is None or self._bar is None:
            return
        room = self._progress.console.width - _BAR - _PERCENT
        done = statistics.fmean(self.work.stepped.values())
        self._progress.update(self._bar, completed=done, state=self._state(room), refresh=True)

    def _state(self, room: int) -> str:
        """Seeds, task, speed, accuracy and time left; without the speed if that needs more than `room` characters."""
        work, active = self.work, self.work.active
        task = min(min(work.tested[seed] for seed in active) + 1, work.tasks)
        who = _named(active) if len(work.tested) > 1 else ""
        accuracy = "" if self.accuracy is None else f"accuracy {self.accuracy:.1f}"
        parts = [who, f"task {task}/{work.tasks}", f"{work.rate:.0f} steps/s", accuracy, work.left]
        text = "  ".join(filter(None, parts))
        return text if len(text) <= room else "  ".join(filter(None, parts[:2] + parts[3:]))


def for_person(*, quiet: bool, places: Mapping[str, str] | None = None) -> Silent:
    """The progress display that suits stderr; `places` are where trackers write, shown when training starts."""
    shown = Silent() if quiet else Bar() if sys.stderr.isatty() else Lines()
    shown.places = dict(places or {})
    return shown


@contextmanager
def bar(text: str) -> Iterator[Done | None]:
    """A function that shows how much of how much is done as a bar, if stderr is a terminal."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    if not console.is_terminal:
        yield None
        return
    with Progress(console=console, transient=True) as shown:
        line = shown.add_task(text, total=None)
        yield lambda done, total: shown.update(line, completed=done, total=total)


def clock(seconds: float) -> str:
    """A duration as `48 s`, `12:05` or `3:01:00`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    return f"{minutes}:{rest:02}" if minutes < 60 else f"{minutes // 60}:{minutes % 60:02}:{rest:02}"
