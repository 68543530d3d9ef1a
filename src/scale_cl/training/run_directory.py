"""The directory of a run: claimed by one process, with a note and checkpoints while it runs, then with its result.

DIR/run.json               the note: what was asked; there as long as the run is not finished
DIR/checkpoints/seed-S/    the checkpoints of one seed; removed at the end, unless run.keep_state is set
DIR/result.json, seeds/    the result
"""

from __future__ import annotations

import contextlib
import datetime
import os
import shlex
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from scale_cl import files
from scale_cl.errors import CheckpointError, OutputInUseError, ResultError, ScaleClError, is_utf8, printable
from scale_cl.json_format import Format
from scale_cl.results import RESULT_NAME, SEEDS_FOLDER, RunResult
from scale_cl.streams import data_root
from scale_cl.training import checkpoint
from scale_cl.training.config import Config

SCHEMA = 1  # of the note
NOTE_NAME = "run.json"
CHECKPOINTS = "checkpoints"
LOCK = ".lock"
RUNS = Path("runs")
_LARGEST = 1 << 20  # bytes of a note
_AGAIN = 0.1  # seconds between attempts to lock the directory


@dataclass(frozen=True)
class RunRequest:
    """What a run was asked to do."""

    config: Config
    data: Path | None = None  # where the data sets are, if that was given
    arguments: list[str] | None = None  # of the command line, without the program


