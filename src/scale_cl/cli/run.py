"""`scale-cl run`: train a learner on a stream, write the result, and close with one line."""

from __future__ import annotations

import contextlib
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from scale_cl.cli import progress

if TYPE_CHECKING:
    from scale_cl.results import RunResult
    from scale_cl.trackers import Tracking
    from scale_cl.training import Saving
    from scale_cl.training.config import Config
    from scale_cl.training.run_note import RunRequest

    Tracked = Callable[..., AbstractContextManager[Tracking]]

_FEW_TASKS = 10  # so many accuracies fit in a line


def run(
    stream: Annotated[
        str | None, typer.Option(help="Stream to learn, or folder:PATH or csv:FILE; digits if not given.")
    ] = None,
    learner: Annotated[str | None, typer.Option(help="Method; scale if not given.")] = None,
    seeds: Annotated[int | None, typer.Option(metavar="N", help="Number of seeds.")] = None,
    seed: Annotated[int | None, typer.Option(metavar="S", help="First seed.")] = None,
    tasks: Annotated[int | None, typer.Option(metavar="N", help="Only the first N tasks.")] = None,
    memory: Annotated[int | None, typer.Option(metavar="N", help="Memory slots a task.")] = None,
    data: Annotated[Path | None, typer.Option(metavar="DIR", help="Where the data sets are.")] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda or cuda:N.")] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where to write; a new folder under runs/ if not given.")
    ] = None,
    config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="YAML with sections stream, learner, run.")
    ] = None,
    assignments: Annotated[
        list[str] | None, typer.Option("--set", metavar="FIELD=VALUE", help="One setting; may be repeated.")
    ] = None,
    threads: Annotated[int | None, typer.Option(metavar="N", help="CPU threads of a process.")] = None,
    on_divergence: Annotated[
        str | None, typer.Option(metavar="stop|skip", help="When a loss or gradient is not finite.")
    ] = None,
    track: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Tracker: tensorboard, mlflow or wandb; may be repeated."),
    ] = None,
    track_every: Annotated[
        int | None, typer.Option(metavar="N", min=0, help="Steps from one point of tracked losses to the next; 50.")
    ] = None,
    track_project: Annotated[
        str | None, typer.Option(metavar="NAME", help="MLflow's experiment, W&B's project; else scale-cl.")
    ] = None,
    track_address: Annotated[
        str | None, typer.Option(metavar="URI", help="MLflow's server; else MLFLOW_TRACKING_URI.")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Only the closing line.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace the result in --out.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the settings in force and stop.")] = False,
) -> None:
    """Train a learner on a stream, one pass, and test it on all tasks so far after each one.

    Alone it runs SCALE on `digits`, which needs no download. `scale-cl show` explains every setting.
    """
    from scale_cl.cli.config_text import config_text
    from scale_cl.cli.output import check_free, claimed, new_directory
    from scale_cl.errors import ConfigError
    from scale_cl.trackers import EVERY, parse, tracking
    from scale_cl.training.config import resolve
    from scale_cl.training.run_note import RunRequest

    options = {
        "run.seeds": seeds,
        "run.seed": seed,
        "run.device": device,
        "run.threads": threads,
        "run.on_divergence": on_divergence,
        "stream.tasks": tasks,
        "learner.memory": memory,
    }
    resolved = resolve(
        stream=stream,
        learner=learner,
        file=config,
        options={name: value for name, value in options.items() if value is not None},
        assignments=assignments or (),
    )
    named = parse(track or ())
    if not named and (track_every, track_project, track_address) != (None, None, None):
        raise ConfigError("--track-every, --track-project and --track-address need --track NAME")
    directory = out or new_directory(f"{resolved.learner_name}-{resolved.stream.short_name}")
    if dry_run:
        check_free(directory, force=force)
        many = "seed" if len(resolved.seeds) == 1 else "seeds"
        listed = ", ".join(map(str, resolved.seeds))
        typer.echo(f"# would run {resolved.learner_name} on {resolved.stream.name}, {many} {listed}, into {directory}")
        typer.echo(config_text(resolved))
        return
    with claimed(directory, force=force):
        every = EVERY if track_every is None else track_every
        how = partial(tracking, named, directory, every=every, project=track_project, address=track_address)
        tracked = how if named else None
        result = trained_and_written(RunRequest(resolved, data, sys.argv[1:]), directory, quiet=quiet, tracked=tracked)
    close(result, directory, quiet=quiet)


def close(result: RunResult, directory: Path, *, quiet: bool) -> None:
    """Say where the result is, and what it is in a line."""
    from scale_cl.results import RESULT_NAME

    if not quiet:
        typer.echo(f"wrote {directory / RESULT_NAME}", err=True)
        by_task = _accuracies(result)
        if by_task:
            typer.echo(by_task, err=True)
    typer.echo(result.line())


