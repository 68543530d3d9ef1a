"""Finding results: every `result.json` below a directory is read, and what cannot be read is an explicit gap."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from scale_cl import results
from scale_cl.errors import ResultError
from scale_cl.results import RESULT_NAME, SEEDS_FOLDER, RunResult

_TRACES_OF_A_RUN = {SEEDS_FOLDER, "run.json", ".lock"}  # what a run leaves that has not finished


@dataclass(frozen=True)
class Run:
    """One result file that was read."""

    name: str  # its path, relative to the directory that was searched
    result: RunResult


@dataclass(frozen=True)
class Gap:
    """Something that should have been a number and is none, and why."""

    name: str
    reason: str


@dataclass(frozen=True)
class Collection:
    """All that was found, and all that was missed."""

    title: str
    runs: tuple[Run, ...]
    gaps: tuple[Gap, ...]


def collect(*directories: Path) -> Collection:
    """Read all results below these directories; ResultError if one does not exist or nothing can be read."""
    runs: list[Run] = []
    gaps: list[Gap] = []
    seen: set[Path] = set()
    for directory in directories:
        if not directory.is_dir():
            what = "is not a directory" if directory.exists() else "does not exist"
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
        many = f"none of {len(gaps)} results" if len(gaps) > 1 else "not the one result"
        raise ResultError(f"{where}: {many} can be read; {gaps[0].name} {gaps[0].reason}")
    title = ", ".join(directory.resolve().name or str(directory) for directory in directories)
    return Collection(printable(title), tuple(runs), tuple(gaps))


def printable(text: object) -> str:
    """Text from a file with everything replaced that a terminal or a page would not show as itself."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in str(text))


def _found(directory: Path) -> list[tuple[Path, str | None]]:
    """Paths of results in order, each with what is already known to be wrong with it."""
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
    """A file whose config names another stream or learner than its head is not to be trusted."""
    for what, said in (("stream", result.stream), ("learner", result.learner)):
        section = result.seeds[0].config.get(what)
        named = section.get("name", said) if isinstance(section, dict) else said
        if what == "stream" and isinstance(named, str) and named.startswith(("folder:", "csv:")):
            continue  # named by where the images were; the head has the name that the folder or file had
        if named != said:
            raise ResultError(f"is damaged: it is a result of the {what} {said!r}, but its config says {named!r}")