class RunDirectory:
    """One run's directory on disk."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """`path` need not exist."""
        self.path = Path(path)
        self._claimed = False

    @property
    def unfinished(self) -> bool:
        """Whether a run has begun here and not finished."""
        return (self.path / NOTE_NAME).exists()

    @property
    def finished(self) -> bool:
        """Whether a finished run's result is here."""
        return (self.path / RESULT_NAME).exists() and not self.unfinished

    # ---- claiming ----------------------------------------------------------------------------------------------------
    def check_free(self, *, force: bool = False) -> None:
        """Raise OutputInUseError if this is no directory or, unless `force`, holds a result or an unfinished run."""
        if not is_utf8(str(self.path)):
            raise OutputInUseError(f"the name of {self.path} is not UTF-8 text; choose another --out")
        try:
            if self.path.exists() and not self.path.is_dir():
                raise OutputInUseError(f"{self.path} is a file; --out names a directory")
        except OSError as error:
            raise OutputInUseError(f"{self.path} cannot be used: {error.strerror}; choose another --out") from None
        if (self.path / RESULT_NAME).exists() and not force:
            raise OutputInUseError(f"{self.path} holds a result already; choose another --out, or --force replaces it")
        if self.unfinished and not force:
            raise OutputInUseError(
                f"{self.path} holds a run that is not finished; `scale-cl resume {self.path}` goes on with it, "
                "--force begins anew"
            )
        if not force:
            self.check_noted()
        for path in (self.path / LOCK, self.path / SEEDS_FOLDER, *self._checkpoint_folders()):
            if path.is_symlink():
                raise OutputInUseError(
                    f"{path} is a symbolic link, which is not followed; put its target in its place, or remove it"
                )

    def check_noted(self) -> None:
        """Raise OutputInUseError if checkpoints are here without a note or a result that says what they are of."""
        if self.seeds and not self.unfinished and not (self.path / RESULT_NAME).exists():
            raise OutputInUseError(
                f"{self.path / CHECKPOINTS} holds checkpoints, but {self.path / NOTE_NAME}, which says of what run, is "
                "missing; choose another --out, or --force removes them"
            )

    @contextlib.contextmanager
    def claimed(self, *, force: bool = False, patience: float = 0.0) -> Iterator[Self]:
        """Hold the directory for this process; may be nested. Folders made for it are removed again if left empty.

        Args:
            force: accept a directory that holds a result or an unfinished run.
            patience: seconds to wait for another process to release the directory.
        """
        if self._claimed:
            yield self
            return
        self.check_free(force=force)
        made = [folder for folder in (self.path, *self.path.parents) if not folder.exists()]
        with contextlib.ExitStack() as stack:
            stack.callback(_remove_empty, made)
            self._lock(stack, time.monotonic() + patience)
            self.check_free(force=force)
            self._claimed = True
            try:
                yield self
            finally:
                self._claimed = False

    def _lock(self, stack: contextlib.ExitStack, deadline: float) -> None:
        while True:
            try:
                stack.enter_context(files.lock(self.path / LOCK))
                return
            except OutputInUseError:
                if time.monotonic() >= deadline:
                    raise
                time.sleep(_AGAIN)
            except OSError as error:
                raise OutputInUseError(
                    f"{self.path} cannot be written to: {error.strerror or error}; choose another --out"
                ) from None

    # ---- a run's life ------------------------------------------------------------------------------------------------
    def begin(self, request: RunRequest, *, resume: bool) -> None:
        """Write the note of a run; unless it resumes, remove the checkpoints of an earlier one."""
        for left in self.path.glob(".*.tmp"):  # by a process that was killed while it wrote
            left.unlink(missing_ok=True)
        if not resume:
            self.remove_checkpoints()
        elif self._notes(request.config):
            return
        data = request.data or os.environ.get("SCALE_CL_DATA")
        here, root = str(request.config.base or Path.cwd()), None if data is None else str(data_root(data).absolute())
        content = {
            "schema": SCHEMA,
            "kind": "started",
            "config": request.config.as_dict(),
            "preset": request.config.preset,
            "here": here if is_utf8(here) else None,  # JSON holds no other names; `resume` then looks where it is run
            "data": root if root is not None and is_utf8(root) else None,
            "arguments": None if request.arguments is None else [printable(a) for a in request.arguments],
        }
        _must_write(lambda: files.write_json(self.path / NOTE_NAME, content), "the note of the run", self.path)

    def request(self) -> RunRequest:
        """The note of the unfinished run; CheckpointError if there is none, or it is damaged, foreign or newer."""
        path = self.path / NOTE_NAME
        missing = "{path.parent} holds no unfinished run: it has no {path.name}"
        content = Format("the note of a run", "started", SCHEMA, CheckpointError, _LARGEST, missing=missing).read(path)
        here, data, preset, arguments = (content.get(key) for key in ("here", "data", "preset", "arguments"))
        texts = all(isinstance(value, str | None) for value in (here, data, preset))
        if not texts or not isinstance(arguments, list | None):
            raise CheckpointError(f"{path} is damaged: 'here', 'data', 'preset' or 'arguments' is of another type")
        config = _with_base(Config.from_dict(content.get("config"), path, preset=preset), here)
        named = None if arguments is None else [str(a) for a in arguments]
        return RunRequest(config, None if data is None else Path(data), named)

    def _notes(self, config: Config) -> bool:
        """Whether the note is of a run with this config."""
        with contextlib.suppress(ScaleClError):
            return self.request().config.as_dict() == config.as_dict()
        return False

    def finish(self, result: RunResult, *, keep_state: bool) -> None:
        """Write the result and remove the note and the checkpoints; with `keep_state`, the newest of each seed stay."""
        _must_write(lambda: result.write(self.path), "the result", self.path)
        self.remove_note()  # before the checkpoints: a run with a note and no checkpoint would start again
        if keep_state:
            for seed in result.seeds:
                checkpoint.keep_newest(self.checkpoints_of(seed.seed), 1)
        else:
            self.remove_checkpoints()

    def abandon(self, *, taught: bool = False) -> None:
        """After a run failed: unless it has left a checkpoint to continue from, remove all traces of it.

        `taught`: a finished run was to be taught more; it stays, with its model.
        """
        if taught:
            if not any(len(checkpoint.found(self.checkpoints_of(seed))) > 1 for seed in self.seeds):
                self.remove_note()
        elif not self.seeds:
            self.remove_checkpoints()
            self.remove_note()

    @property
    def prospect(self) -> str:
        """What can be done after the run stopped, in words."""
        if self.finished:
            return f"the result is in {self.path / RESULT_NAME}"
        if self.unfinished:
            return f"go on with: scale-cl resume {shlex.quote(str(self.path))}"
        return "no checkpoint was written, so there is nothing to go on with; start it again"

    def remove_note(self) -> None:
        """Nothing is left to be done here."""
        (self.path / NOTE_NAME).unlink(missing_ok=True)

    # ---- checkpoints -------------------------------------------------------------------------------------------------
    @property
    def seeds(self) -> list[int]:
        """The seeds that have checkpoints."""
        found = []
        for folder in self._checkpoint_folders()[1:]:
            number = folder.name.removeprefix("seed-")
            if number.isdecimal() and checkpoint.found(folder):
                found.append(int(number))
        return sorted(found)

    def _checkpoint_folders(self) -> list[Path]:
        """The folder of all checkpoints and, inside it, those of the seeds; they need not exist."""
        return [self.path / CHECKPOINTS, *(self.path / CHECKPOINTS).glob("seed-*")]

    def checkpoints_of(self, seed: int) -> Path:
        """The folder with the checkpoints of one seed."""
        return self.path / CHECKPOINTS / f"seed-{seed}"

    def seconds_spent(self, seeds: Sequence[int]) -> float:
        """How long the unfinished run has taken so far, by its newest good checkpoints; 0 if there is none."""
        spent = [0.0]
        for folder in map(self.checkpoints_of, seeds):
            with contextlib.suppress(CheckpointError):
                spent.append(checkpoint.newest_good(folder, lambda _, saved: saved.seconds_wall, warn=False))
        return max(spent)

    def remove_checkpoints(self) -> None:
        """Remove the checkpoints of all seeds, with the samples of their memories."""
        shutil.rmtree(self.path / CHECKPOINTS, ignore_errors=True)


def new_directory(name: str) -> Path:
    """A path that does not exist yet: `runs/2026-11-15-scale-digits`, numbered if that is taken."""
    return files.first_free(RUNS / f"{datetime.date.today().isoformat()}-{name}")


def _with_base(config: Config, here: str | None) -> Config:
    """The config whose relative stream begins where the run was started, if the images are still there."""
    there = config if here is None else replace(config, base=Path(here))
    own = there.own_data
    with contextlib.suppress(OSError):
        if own is not None and own.path.exists():
            return there
    return config


def _must_write(write: Callable[[], object], what: str, directory: Path) -> None:
    try:
        write()
    except OSError as error:
        raise ResultError(f"{what} cannot be written to {directory}: {error.strerror or error}") from error


def _remove_empty(folders: list[Path]) -> None:
    for folder in folders:  # innermost first
        with contextlib.suppress(OSError):
            folder.rmdir()
