"""Progress: a line a task in a log, a bar on a terminal, silence when asked."""

from __future__ import annotations

import io
import sys
import time

import pytest

from scale_cl.cli import progress
from scale_cl.training.events import Evaluated, Event, Finished, Loaded, Restored, Started, Stepped, TaskStarted


class Terminal(io.StringIO):
    """A stderr that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def drive(shown: progress.Silent) -> None:
    """Two seeds, two tasks of three steps."""
    shown(Started("digits", "scale", (0, 1), 2, 6))
    for task in range(2):
        shown(TaskStarted(task, f"task-{task}", 3))
        for step in range(3):
            shown(Stepped(3 * task + step + 1))
        for seed in (0, 1):
            shown(Evaluated(seed, task, [80.0 + 10 * seed] * (task + 1)))
    shown(Finished())
    shown.close()


def test_a_log_gets_a_line_a_task_once_all_seeds_are_tested(capsys: pytest.CaptureFixture[str]) -> None:
    drive(progress.Lines())
    captured = capsys.readouterr()
    assert captured.out == ""
    first, one, two = captured.err.splitlines()
    assert first == "scale on digits: 2 tasks, 6 steps, seeds 0 to 1"
    assert one.startswith("seeds 0 to 1, task 1/2: accuracy so far 85.0, ")
    assert "steps/s" in one
    assert one.endswith(" left")
    assert two.startswith("seeds 0 to 1, task 2/2: accuracy so far 85.0, ")


def test_one_task_of_one_step_is_singular(capsys: pytest.CaptureFixture[str]) -> None:
    progress.Lines()(Started("mine", "scale", (0,), 1, 1))
    assert capsys.readouterr().err == "scale on mine: 1 task, 1 step, seed 0\n"


def test_seeds_that_do_not_keep_step_get_lines_of_their_own(capsys: pytest.CaptureFixture[str]) -> None:
    shown = progress.Lines()
    shown(Started("digits", "scale", (0, 1), 1, 4))
    shown(TaskStarted(0, "task-0", 4))
    shown(Stepped(2))
    shown(Evaluated(0, 0, [70.0]))
    shown(Stepped(3))
    shown(Stepped(4))
    shown(Evaluated(1, 0, [80.0]))
    shown(Finished())
    _, one, two = capsys.readouterr().err.splitlines()
    assert one.startswith("seed 0, task 1/1: accuracy so far 70.0, ")
    assert two.startswith("seed 1, task 1/1: accuracy so far 80.0, ")


def test_a_terminal_gets_a_bar_with_task_speed_accuracy_and_time(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "150")
    shown = progress.for_person(quiet=False)
    assert isinstance(shown, progress.Bar)
    drive(shown)
    drawn = terminal.getvalue()
    for part in ("scale on digits", "task 2/2", "steps/s", "accuracy 85.0", "0 s left", "100 %"):
        assert part in drawn
    assert drawn.endswith("\x1b[?25h")  # the cursor is back


def test_a_bar_that_is_cut_short_gives_the_cursor_back(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    shown = progress.for_person(quiet=False)
    shown(Started("digits", "scale", (0,), 2, 6))
    shown.close()
    shown(Stepped(1))
    assert terminal.getvalue().endswith("\x1b[?25h")


class Clock:
    """A clock that a test moves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(time, "monotonic", lambda: self.now)

    def pass_on(self, shown: progress.Silent, *events: Event, seconds: float) -> None:
        for event in events:
            self.now += seconds
            shown(event)