def _accuracies(result: RunResult) -> str:
    """What each task of one's own data ended with, the mean over the seeds; nothing for what would be a long line."""
    from scale_cl.streams.user_streams import is_own

    first = result.seeds[0]
    if not is_own(first.config["stream"]["name"]) or len(first.tasks) > _FEW_TASKS:
        return ""
    columns = zip(*(seed.matrix[-1] for seed in result.seeds), strict=True)
    means = [statistics.fmean(a for a in column if a is not None) for column in columns]
    return "   ".join(f"task {name}: {mean:.1f}" for name, mean in zip(first.tasks, means, strict=True))


def trained_and_written(
    asked: RunRequest, directory: Path, *, quiet: bool, resume: bool = False, tracked: Tracked | None = None
) -> RunResult:
    """Do in `directory`, which is claimed, what was asked, with checkpoints; nothing but the result is left.

    `tracked` makes what the run is tracked with; if that cannot start, all stays as it was.
    """
    from scale_cl import trackers
    from scale_cl.errors import DivergenceError

    config = asked.config
    try:
        if tracked is None:
            if not resume:
                trackers.forget(directory)
            return _trained_and_written(asked, directory, quiet=quiet, resume=resume)
        about = {"config": config.as_dict(), "environment": _environment(config, asked), "seeds": config.seeds}
        with tracked(**about) as tracking:
            return _trained_and_written(asked, directory, quiet=quiet, resume=resume, tracking=tracking)
    except DivergenceError as error:
        raise DivergenceError(f"{error} (--on-divergence skip)") from error


def _trained_and_written(
    asked: RunRequest, directory: Path, *, quiet: bool, resume: bool, tracking: Tracking | None = None
) -> RunResult:
    from scale_cl.training import Saving, checkpoint, checkpointing, run_note

    saving = Saving(directory, resume)
    if not resume:
        checkpointing.remove_all(directory)
        _must_write(lambda: run_note.write(directory, asked), directory)
    earlier = checkpointing.seconds_spent(directory, asked.config.seeds) if resume else 0.0
    try:
        result = trained(asked.config, root=asked.root, quiet=quiet, saving=saving, asked=asked, tracking=tracking)
        result = replace(result, seconds_wall=result.seconds_wall + earlier)
        _must_write(lambda: result.write(directory), directory)
    except BaseException:
        if not resume and not checkpointing.remove_unless_any(directory):
            run_note.remove(directory)
        raise
    run_note.remove(directory)  # before the checkpoints: what has a note and no checkpoint would begin anew
    if asked.config.run.keep_state:
        for seed in asked.config.seeds:
            checkpoint.keep_newest(checkpointing.seed_folder(directory, seed), 1)
    else:
        checkpointing.remove_all(directory)
    return result


def trained(
    config: Config,
    *,
    root: Path | None,
    quiet: bool,
    saving: Saving | None = None,
    asked: RunRequest | None = None,
    tracking: Tracking | None = None,
) -> RunResult:
    """Run a config with progress for a person, and for trackers."""
    from scale_cl import training
    from scale_cl.results import RunResult
    from scale_cl.training import interruption
    from scale_cl.training.events import Event, Listener, Loaded, Started, to_all

    began = time.perf_counter()
    loaded: list[float] = []

    def note_loading(event: Event) -> None:
        if isinstance(event, Loaded):
            loaded.append(time.perf_counter() - began)

    def say_places(event: Event) -> None:
        if isinstance(event, Started) and tracking is not None and not quiet:
            for name, place in tracking.places.items():
                typer.echo(f"tracked with {name}: {place}", err=True)

    with contextlib.ExitStack() as stack:
        stop = None if saving is None else stack.enter_context(interruption.watched())
        shown = stack.enter_context(contextlib.closing(progress.for_person(quiet=quiet)))
        listeners: list[Listener] = [note_loading, say_places, shown]
        results = training.run(
            config,
            root=root,
            on_event=to_all(*listeners, *([] if tracking is None else [tracking])),
            loss_every=0 if tracking is None else tracking.loss_every,
            saving=saving,
            stop=stop,
        )
    seconds = time.perf_counter() - began
    return RunResult(tuple(results), _environment(config, asked), seconds, min(loaded, default=0.0))


def _environment(config: Config, asked: RunRequest | None) -> dict[str, Any]:
    from scale_cl.training.environment import describe
    from scale_cl.training.machine import choose_device

    arguments = sys.argv[1:] if asked is None else asked.arguments
    return describe(choose_device(config.run.device), config.run.threads, arguments)


def _must_write(write: Callable[[], object], directory: Path) -> None:
    from scale_cl.errors import ResultError

    try:
        write()
    except OSError as error:
        raise ResultError(f"the result cannot be written to {directory}: {error.strerror or error}") from error
