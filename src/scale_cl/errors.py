"""The package's exceptions: each message is one line that says what is wrong and what would be right."""

from __future__ import annotations

import inspect
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

FAILURES = (Exception, SystemExit)
"""What other people's code may raise; Ctrl-C is not its doing."""


class ScaleClError(Exception):
    """Base of everything this package raises on purpose; the command line prints it and exits with 2."""

    def __str__(self) -> str:
        """The message as one line; what a terminal cannot show, or would obey, is escaped."""
        return printable(super().__str__())


class ConfigError(ScaleClError, ValueError):
    """A setting is unknown, of the wrong type or out of range."""


class DataError(ScaleClError, ValueError):
    """A data file is missing, truncated, altered or not of the format it claims."""


class FetchError(ScaleClError):
    """A download did not arrive whole and right."""


class StreamError(ScaleClError, ValueError):
    """Arrays, labels or tasks do not make a stream."""


class InputError(ScaleClError, ValueError):
    """A batch has the wrong shape, type or labels for the learner."""


class UnknownTaskError(ScaleClError, LookupError):
    """A task was asked for that the learner has never seen."""


class OutputInUseError(ScaleClError):
    """The output directory holds a result or belongs to a running process."""


class ResultError(ScaleClError, ValueError):
    """A result file is missing, damaged, foreign or of a newer version."""


class CheckpointError(ScaleClError, ValueError):
    """A checkpoint is missing, damaged, foreign or of a newer version."""


class ExportError(ScaleClError):
    """A model cannot be exported, or the exported one does not answer as the learner does."""


class TrackerError(ScaleClError):
    """A tracker is not installed, or cannot start."""


class DivergenceError(ScaleClError, ArithmeticError):
    """A loss or a gradient is not a finite number any more."""


class Interrupted(ScaleClError):
    """The run was asked to stop and has saved its state; the command line exits with 75."""


def printable(text: object) -> str:
    """A text on one line; what a terminal cannot show, or would obey, is escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(text))


def shown(value: object) -> str:
    """The beginning of a value's representation; a number of thousands of digits has none."""
    try:
        text = repr(value)
    except ValueError:
        return "a number of thousands of digits"
    return text if len(text) <= 100 else f"{text[:80]}..."


def is_utf8(text: str) -> bool:
    """Whether a text can be written to a file; a file's name in other bytes cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def one_line(error: BaseException) -> str:
    """An error of other people's code as one line: its class and the beginning of its message."""
    return ": ".join(filter(None, (type(error).__name__, " ".join(str(error).split()))))[:300]


@contextmanager
def others_code(kind: type, function: object, what: str) -> Iterator[None]:
    """If a function of a class of somebody else fails: one line of what it failed in, where, and how."""
    try:
        yield
    except FAILURES as error:
        if isinstance(error, ScaleClError) or kind.__module__.startswith("scale_cl."):
            raise
        raise ConfigError(f"{what}{place_of(function, error, kind)}: {one_line(error)}") from error


def place_in(file: str | None, error: BaseException) -> str:
    """Where in a file of other people's code an error came up: " (ewc.py, line 12)", or nothing if it did not."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    return f" ({Path(file).name}, line {lines[-1]})" if file and lines else ""


def place_of(called: object, error: BaseException, owner: object = None) -> str:
    """As `place_in`, in the file of a function, or of the class `owner` that has it.

    Where no line of that file raised the error, as if the function takes other arguments, this is where it begins.
    """
    file = getattr(sys.modules.get(getattr(owner or called, "__module__", "")), "__file__", None)
    code = getattr(inspect.unwrap(called) if callable(called) else called, "__code__", None)
    begins = f" ({Path(file).name}, line {code.co_firstlineno})" if code and file == code.co_filename else ""
    return place_in(file, error) or begins