def test_time_left_knows_that_later_steps_and_tests_take_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, shown = Clock(monkeypatch), progress.Silent()
    shown(Started("digits", "scale", (0,), 3, 30))
    shown(TaskStarted(0, "task-0", 10))
    assert shown.work.left == ""
    clock.pass_on(shown, *(Stepped(step + 1) for step in range(5)), seconds=1)
    assert shown.work.left == "over 25 s left"  # no step with replay was timed yet
    clock.pass_on(shown, *(Stepped(step + 6) for step in range(5)), seconds=1)
    clock.pass_on(shown, Evaluated(0, 0, [90.0]), seconds=2)
    clock.pass_on(shown, *(Stepped(step + 11) for step in range(10)), seconds=3)
    assert shown.work.left == "40 s left"  # 10 steps of 3 s, tests of two and three tasks at 2 s each
    clock.pass_on(shown, Evaluated(0, 1, [90.0, 90.0]), seconds=4)
    clock.pass_on(shown, *(Stepped(step + 21) for step in range(10)), seconds=3)
    clock.pass_on(shown, Evaluated(0, 2, [90.0] * 3), seconds=6)
    assert shown.work.left == "0 s left"


def test_time_left_counts_only_what_this_process_did(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, shown = Clock(monkeypatch), progress.Silent()
    shown(Started("digits", "scale", (0,), 2, 200))
    shown(Restored(0, 120, [[90.0, None]]))
    shown(Stepped(120))
    assert (shown.work.left, shown.work.rate) == ("", 0.0)
    shown(TaskStarted(1, "task-1", 100))
    clock.pass_on(shown, Stepped(121), Stepped(122), seconds=2)
    assert (shown.work.left, shown.work.rate) == ("2:36 left", 0.5)


def test_the_first_task_of_a_later_seed_counts_as_the_first_of_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, shown = Clock(monkeypatch), progress.Silent()
    shown(Started("digits", "scale", (0, 1), 2, 20))
    shown(TaskStarted(0, "task-0", 10))
    clock.pass_on(shown, *(Stepped(step // 2, (step, 0)) for step in range(1, 11)), seconds=1)
    clock.pass_on(shown, Evaluated(0, 0, [90.0]), seconds=0)
    clock.pass_on(shown, *(Stepped(step // 2, (step, 0)) for step in range(11, 21)), seconds=3)
    assert shown.work.left == "40 s left"
    clock.pass_on(shown, Evaluated(0, 1, [90.0, 90.0]), seconds=0)
    clock.pass_on(shown, Stepped(10, (20, 1)), seconds=1)
    assert shown.work.left == "39 s left"


def test_the_bar_says_which_seed_is_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    shown = progress.for_person(quiet=False)
    shown(Started("digits", "scale", (3, 4, 5), 2, 20))
    shown(TaskStarted(0, "task-0", 10))
    for event in (Stepped(3, (10, 0, 0)), Evaluated(3, 0, [90.0]), Stepped(6, (20, 0, 0))):
        shown(event)
    assert "seed 3  task 2/2" in terminal.getvalue()
    shown(Evaluated(3, 1, [90.0, 90.0]))
    assert "seed 4  task 1/2" in terminal.getvalue()
    shown(Stepped(7, (20, 2, 1)))
    shown(Evaluated(4, 0, [90.0]))
    assert "seeds 4 to 5  task 1/2" in terminal.getvalue()
    assert "\N{HORIZONTAL ELLIPSIS}" not in terminal.getvalue()  # nothing is cut off at 80 columns
    shown.close()


def test_a_remark_about_the_data_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    progress.Lines()(Loaded(("task a has a single class",)))
    progress.for_person(quiet=True)(Loaded(("task a has a single class",)))
    assert capsys.readouterr() == ("", "note: task a has a single class\n")


def test_quiet_is_silent(capsys: pytest.CaptureFixture[str]) -> None:
    drive(progress.for_person(quiet=True))
    assert capsys.readouterr() == ("", "")


def test_without_a_terminal_there_are_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    assert isinstance(progress.for_person(quiet=False), progress.Lines)


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.2, "0 s"), (59.4, "59 s"), (59.6, "1:00"), (725, "12:05"), (10860, "3:01:00")]
)
def test_time_left_is_short(seconds: float, text: str) -> None:
    assert progress.clock(seconds) == text
