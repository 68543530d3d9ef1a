"""`scale-cl resume`: go on with a run that was stopped, killed or ended by an error."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def resume(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Where the run writes.")],
    data: Annotated[Path | None, typer.Option(metavar="DIR", help="Where the data sets are now.")] = None,
    on_divergence: Annotated[
        str | None, typer.Option(metavar="stop|skip", help="When a loss or gradient is not finite.")
    ] = None,
    stream: Annotated[
        str | None, typer.Option(help="The run's stream, if it is module:function or file.py:function.")
    ] = None,
    no_track: Annotated[
        bool, typer.Option("--no-track", help="Go on without the trackers that the run was begun with.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Only the closing line.")] = False,
) -> None:
    """Go on where a run stopped; the result is the one that it would have had without the stop."""
    from dataclasses import replace
    from functools import partial

    from scale_cl import trackers
    from scale_cl.cli.output import claimed
    from scale_cl.cli.run import close, trained_and_written
    from scale_cl.errors import CheckpointError, TrackerError
    from scale_cl.results import RESULT_NAME
    from scale_cl.settings import as_dict, build
    from scale_cl.streams.user_streams import OUTSIDE
    from scale_cl.training import run_note
    from scale_cl.training.config import RunSettings

    if stream is not None:
        OUTSIDE.give(stream)
    if not directory.is_dir():
        raise CheckpointError(f"{directory} is not a directory; name the one that the run writes to")
    with claimed(directory, force=True):
        finished = (directory / RESULT_NAME).exists() and not (directory / run_note.RUN_NAME).exists()
        if not finished:
            asked = run_note.read(directory)
            asked = replace(asked, root=data or asked.root)
            if on_divergence is not None:
                run = build(RunSettings, {**as_dict(asked.config.run), "on_divergence": on_divergence}, section="run")
                asked = replace(asked, config=replace(asked.config, run=run))
            before = None if no_track else trackers.read(directory)
            tracked = None
            if before is not None:
                names = list(before.trackers)
                tracked = partial(trackers.tracking, names, directory, every=before.every, resume=True)
            try:
                result = trained_and_written(asked, directory, quiet=quiet, resume=True, tracked=tracked)
            except TrackerError as error:
                raise TrackerError(f"{error}; --no-track goes on without it") from error
    if finished:
        typer.echo(f"{directory} is finished: its result is in {directory / RESULT_NAME}")
        return
    close(result, directory, quiet=quiet)
