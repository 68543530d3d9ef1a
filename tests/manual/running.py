"""Running the blocks of a page in an empty directory, as a reader would who types them one after another."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest import mock

from tests.manual.blocks import Block, Command, commands_of

POINTS = 5.0  # percentages may differ by as much: the same seed gives other bits on another processor
_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")
_TIMES = re.compile(r"\d+(?::\d\d)+(?= left)|\d[\d.,]* ?(?:steps/s|seconds|ms|s|kB)\b|\d(?:\.\d+)?e-\d+")  # and sizes
_PERCENT = re.compile(r"(?<![\d.])(\d+)(?= ?%|–\d+ %)")  # whole ones are rounded, not counted
_CURVE = re.compile(r"[▁▂▃▄▅▆▇█]+")
_RULE = re.compile(r"─+")


class Reader:
    """Keeps what a page's blocks share: the names of its python, and what the last block printed."""

    def __init__(self) -> None:
        self.names: dict[str, Any] = {"__name__": "__main__"}
        self.printed: str | None = None

    def read(self, block: Block) -> None:
        """Do what the block says; AssertionError if it shows something else than what is printed."""
        if block.title is not None:
            Path(block.title).write_text(block.code, encoding="utf-8")
        if block.language == "python":
            self.printed = self._executed(block)
        elif block.language in ("bash", "console"):
            for command in commands_of(block):
                self._typed(command, block)
            self.printed = None
        elif block.language == "text":
            assert block.follows, f"{block.place}: output without the block that prints it"
            assert self.printed is not None, f"{block.place}: the block before prints nothing"
            check_output(block.code, self.printed, block.place)
            self.printed = None
        else:
            assert block.title is not None, f"{block.place}: a block of {block.language!r} is a file and needs a title"

    def _executed(self, block: Block) -> str:
        printed = io.StringIO()
        code = compile("\n" * block.line + block.code, block.place, "exec")
        with contextlib.redirect_stdout(printed):
            exec(code, self.names)
        return printed.getvalue()

    def _typed(self, command: Command, block: Block) -> None:
        place = f"{block.place}: {command.text}"
        if command.text.startswith("scale-cl "):
            printed, code = scale_cl(command.text)
        else:
            done = subprocess.run(command.text, shell=True, capture_output=True, text=True, timeout=60)
            printed, code = done.stdout + done.stderr, done.returncode
        expected = 2 if command.shown is not None and "scale-cl: error: " in command.shown else 0
        assert code == expected, f"{place} ended with {code}:\n{printed}"
        if command.shown is not None:
            check_output(command.shown, printed, place)


def scale_cl(text: str) -> tuple[str, int]:
    """All that a `scale-cl` command prints, and its exit code; `> FILE` sends what is printed there."""
    from scale_cl.cli.main import main

    words = shlex.split(text)
    target = None
    if ">" in words:
        target, words = words[words.index(">") + 1], words[: words.index(">")]
    printed, code = io.StringIO(), 0
    into = printed if target is None else io.StringIO()
    with contextlib.redirect_stdout(into), contextlib.redirect_stderr(printed), mock.patch.object(sys, "argv", words):
        try:
            main()
        except SystemExit as exit_:
            code = exit_.code if isinstance(exit_.code, int) else int(exit_.code is not None)
    if target is not None:
        Path(target).write_text(into.getvalue(), encoding="utf-8")
    return printed.getvalue(), code


def check_output(shown: str, printed: str, place: str) -> None:
    """The same words in the same lines; numbers within a tolerance, times not at all. A line `...` leaves lines out."""
    expected, got = (_lines(text) for text in (shown, printed))
    message = f"{place} shows\n{shown}\nand prints\n{printed}"
    at, skipping = 0, False
    for line in expected:
        if line == "...":
            skipping = True
            continue
        while skipping and at < len(got) and not _alike(line, got[at]):
            at += 1
        assert at < len(got), f"{message}\nmissing: {line}"
        assert _alike(line, got[at]), f"{message}\nshown:   {line}\nprinted: {got[at]}"
        at, skipping = at + 1, False
    assert skipping or at == len(got), f"{message}\nnot shown: {got[at]}"


def _lines(text: str) -> list[str]:
    """Lines with something in them, without what differs from run to run: times, shapes of curves, widths."""
    lines, timed = [], None
    for raw in text.splitlines():
        line = _CURVE.sub("▁", _RULE.sub("─", _PERCENT.sub(r"\1.0", _TIMES.sub("TIME", " ".join(raw.split())))))
        words = line.split(" ")
        if "ACC" in words:  # the head of a table: the column of seconds, if it has one
            timed = next((words.index(name) for name in ("s", "seconds") if name in words), None)
        elif timed is not None and len(words) > timed and _NUMBER.fullmatch(words[timed]):
            words[timed] = "TIME"
        lines.append(" ".join(words))
    return [line for line in lines if line]


def _alike(shown: str, printed: str) -> bool:
    same_words = _NUMBER.sub("#", shown) == _NUMBER.sub("#", printed)
    return same_words and all(map(_close, _NUMBER.findall(shown), _NUMBER.findall(printed)))


def _close(shown: str, printed: str) -> bool:
    if "." not in shown and "." not in printed:
        return shown == printed
    return abs(float(shown.replace(",", "")) - float(printed.replace(",", ""))) <= POINTS
