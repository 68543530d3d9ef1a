"""`scale-cl run`: train a learner on a stream, write the result, and close with one line."""

from __future__ import annotations

import contextlib
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scale_cl.cli import progress

if TYPE_CHECKING:
    from scale_cl.results import RunResult
    from scale_cl.training.config import Config


def run(
    stream: Annotated[str | None, typer.Option(help="Stream to learn; digits if not given.")] = None,
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
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Only the closing line.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace the result in --out.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the settings in force and stop.")] = False,
) -> None:
    """Train a learner on a stream, one pass, and test it on all tasks so far after each one.

    Alone it runs SCALE on `digits`, which needs no download. `scale-cl show` explains every setting.
    """
    from scale_cl.cli.config_text import config_text
    from scale_cl.cli.output import check_free, claimed, new_directory
    from scale_cl.training.config import resolve

    options = {
        "run.seeds": seeds,
        "run.seed": seed,
        "run.device": device,
        "run.threads": threads,
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
    directory = out or new_directory(f"{resolved.learner_name}-{resolved.stream.name}")
    if dry_run:
        check_free(directory, force=force)
        many = "seed" if len(resolved.seeds) == 1 else "seeds"
        listed = ", ".join(map(str, resolved.seeds))
        typer.echo(f"# would run {resolved.learner_name} on {resolved.stream.name}, {many} {listed}, into {directory}")
        typer.echo(config_text(resolved))
        return
    with claimed(directory, force=force):
        result = trained(resolved, root=data, quiet=quiet)
        written = _written(result, directory)
    if not quiet:
        typer.echo(f"wrote {written}", err=True)
    typer.echo(result.line())


def trained(config: Config, *, root: Path | None, quiet: bool) -> RunResult:
    """Run a config with progress for a person."""
    from scale_cl import training
    from scale_cl.results import RunResult
    from scale_cl.training.environment import describe
    from scale_cl.training.machine import choose_device

    began = time.perf_counter()
    with contextlib.closing(progress.for_person(quiet=quiet)) as observer:
        results = training.run(config, root=root, observer=observer)
    seconds = time.perf_counter() - began
    made_with = describe(choose_device(config.run.device), config.run.threads, sys.argv[1:])
    return RunResult(tuple(results), made_with, seconds)


def _written(result: RunResult, directory: Path) -> Path:
    from scale_cl.errors import ResultError

    try:
        return result.write(directory)
    except OSError as error:
        raise ResultError(f"the result cannot be written to {directory}: {error.strerror}") from error
