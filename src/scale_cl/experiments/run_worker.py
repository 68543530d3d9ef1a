"""Execute runs, on whichever machine an engine has put them: train, and write the result to each one's folder."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from scale_cl import training
from scale_cl.errors import DivergenceError, OutputInUseError, ScaleClError
from scale_cl.experiments.claims import keep_features
from scale_cl.experiments.planning import PlannedRun, key_of, rerun_arguments
from scale_cl.experiments.result_index import ALONE, Finished, note_divergence
from scale_cl.plugins import give_references, given_references
from scale_cl.training import Event, Listener
from scale_cl.training.config import Config
from scale_cl.training.events import Started, Stepped
from scale_cl.training.run_directory import RunDirectory, RunRequest

_PATIENCE = 10.0  # seconds that a folder may stay locked by a process that was killed


def as_message(run: PlannedRun, root: Path | None) -> dict[str, Any]:
    """A run as plain JSON values, to be sent to another process."""
    return {
        "experiment": run.experiment,
        "config": run.config.as_dict(),
        "preset": run.config.preset,
        "references": given_references(),
        "out": str(run.out.absolute()),
        "folder": str(run.folder.absolute()),
        "alone": run.alone,
        "features": run.features,
        "root": None if root is None else str(root.absolute()),
        "words": rerun_arguments(run, root),  # with paths as they were given, for the record
    }


def carry_out(message: dict[str, Any], on_event: Listener | None = None, *, patience: float = _PATIENCE) -> None:
    """Do the run of a message; when this returns, its folder holds a valid result.

    A run that was killed continues from its checkpoints, unless its time counts: that starts again. For `patience`
    seconds the folder may be locked by a process that is being ended.
    """
    run = _planned(message)
    on_trained = None
    if run.features:
        (_,) = run.config.seeds  # a folder holds the features of one seed
        on_trained = partial(keep_features, run.folder)
    with RunDirectory(run.folder).claimed(force=True, patience=patience) as folder:
        if not is_done(run):
            training.run(
                run.config,
                folder,
                data=_root(message),
                resume=not run.alone,
                force=True,
                on_event=on_event,
                on_trained=on_trained,
                arguments=message["words"],
                environment={ALONE: run.alone, "experiment": run.experiment},
            )


def carry_out_together(
    messages: list[dict[str, Any]], on_event: Listener | None = None, *, patience: float = _PATIENCE
) -> list[ScaleClError | None]:
    """Do the runs of messages side by side; the error of each, or None: its folder holds a valid result.

    An error that is no ScaleClError is raised.
    """
    errors: list[ScaleClError | None] = [None]
    if len(messages) > 1:
        errors = _side_by_side(messages, on_event, patience)
    else:
        try:
            carry_out(messages[0], on_event, patience=patience)
        except ScaleClError as error:
            errors = [error]
    for message, failure in zip(messages, errors, strict=True):
        run = _planned(message)
        if isinstance(failure, DivergenceError) and run.config.stream.part == "search":  # a point that has no score
            note_divergence(run.folder, key_of(run.config), str(failure))
    return errors


def _side_by_side(
    messages: list[dict[str, Any]], on_event: Listener | None, patience: float
) -> list[ScaleClError | None]:
    errors: list[ScaleClError | None] = [None] * len(messages)
    asked: dict[int, tuple[RunDirectory, RunRequest]] = {}
    with contextlib.ExitStack() as claims:
        for number, message in enumerate(messages):
            run = _planned(message)
            try:
                folder = claims.enter_context(RunDirectory(run.folder).claimed(force=True, patience=patience))
            except OutputInUseError as error:
                errors[number] = error
                continue
            if not is_done(run):
                asked[number] = folder, RunRequest(run.config, _root(message), message["words"])
        recorded = {ALONE: False, "experiment": messages[0]["experiment"]}
        made = training.run_side_by_side(list(asked.values()), on_event=on_event, environment=recorded)
    for number, one in zip(asked, made, strict=True):
        errors[number] = one if isinstance(one, ScaleClError) else None
    return errors


def _planned(message: dict[str, Any]) -> PlannedRun:
    give_references(message["references"])
    return PlannedRun(
        message["experiment"],
        Config.from_dict(message["config"], preset=message["preset"]),
        Path(message["out"]),
        Path(message["folder"]),
        bool(message["alone"]),
        bool(message["features"]),
    )


def _root(message: dict[str, Any]) -> Path | None:
    return None if message["root"] is None else Path(message["root"])


def is_done(run: PlannedRun) -> bool:
    """Whether the folder of this very run holds its whole result, whoever has made it."""
    there = Finished()
    there.take(run.folder)
    return set(run.config.seeds) <= set(there.of(key_of(run.config)))


class Pace:
    """A listener that reports the fraction of a run's steps that are done, about once per second."""

    def __init__(self, tell: Callable[[float], None]) -> None:
        self._tell, self._steps, self._told = tell, 1, time.monotonic()

    def __call__(self, event: Event) -> None:
        """Report the fraction, unless it was reported just now."""
        if isinstance(event, Started):
            self._steps = max(1, event.steps)
        elif isinstance(event, Stepped) and time.monotonic() - self._told >= 1:
            self._told = time.monotonic()
            self._tell(event.steps / self._steps)
