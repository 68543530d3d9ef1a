"""`scale-cl run` and `scale-cl resume`: train a learner on a stream, write the result, and close with one line."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scale_cl.cli import BackboneReference, LearnerReference, StreamReference, progress, say

if TYPE_CHECKING:
    from scale_cl.results import RunResult
    from scale_cl.trackers import Tracking
    from scale_cl.training.run_directory import RunDirectory, RunRequest

    Tracked = Callable[..., AbstractContextManager[Tracking]]

Divergence = Annotated[str | None, typer.Option(metavar="stop|skip", help="When a loss or gradient is not finite.")]
_FEW_TASKS = 10  # the accuracies of so many fit in a line


def run(
    stream: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Stream: a name, folder:PATH, csv:FILE, module:function or file.py:function [digits]."
        ),
    ] = None,
    learner: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Method: a name, module:Class or file.py:Class; scale if not given."),
    ] = None,
    preset: Annotated[str | None, typer.Option(metavar="paper|ours", help="The learner's settings [ours].")] = None,
    seeds: Annotated[int | None, typer.Option(metavar="N", help="Number of seeds.")] = None,
    seed: Annotated[int | None, typer.Option(metavar="S", help="First seed.")] = None,
    tasks: Annotated[int | None, typer.Option(metavar="N", help="Only the first N tasks.")] = None,
    memory: Annotated[
        int | None, typer.Option(metavar="N", help="Memory slots, per task unless memory_budget says else.")
    ] = None,
    data: Annotated[Path | None, typer.Option(metavar="DIR", help="Where the data sets are.")] = None,
    device: Annotated[str | None, typer.Option(metavar="NAME", help="auto, cpu, cuda or cuda:N.")] = None,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Where to write [a new folder under runs/].")] = None,
    config: Annotated[Path | None, typer.Option(metavar="FILE", help="YAML: sections stream, learner, run.")] = None,
    assignments: Annotated[
        list[str] | None, typer.Option("--set", metavar="FIELD=VALUE", help="One setting; may be repeated.")
    ] = None,
    threads: Annotated[int | None, typer.Option(metavar="N", help="CPU threads per process.")] = None,
    on_divergence: Divergence = None,
    track: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Tracker: tensorboard, mlflow or wandb; may be repeated.")
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
    """Train a learner on a stream, and test it after each task.

    One pass; each test is on all tasks so far. Without options it runs SCALE on `digits`, which needs no download.
    `scale-cl show` explains every setting.
    """
    from scale_cl.cli.catalog import config_text
    from scale_cl.errors import ConfigError
    from scale_cl.trackers import EVERY, parse, tracking, without_passwords
    from scale_cl.training.config import resolve
    from scale_cl.training.run_directory import RunDirectory, RunRequest, new_directory

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
        preset=preset,
    )
    named = parse(track or ())
    if not named and (track_every, track_project, track_address) != (None, None, None):
        raise ConfigError("--track-every, --track-project and --track-address need --track NAME")
    directory = RunDirectory(out or new_directory(resolved.short_name))
    if dry_run:
        directory.check_free(force=force)
        many = "seed" if len(resolved.seeds) == 1 else "seeds"
        listed = ", ".join(map(str, resolved.seeds))
        what = f"{resolved.learner_name} on {resolved.stream.name}, {many} {listed}"
        say(f"# would run {what}, into {directory.path}")
        say(config_text(resolved))
        return
    with directory.claimed(force=force):
        every = EVERY if track_every is None else track_every
        tracked = partial(tracking, named, directory.path, every=every, project=track_project, address=track_address)
        request = RunRequest(resolved, data, [without_passwords(argument) for argument in sys.argv[1:]])
        result = run_with_progress(request, directory, quiet=quiet, tracked=tracked if named else None)
    close(result, directory.path, quiet=quiet)


def resume(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="The run's directory.")],
    data: Annotated[Path | None, typer.Option(metavar="DIR", help="Where the data sets are now.")] = None,
    on_divergence: Divergence = None,
    stream: StreamReference = None,
    learner: LearnerReference = None,
    backbone: BackboneReference = None,
    no_track: Annotated[
        bool, typer.Option("--no-track", help="Continue without the trackers that the run was started with.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Only the closing line.")] = False,
) -> None:
    """Continue a run where it stopped.

    The result is the one that it would have had without the stop.
    """
    from scale_cl import files, trackers
    from scale_cl.errors import CheckpointError, TrackerError
    from scale_cl.plugins import name_references
    from scale_cl.results import RESULT_NAME
    from scale_cl.settings import as_dict, build
    from scale_cl.training.config import RunSettings
    from scale_cl.training.run_directory import RunDirectory

    name_references(stream=stream, learner=learner, backbone=backbone)
    if not files.is_folder(directory):
        raise CheckpointError(f"{directory} is not a directory; name the one that the run writes to")
    with RunDirectory(directory).claimed(force=True) as claimed:
        if claimed.finished:
            say(f"{directory} is finished: its result is in {directory / RESULT_NAME}")
            return
        request = claimed.request()
        request = replace(request, data=data or request.data)
        if on_divergence is not None:
            run = build(RunSettings, {**as_dict(request.config.run), "on_divergence": on_divergence}, section="run")
            request = replace(request, config=replace(request.config, run=run))
        before = None if no_track else trackers.read(directory)
        tracked = None
        if before is not None:
            tracked = partial(trackers.tracking, list(before.trackers), directory, every=before.every, resume=True)
        try:
            result = run_with_progress(request, claimed, quiet=quiet, resume=True, tracked=tracked)
        except TrackerError as error:
            raise TrackerError(f"{error}; --no-track goes on without it") from error
    close(result, directory, quiet=quiet)


def run_with_progress(
    request: RunRequest,
    directory: RunDirectory | None,
    *,
    quiet: bool,
    resume: bool = False,
    tracked: Tracked | None = None,
) -> RunResult:
    """Run with progress for people, into a claimed directory (None: nothing is written), perhaps tracked.

    `tracked` makes the tracking; if it cannot start, the directory stays as it was.
    """
    from scale_cl import trackers, training
    from scale_cl.training.events import to_all
    from scale_cl.training.machine import choose_device, describe, stop_on_signal

    config = request.config
    listeners: list[Tracking] = []
    with contextlib.ExitStack() as stack:
        stack.enter_context(_one_stop(directory))
        if tracked is not None:
            environment = describe(choose_device(config.run.device), config.run.threads, request.arguments)
            about = {"config": config.as_dict(), "environment": environment, "seeds": config.seeds}
            listeners.append(stack.enter_context(tracked(**about)))
        elif directory is not None and not resume:
            trackers.forget(directory.path)
        stop = stack.enter_context(stop_on_signal())
        places = {} if quiet else {name: place for one in listeners for name, place in one.places.items()}
        shown = stack.enter_context(contextlib.closing(progress.for_person(quiet=quiet, places=places)))
        return training.run(
            config,
            directory,
            data=request.data,
            resume=resume,
            on_event=to_all(shown, *listeners),
            loss_every=max((one.loss_every for one in listeners), default=0),
            stop=stop,
            arguments=request.arguments,
        )


@contextlib.contextmanager
def _one_stop(directory: RunDirectory | None) -> Iterator[None]:
    """A second signal ends a run with a line, as the first does."""
    from scale_cl.errors import Interrupted

    try:
        yield
    except KeyboardInterrupt:
        if directory is None:
            raise
        raise Interrupted(f"stopped at once, without a new checkpoint; {directory.prospect}") from None


def close(result: RunResult, directory: Path, *, quiet: bool) -> None:
    """Print where result and model are, and the result in one line."""
    from scale_cl.results import RESULT_NAME
    from scale_cl.training.kept_model import model_line

    if not quiet:
        say(f"wrote {directory / RESULT_NAME}", err=True)
        by_task = _accuracies(result)
        if by_task:
            say(by_task, err=True)
        if result.boundaries_line():
            say(result.boundaries_line(), err=True)
        say(model_line(directory), err=True)
    say(result.line())


def _accuracies(result: RunResult) -> str:
    """The final accuracy on each task of the user's own data, the mean over the seeds; empty for many tasks."""
    from scale_cl.metrics import mean
    from scale_cl.streams.user_streams import is_own

    first = result.seeds[0]
    if not is_own(first.config["stream"]["name"]) or len(first.tasks) > _FEW_TASKS:
        return ""
    columns = zip(*(seed.matrix[-1] for seed in result.seeds), strict=True)
    means = [mean(column) for column in columns]
    shown = ["not tested" if value is None else f"{value:.1f}" for value in means]
    return "   ".join(f"task {name}: {value}" for name, value in zip(first.tasks, shown, strict=True))
