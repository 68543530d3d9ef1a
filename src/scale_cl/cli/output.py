"""The output directory of a run: chosen and claimed before training, left as it was found when a run fails."""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Iterator
from pathlib import Path

from scale_cl import files
from scale_cl.errors import OutputInUseError
from scale_cl.results import RESULT_NAME

RUNS = Path("runs")


def new_directory(name: str, *, under: Path = RUNS) -> Path:
    """A directory that does not exist yet: `runs/2026-11-15-scale-digits`, numbered if that is taken."""
    base = under / f"{datetime.date.today().isoformat()}-{name}"
    number, candidate = 1, base
    while candidate.exists():
        number += 1
        candidate = base.with_name(f"{base.name}-{number}")
    return candidate


def check_free(directory: Path, *, force: bool) -> None:
    """Raise OutputInUseError if the directory holds a result already (unless forced) or cannot be one."""
    if directory.exists() and not directory.is_dir():
        raise OutputInUseError(f"{directory} is a file; --out names a directory")
    if (directory / RESULT_NAME).exists() and not force:
        raise OutputInUseError(f"{directory} holds a result already; choose another --out, or --force to replace it")
    if (directory / "run.json").exists() and not force:
        raise OutputInUseError(
            f"{directory} holds a run that is not finished; `scale-cl resume {directory}` goes on with it, "
            "--force begins anew"
        )


@contextlib.contextmanager
def claimed(directory: Path, *, force: bool) -> Iterator[None]:
    """Hold the directory for this process; folders made for it are removed again if nothing was written there."""
    check_free(directory, force=force)
    made = [folder for folder in (directory, *directory.parents) if not folder.exists()]
    with contextlib.ExitStack() as stack:
        stack.callback(_remove_empty, made)
        try:
            stack.enter_context(files.lock(directory / ".lock"))
        except OSError as error:
            raise OutputInUseError(
                f"{directory} cannot be written to: {error.strerror}; choose another --out"
            ) from None
        check_free(directory, force=force)
        yield


def _remove_empty(folders: list[Path]) -> None:
    for folder in folders:  # innermost first
        with contextlib.suppress(OSError):
            folder.rmdir()
