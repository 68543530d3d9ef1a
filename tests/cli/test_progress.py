"""Progress: a line a task in a log, a bar on a terminal, silence when asked."""

from __future__ import annotations

import io
import sys

import pytest

from scale_cl.cli import progress
from scale_cl.training.events import Evaluated, Finished, Started, Stepped, TaskStarted


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
    assert one.startswith("task 1/2: accuracy so far 85.0, ")
    assert "steps/s" in one
    assert one.endswith(" left")
    assert two.startswith("task 2/2: accuracy so far 85.0, ")


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
