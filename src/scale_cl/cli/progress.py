"""The progress of a run for people: a live bar on a terminal, one line per task elsewhere.

Everything is written to stderr; stdout holds the result alone.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from scale_cl.errors import printable

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from scale_cl.training.events import Event, Started

_REFRESH = 0.1  # seconds between updates of the bar


class Silent:
    """A listener that shows nothing; the base of those that do: it keeps count."""

    def __init__(self) -> None:
        self.seeds: tuple[int, ...] = ()
        self.tasks = self.steps = self.done = 0
        self.task = 0
        self.began = time.monotonic()
        self.latest: dict[int, float] = {}  # mean accuracy over the tasks so far, by seed
        self.places: dict[str, str] = {}  # where to look, by tracker

    def __call__(self, event: Event) -> None:
        """Count the event and show it."""
        from scale_cl.training.events import Evaluated, Finished, Started, Stepped, TaskStarted

        match event:
            case Started():
                self.seeds, self.tasks, self.steps, self.done = event.seeds, event.tasks, event.steps, 0
                self.latest = {}
                self.began = time.monotonic()
                for name, place in self.places.items():
                    _write(f"tracked with {name}: {place}")
                self.show_start(event)
            case TaskStarted(task=task):
                self.task = task
            case Stepped(steps=steps):
                self.done = steps
                self.show_step()
            case Evaluated(seed=seed, task=task, accuracies=accuracies):
                self.latest[seed] = statistics.fmean(accuracies)
                self.show_test(seed, task)
            case Finished():
                self.show_end()

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

    @property
    def rate(self) -> float:
        """Steps per second of each seed."""
        elapsed = time.monotonic() - self.began
        return self.done / elapsed if elapsed > 0 else 0.0

    @property
    def seconds_left(self) -> float | None:
        """At the speed so far; None before the first step."""
        return (self.steps - self.done) / self.rate if self.done else None


class Lines(Silent):
    """One line per task, for logs and pipes; seeds that train independently get lines of their own."""

    def __init__(self) -> None:
        super().__init__()
        self._tested: dict[int, list[int]] = {}  # seeds tested after a task whose line is not written yet, by task

    def show_start(self, event: Started) -> None:
        """Write what is to come."""
        seeds = event.seeds
        many = f"seeds {seeds[0]} to {seeds[-1]}" if len(seeds) > 1 else f"seed {seeds[0]}"
        _write(f"{event.learner} on {event.stream}: {event.tasks} tasks, {event.steps} steps, {many}")

    def show_test(self, seed: int, task: int) -> None:
        """Write one line once all seeds are tested."""
        tested = self._tested.setdefault(task, [])
        tested.append(seed)
        if len(tested) == len(self.seeds):
            del self._tested[task]
            self._write("", task, self.accuracy)

    def show_step(self) -> None:
        """Write a line for each seed that was tested before the others."""
        for task, seeds in self._tested.items():
            for seed in seeds:
                self._write(f"seed {seed}, ", task, self.latest[seed])
        self._tested.clear()

    show_end = show_step

    def _write(self, who: str, task: int, accuracy: float | None) -> None:
        left = self.seconds_left
        _write(
            f"{who}task {task + 1}/{self.tasks}: accuracy so far {accuracy:.1f}, {self.rate:.0f} steps/s"
            + ("" if left is None else f", {clock(left)} left")
        )


def _write(line: str) -> None:
    print(printable(line), file=sys.stderr, flush=True)


class Bar(Silent):
    """A progress bar of one line."""

    def __init__(self) -> None:
        super().__init__()
        self._progress: Progress | None = None
        self._bar: TaskID | None = None
        self._drawn = 0.0

    def show_start(self, event: Started) -> None:
        """Draw the empty bar."""
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        self.close()
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=16),
            TextColumn("{task.percentage:3.0f} %  {task.fields[state]}"),
            console=Console(stderr=True),
            auto_refresh=False,
        )
        self._bar = self._progress.add_task(
            printable(f"{event.learner} on {event.stream}"), total=event.steps, state=""
        )
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
        parts = [f"task {min(self.task + 1, self.tasks)}/{self.tasks}", f"{self.rate:.0f} steps/s"]
        if self.accuracy is not None:
            parts.append(f"accuracy {self.accuracy:.1f}")
        left = self.seconds_left
        if left is not None:
            parts.append(f"{clock(left)} left")
        self._progress.update(self._bar, completed=self.done, state="  ".join(parts), refresh=True)


def for_person(*, quiet: bool, places: Mapping[str, str] | None = None) -> Silent:
    """The progress display that suits stderr; `places` are where trackers write, shown when training starts."""
    shown = Silent() if quiet else Bar() if sys.stderr.isatty() else Lines()
    shown.places = dict(places or {})
    return shown


def clock(seconds: float) -> str:
    """A duration as `48 s`, `12:05` or `3:01:00`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    return f"{minutes}:{rest:02}" if minutes < 60 else f"{minutes // 60}:{minutes % 60:02}:{rest:02}"
