"""Reading the package's own JSON files: each says of what kind and of which schema version it is, or is refused."""

from __future__ import annotations

import json
import math
import re
import reprlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scale_cl import files
from scale_cl.errors import ScaleClError

_MOST_DIGITS = 20  # of a whole number: those of 64 bits have 19
_SURROGATE = re.compile(r"\\u[dD]")


@dataclass(frozen=True)
class Format:
    """What a reader expects of a file, and how it calls it when it is something else."""

    what: str  # "a checkpoint"
    kind: str  # that the file must have
    schema: int  # the newest that is understood
    error: type[ScaleClError]
    largest: int  # bytes; more are not read
    siblings: tuple[str, ...] = ()  # kinds that are told by their name, not called foreign
    missing: str = "{path} does not exist"
    newer: type[ScaleClError] | None = None  # for a newer schema, if that is to be told apart

    def read(self, path: Path) -> dict[str, Any]:
        """The content, whose schema is at most this one's; `error` if it is missing, damaged, foreign or newer."""
        return self.checked(path, self._parsed(path))

    def _parsed(self, path: Path) -> Any:
        try:
            return parsed(files.read_plain(path, self.largest))
        except FileNotFoundError:
            raise self.error(self.missing.format(path=path)) from None
        except files.TooLargeError:
            raise self.error(f"{path} is larger than {self.largest} bytes: it is not {self.what}") from None
        except OSError as error:
            raise self.error(f"{path} cannot be read: {error.strerror or error}") from None
        except json.JSONDecodeError:
            raise self.error(f"{path} is damaged: it is not JSON") from None
        except ValueError as error:  # also a null byte in the path
            raise self.error(f"{path} is damaged: {error}") from None

    def checked(self, path: Path, content: Any) -> dict[str, Any]:
        """`content` of the file at `path`, if its kind and schema are those expected."""
        schema, kind = (content.get(key) if isinstance(content, dict) else None for key in ("schema", "kind"))
        foreign = self.error(f"{path} is not {self.what} of scale-cl: it has no schema version and kind")
        if not isinstance(schema, int) or isinstance(schema, bool) or schema < 1 or not isinstance(kind, str):
            raise foreign
        if schema > self.schema:
            raise (self.newer or self.error)(
                f"{path} has schema {schema}, this version reads up to {self.schema}: use a newer scale-cl"
            )
        if kind != self.kind:
            if kind in self.siblings:
                raise self.error(f"{path} holds a {kind!r}, expected a {self.kind!r}")
            raise foreign
        return dict(content)


def parsed(data: bytes | str) -> Any:
    """JSON content that can be written again; ValueError, a JSONDecodeError if it is no JSON at all.

    Refused are NaN, infinity, whole numbers of hundreds of digits, half characters (lone surrogates) and deep nesting.
    """
    try:
        text = data.decode("utf-8-sig") if isinstance(data, bytes) else data
    except UnicodeDecodeError as error:
        raise ValueError(f"it is not UTF-8 text: byte {error.start}") from None
    try:
        content = json.loads(text, parse_int=_whole, parse_float=_number, parse_constant=_number)
        if _SURROGATE.search(text):
            json.dumps(content, ensure_ascii=False).encode()
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except UnicodeEncodeError:
        raise ValueError("it holds half a character (a lone surrogate)") from None
    return content


def _whole(digits: str) -> int:
    if len(digits) > _MOST_DIGITS:
        raise ValueError(f"it holds a number of {len(digits)} digits")
    return int(digits)


def _number(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"it holds {text[:40]}, which is not a finite number")
    return value


@contextmanager
def reporting_damage(path: Path, error: type[ScaleClError]) -> Iterator[None]:
    """Raise errors in reading the content of a file as an `error` that names the file."""
    try:
        yield
    except KeyError as problem:
        raise error(f"{path} is damaged: {problem.args[0]!r} is missing") from problem
    except (ValueError, TypeError, OverflowError) as problem:
        raise error(f"{path} is damaged: {problem}") from problem


def typed(content: dict[str, Any], key: str, kind: type) -> Any:
    """The value of `key`; KeyError if it is missing, ValueError if it is of another type."""
    value = content[key]
    if type(value) is not kind:
        raise ValueError(f"{key!r} is {reprlib.repr(value)}, which is not of type {kind.__name__}")
    return value


def accuracy_matrix(matrix: Any, size: int) -> list[list[float | None]]:
    """A copy of the matrix; ValueError unless it has size x size percentages, or None where nothing was tested."""
    if size == 0 or not isinstance(matrix, list) or [len(r) for r in matrix if isinstance(r, list)] != [size] * size:
        raise ValueError(f"the matrix is not square: it is not of {size} x {size} accuracies")
    return [[None if v is None else percentage(v) for v in row] for row in matrix]


def percentage(value: Any) -> float:
    """The accuracy `value`; ValueError unless it is a number from 0 to 100."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 100:
        raise ValueError(f"an accuracy is {reprlib.repr(value)}, which is not a percentage")
    return value
