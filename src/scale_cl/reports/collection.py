"""Find results on disk: read every `result.json` below a directory; a file that cannot be read becomes a `Gap`.

Also the functions that every output uses for names: `assignment`, `slug`, `distinct`.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from scale_cl import files, results
from scale_cl.errors import ResultError, printable
from scale_cl.results import RESULT_NAME, SEEDS_FOLDER, RunResult

OWN_IMAGES = ("folder:", "csv:")  # how streams of the user's own images are named
_LONGEST = 120  # characters of a slug
_TRACES_OF_A_RUN = {SEEDS_FOLDER, "run.json", ".lock"}  # files of an unfinished run


@dataclass(frozen=True)
class Run:
    """One result file."""

    name: str  # path relative to the searched directory
    result: RunResult


@dataclass(frozen=True)
class Gap:
    """A missing number and the reason."""

    name: str
    reason: str


@dataclass(frozen=True)
class Collection:
    """All results found below the searched directories, and all gaps."""

    title: str
    runs: tuple[Run, ...]
    gaps: tuple[Gap, ...]


def collect(*directories: Path) -> Collection:
    """Read all results below these directories; ResultError if one does not exist or no result can be read."""
    runs: list[Run] = []
    gaps: list[Gap] = []
    seen: set[Path] = set()
    for directory in directories:
        if not files.is_folder(directory):
            what = "is not a directory" if os.path.exists(directory) else "does not exist"  # noqa: PTH110 - never raises
            raise ResultError(f"{directory} {what}; name a directory with results below it")
        for path, problem in _found(directory):
            if path.resolve() in seen:
                continue
            seen.add(path.resolve())
            name = (path.relative_to(directory) if len(directories) == 1 else path).as_posix()
            if problem is None:
                _read(path, name, runs, gaps)
            else:
                gaps.append(Gap(name, problem))
    if not runs:
        where = ", ".join(map(str, directories))
        if not gaps:
            raise ResultError(f"{where} holds no {RESULT_NAME}; `scale-cl run --out` writes one")
        many = f"none of {len(gaps)} results can" if len(gaps) > 1 else "the only result cannot"
        first = where if gaps[0].name == "." else gaps[0].name
        raise ResultError(f"{where}: {many} be read; {first} {gaps[0].reason}")
    title = ", ".join(directory.resolve().name or str(directory) for directory in directories)
    return Collection(printable(title), tuple(runs), tuple(gaps))


def assignment(name: str, value: object) -> str:
    """`memory=100`; values are written as in JSON."""
    return printable(f"{name}={value if isinstance(value, str) else json.dumps(value)}")


def slug(text: str) -> str:
    """Only letters, digits and dashes: for file names and anchors."""
    kept = "".join(c if c.isascii() and c.isalnum() else "-" for c in text.lower())
    short = "-".join(part for part in kept.split("-") if part) or "x"
    if len(short) > _LONGEST:  # the name of a file has at most 255 bytes, of which others need some
        short = f"{short[:_LONGEST]}-{zlib.crc32(text.encode('utf-8', 'replace')):08x}"
    return short


def distinct(texts: Iterable[str]) -> list[str]:
    """A slug per text, with a number appended where two would be equal."""
    taken: list[str] = []
    for text in texts:
        wanted = candidate = slug(text)
        number = 1
        while candidate in taken:
            number += 1
            candidate = f"{wanted}-{number}"
        taken.append(candidate)
    return taken


def _found(directory: Path) -> list[tuple[Path, str | None]]:
    """Paths of results in order, each with a known problem or None."""
    found: list[tuple[Path, str | None]] = []

    def unreadable(error: OSError) -> None:
        found.append((Path(error.filename), f"cannot be searched: {error.strerror}"))

    for folder, folders, names in os.walk(directory, onerror=unreadable):
        if RESULT_NAME in names:
            found.append((Path(folder, RESULT_NAME), None))
        elif _TRACES_OF_A_RUN & {*folders, *names}:
            found.append((Path(folder), f"has no {RESULT_NAME}: its run has not finished"))
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name != SEEDS_FOLDER)
    return found


def _read(path: Path, name: str, runs: list[Run], gaps: list[Gap]) -> None:
    try:
        result = results.read(path)
        _check_names(result)
    except ResultError as error:
        gaps.append(Gap(printable(name), printable(str(error).removeprefix(str(path)).strip())))
    except (ArithmeticError, LookupError, AttributeError) as error:
        gaps.append(Gap(printable(name), printable(f"is damaged: {error}")))
    else:
        runs.append(Run(printable(name), result))


def _check_names(result: RunResult) -> None:
    """Refuse a file whose config names another stream or learner than its header."""
    for what, said in (("stream", result.stream), ("learner", result.learner)):
        section = result.seeds[0].config.get(what)
        named = section.get("name", said) if isinstance(section, dict) else said
        if what == "stream" and isinstance(named, str) and named.startswith(OWN_IMAGES):
            continue  # the config holds the path of the images, the header only the last part of it
        if named != said:
            raise ResultError(f"is damaged: it is a result of the {what} {said!r}, but its config says {named!r}")
