"""Progress of a run for a person: a live bar on a terminal, a line a task elsewhere.

Everything goes to stderr, so that stdout holds the result alone.
"""

from __future__ import annotations

import statistics
import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

_REFRESH = 0.1  # seconds between updates of the bar


class Silent:
    """Says nothing; also the base of those that do: it keeps count."""

    def __init__(self) -> None:
        self.seeds: list[int] = []
        self.tasks = self.steps = self.done = 0
        self.task = 0
        self.name = ""
        self.began = time.monotonic()
        self.latest: dict[int, float] = {}  # mean accuracy over the tasks so far, by seed

    def started(self, stream: str, learner: str, seeds: list[int], tasks: int, steps: int) -> None:
        """Training begins; `steps` are those of one seed."""
        self.seeds, self.tasks, self.steps, self.done = seeds, tasks, steps, 0
        self.latest = {}
        self.began = time.monotonic()

    def task_started(self, task: int, name: str, steps: int) -> None:
        """A task begins, of so many steps."""
        self.task, self.name = task, name

    def stepped(self, steps: int) -> None:
        """So many steps of one seed are done."""
        self.done = steps

    def evaluated(self, seed: int, task: int, accuracies: list[float]) -> None:
        """One seed was tested on tasks 0..task."""
        self.latest[seed] = statistics.fmean(accuracies)

    def finished(self) -> None:
        """Training is over."""

    def close(self) -> None:
        """Leave the terminal as it was, also after an error."""

    @property
    def accuracy(self) -> float | None:
        """Mean over seeds and the tasks so far."""
        return statistics.fmean(self.latest.values()) if self.latest else None

    @property
    def rate(self) -> float:
        """Steps a second, of all seeds side by side."""
        elapsed = time.monotonic() - self.began
        return self.done / elapsed if elapsed > 0 else 0.0

    @property
    def seconds_left(self) -> float | None:
        """At the pace so far; None before the first step."""
        return (self.steps - self.done) / self.rate if self.done else None


class Places(Silent):
    """Says where trackers write, once there is something to write: the data was read and training begins."""

    def __init__(self, places: dict[str, str]) -> None:
        super().__init__()
        self._places = places

    def started(self, stream: str, learner: str, seeds: list[int], tasks: int, steps: int) -> None:
        """A line a tracker."""
        for name, place in self._places.items():
            print(f"tracked with {name}: {place}", file=sys.stderr, flush=True)


class Lines(Silent):
    """A line a task, for logs and pipes; seeds that do not keep step get lines of their own."""

    def __init__(self) -> None:
        super().__init__()
        self._tested: dict[int, list[int]] = {}  # task: seeds tested on it that no line has told of yet

    def started(self, stream: str, learner: str, seeds: list[int], tasks: int, steps: int) -> None:
        """Say what is to come."""
        super().started(stream, learner, seeds, tasks, steps)
        many = f"seeds {seeds[0]} to {seeds[-1]}" if len(seeds) > 1 else f"seed {seeds[0]}"
        self._say(f"{learner} on {stream}: {tasks} tasks, {steps} steps, {many}")

    def stepped(self, steps: int) -> None:
        """Training goes on: whoever was tested alone is not in step with the others."""
        super().stepped(steps)
        self._tell_alone()

    def evaluated(self, seed: int, task: int, accuracies: list[float]) -> None:
        """Say it once all seeds are tested."""
        super().evaluated(seed, task, accuracies)
        tested = self._tested.setdefault(task, [])
        tested.append(seed)
        if len(tested) == len(self.seeds):
            del self._tested[task]
            self._tell("", task, self.accuracy)

    def finished(self) -> None:
        """Leave nothing untold."""
        self._tell_alone()

    def _tell_alone(self) -> None:
        for task, seeds in self._tested.items():
            for seed in seeds:
                self._tell(f"seed {seed}, ", task, self.latest[seed])
        self._tested.clear()

    def _tell(self, who: str, task: int, accuracy: float | None) -> None:
        left = self.seconds_left
        self._say(
            f"{who}task {task + 1}/{self.tasks}: accuracy so far {accuracy:.1f}, {self.rate:.0f} steps/s"
            + ("" if left is None else f", {clock(left)} left")
        )

    def _say(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)


class Bar(Silent):
    """One live line on a terminal."""

    def __init__(self) -> None:
        super().__init__()
        self._progress: Progress | None = None
        self._bar: TaskID | None = None
        self._drawn = 0.0

    def started(self, stream: str, learner: str, seeds: list[int], tasks: int, steps: int) -> None:
        """Draw the empty bar."""
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        super().started(stream, learner, seeds, tasks, steps)
        self.close()
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=16),
            TextColumn("{task.percentage:3.0f} %  {task.fields[state]}"),
            console=Console(stderr=True),
            auto_refresh=False,
        )
        self._bar = self._progress.add_task(f"{learner} on {stream}", total=steps, state="")
        self._progress.start()
        self._draw()

    def stepped(self, steps: int) -> None:
        """Move the bar, a few times a second."""
        super().stepped(steps)
        if time.monotonic() - self._drawn > _REFRESH:
            self._draw()

    def evaluated(self, seed: int, task: int, accuracies: list[float]) -> None:
        """Show the new accuracy."""
        super().evaluated(seed, task, accuracies)
        self._draw()

    def finished(self) -> None:
        """Leave the full bar standing."""
        self._draw()
        self.close()

    def close(self) -> None:
        """Give the cursor back."""
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


def for_person(*, quiet: bool) -> Silent:
    """What suits where stderr goes."""
    if quiet:
        return Silent()
    return Bar() if sys.stderr.isatty() else Lines()


def clock(seconds: float) -> str:
    """`48 s`, `12:05` or `3:01:00`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    return f"{minutes}:{rest:02}" if minutes < 60 else f"{minutes // 60}:{minutes % 60:02}:{rest:02}"
