"""`scale-cl reproduce`: an experiment of the paper from one command, which can be repeated until all is done."""

from __future__ import annotations

import shutil
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scale_cl.cli.progress import clock
from scale_cl.cli.reproduce_places import here, on_ray

if TYPE_CHECKING:
    from scale_cl.experiments import Outcome, Plan, PlannedRun, Request
    from scale_cl.experiments.run_plan import Line

FAILED = 1
INTERRUPTED = 130  # as shells have it for SIGINT
ENGINES = ("local", "ray")


def reproduce(
    experiment: Annotated[
        str, typer.Argument(help="main, memory, ablation, sensitivity, time, search, claims or all.")
    ],
    streams: Annotated[str | None, typer.Option(metavar="A,B", help="Streams instead of the paper's.")] = None,
    learners: Annotated[str | None, typer.Option(metavar="A,B", help="Learners instead of the paper's.")] = None,
    preset: Annotated[
        str | None, typer.Option(metavar="paper|ours", help="The learners' settings; ours if not given.")
    ] = None,
    seeds: Annotated[
        str | None, typer.Option(metavar="N or A,B", help="How many seeds, or which ones (`3,` is seed 3 alone).")
    ] = None,
    tasks: Annotated[int | None, typer.Option(metavar="N", min=1, help="Only the first N tasks.")] = None,
    grid: Annotated[
        list[str] | None,
        typer.Option(metavar="FIELD=A,B", help="For search: an axis of the grid; F+G=A,B moves two fields as one."),
    ] = None,
    data: Annotated[Path | None, typer.Option(metavar="DIR", help="Where the data sets are.")] = None,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where results go and are looked for.")] = Path(
        "runs/reproduce"
    ),
    engine: Annotated[str, typer.Option(help="Where runs are carried out: local (this machine) or ray.")] = "local",
    address: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Ray: the cluster that this machine belongs to, or auto; else Ray is started here.",
        ),
    ] = None,
    gpu_share: Annotated[
        float | None,
        typer.Option(metavar="PART", min=0.01, max=1, help="Ray: the part of a GPU that a run takes [0.5]."),
    ] = None,
    retries: Annotated[
        int | None, typer.Option(metavar="N", min=0, help="Ray: new attempts at a run whose worker or node died [3].")
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    threads: Annotated[int, typer.Option(metavar="N", min=1, help="CPU threads of a run; with Ray, its CPUs.")] = 1,
    slots: Annotated[
        int,
        typer.Option(metavar="N", min=0, help="Runs at once; 0: as many as there is room for. Results do not change."),
    ] = 0,
    assignments: Annotated[
        list[str] | None, typer.Option("--set", metavar="FIELD=VALUE", help="One setting of all runs; may be repeated.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the plan and stop.")] = False,
) -> None:
    """Reproduce a table or figure of the paper.

    What is finished below --out is not done again, so the same command goes on after an interruption. A run that fails
    does not stop the others; it is named at the end with the command that repeats it, and the exit code is 1.

    With --engine ray, runs go to the nodes of a Ray cluster (extra `ray`). All nodes must see --out and the data under
    the same paths and have this version of scale-cl; start the command on one of them. Without --address, Ray is
    started on this machine and stopped at the end.
    """
    from scale_cl import experiments
    from scale_cl.errors import ConfigError
    from scale_cl.experiments.run_plan import carry_out
    from scale_cl.settings import suggest
    from scale_cl.training.config import RunSettings

    if engine not in ENGINES:
        raise ConfigError(f"unknown engine {engine!r}; {suggest(engine, ENGINES)}")
    wanted = experiments.chosen(experiment)
    request = _request(experiment, out, streams, learners, seeds, grid or [], tasks, device, threads, assignments or [])
    request = replace(request, preset=preset)
    RunSettings(device=device)  # refuses what is not the name of a device
    options = {"address": address, "gpu-share": gpu_share, "retries": retries}
    if engine == "local" and (given := [name for name, value in options.items() if value is not None]):
        raise ConfigError(f"--{given[0]} is for --engine ray, not for local")
    placed = (
        here(device, threads, data) if engine == "local" else on_ray(device, threads, data, address, gpu_share, retries)
    )
    with placed as place:
        plan = experiments.plan(wanted, request, gpu=place.gpu)
        at_once = slots or place.slots
        _show(plan, slots=at_once, gpu=place.gpu, out=out, to_stderr=not dry_run)
        if dry_run:
            return
        told = _Told(plan, gpu=place.gpu)
        try:
            carry_out(plan, place.engine, slots=at_once, listener=told)
        except KeyboardInterrupt:
            typer.echo("\nstopped; what has finished is kept, and the same command goes on", err=True)
            raise typer.Exit(INTERRUPTED) from None
    for name in wanted:
        _conclude(name, plan, out, data, gpu=place.gpu)
    _tell_failures(told.failed, data)
    if told.failed:
        raise typer.Exit(FAILED)


def _request(
    experiment: str,
    out: Path,
    streams: str | None,
    learners: str | None,
    seeds: str | None,
    grid: list[str],
    tasks: int | None,
    device: str,
    threads: int,
    assignments: list[str],
) -> Request:
    from scale_cl.errors import ConfigError, OutputInUseError
    from scale_cl.experiments import EXPERIMENTS, Request
    from scale_cl.experiments.definitions import ALL
    from scale_cl.experiments.search import read_grid

    if out.exists() and not out.is_dir():
        raise OutputInUseError(f"{out} is a file; --out names a directory")
    chosen = _names("learners", learners)
    cases = None
    if grid:
        if experiment != "search":
            raise ConfigError(f"--grid is for `reproduce search`, not for {experiment!r}")
        cases, *_ = [read_grid(grid, name) for name in chosen or EXPERIMENTS["search"].learners]
    return Request(
        out=out,
        streams=_names("streams", streams),
        learners=chosen,
        seeds=_seeds(seeds),
        cases=cases,
        tasks=tasks,
        device=device,
        threads=threads,
        assignments=tuple(assignments),
        strict=experiment != ALL,
    )


def _names(option: str, text: str | None) -> tuple[str, ...] | None:
    from scale_cl.errors import ConfigError

    if text is None:
        return None
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not names:
        raise ConfigError(f"--{option} {text!r} names none; separate names by commas")
    return names


def _seeds(text: str | None) -> tuple[int, ...] | None:
    from scale_cl.errors import ConfigError

    if text is None:
        return None
    try:
        numbers = sorted({int(part) for part in text.split(",") if part.strip()})
    except ValueError:
        numbers = []
    if "," not in text and len(numbers) == 1 and 1 <= numbers[0] <= 10_000:
        return tuple(range(numbers[0]))
    if "," not in text or not numbers or numbers[0] < 0:
        raise ConfigError(f"--seeds: {text!r} is neither a number of seeds, such as 5, nor a list of them, such as 0,3")
    return tuple(numbers)


def _show(plan: Plan, *, slots: int, gpu: bool, out: Path, to_stderr: bool) -> None:
    from rich.console import Console
    from rich.table import Table

    from scale_cl.experiments.estimate import steps
    from scale_cl.experiments.planning import total_seconds

    table = Table("experiment", "stream", "learner", box=None, pad_edge=False)
    for heading in ("seeds", "done", "to run", "steps", "about"):
        table.add_column(heading, justify="right")
    for cell in plan.cells:
        to_run = sum(len(run.config.seeds) for run in cell.runs)
        expected = clock(total_seconds(cell.runs, slots=1, gpu=gpu)) if cell.runs else "-"
        numbers = [len(cell.seeds), len(cell.done), to_run, steps(cell.config)]
        table.add_row(cell.experiment, cell.config.stream.name, cell.name, *map(str, numbers), expected)
    console = Console(stderr=to_stderr, soft_wrap=True)
    console.print(table)
    elsewhere = sum(len(cell.elsewhere) for cell in plan.cells)
    shared = f", {elsewhere} shared with an earlier experiment" if elsewhere else ""
    seconds = total_seconds(plan.runs, slots=slots, gpu=gpu)
    done = sum(len(cell.done) for cell in plan.cells)
    runs = f"{len(plan.runs)} run{'' if len(plan.runs) == 1 else 's'}"
    how, alone = f"up to {slots} at once", sum(run.alone for run in plan.runs)
    if alone:
        how = "all one after another" if alone == len(plan.runs) else f"{how}, {alone} one after another"
    line = f"{runs} to do, {how}, about {clock(seconds)}; {done} seeds done already{shared}; in {out}"
    typer.echo(line, err=to_stderr)


class _Told:
    """Tells a person how runs go: a line for each that ends, and on a terminal a live one for those that run."""

    def __init__(self, plan: Plan, *, gpu: bool) -> None:
        from scale_cl.experiments.planning import total_seconds

        self.failed: list[Outcome] = []
        self._weights = {run.folder: total_seconds([run], slots=1, gpu=gpu) for run in plan.runs}
        self._running: dict[Path, tuple[str, float]] = {}
        self._done, self._ended, self._began = 0.0, 0, time.monotonic()
        self._live = sys.stderr.isatty()

    def progressed(self, run: PlannedRun, fraction: float) -> None:
        self._running[run.folder] = run.title, fraction
        if self._live:
            running = "; ".join(f"{title} {100 * part:.0f} %" for title, part in self._running.values())
            shown = f"{running}{self._left()}"[: shutil.get_terminal_size().columns - 1]
            print(f"\r\x1b[K{shown}", end="", file=sys.stderr, flush=True)

    def retried(self, run: PlannedRun, reason: str) -> None:
        self._running.pop(run.folder, None)
        start = "\r\x1b[K" if self._live else ""
        typer.echo(f"{start}{run.title}: begins again; {reason}", err=True)

    def ended(self, outcome: Outcome) -> None:
        from scale_cl.results import read

        self._running.pop(outcome.run.folder, None)
        self._ended += 1
        self._done += self._weights[outcome.run.folder]
        if outcome.error is None:
            told = read(outcome.run.folder).line().partition(": ")[2]
        else:
            told = f"failed: {outcome.error}"
            self.failed.append(outcome)
        start = "\r\x1b[K" if self._live else ""
        count = f"[{self._ended}/{len(self._weights)}]"
        typer.echo(f"{start}{count} {outcome.run.title}: {told}{self._left()}", err=True)

    def _left(self) -> str:
        """At the pace so far, each run with the weight that the plan gave it."""
        total = sum(self._weights.values())
        done = self._done + sum(self._weights[folder] * part for folder, (_, part) in self._running.items())
        if self._ended == len(self._weights) or done <= 0:
            return ""
        return f"; {clock((time.monotonic() - self._began) * (total / done - 1))} left"


def _conclude(name: str, plan: Plan, out: Path, data: Path | None, *, gpu: bool) -> None:
    """The numbers of an experiment, and what is made of them."""
    from scale_cl.experiments import run_plan, search

    if not plan.experiment(name):
        return
    done = run_plan.finished(name, out, gpu=gpu)
    _print_lines(name, run_plan.lines(plan, name, done))
    if name == "search":
        for winner in search.winners(plan.experiment(name), done, out):
            counted = f"{winner.finished} of {winner.points} points"
            typer.echo(f"best on {winner.stream}, {counted}: ACC {winner.accuracy:.1f}, wrote {winner.config}")
    if name == "claims":
        from scale_cl.experiments import claims

        for claim in claims.measure(plan.experiment(name), done, out, data):
            typer.echo(claim.line)
            typer.echo("wrote " + ", ".join(map(str, claim.files)), err=True)


def _print_lines(name: str, lines: list[Line]) -> None:
    from scale_cl.experiments import EXPERIMENTS

    typer.echo(f"{name}: {EXPERIMENTS[name].line}")
    rows = [("stream", "learner", "ACC", "FM", "seconds", "seeds")]
    rows += [(line.cell.config.stream.name, line.cell.name, *line.values) for line in lines]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        typer.echo("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip())


def _tell_failures(failed: list[Outcome], data: Path | None) -> None:
    from scale_cl.experiments.rerun_command import command

    if failed:
        typer.echo(f"{len(failed)} run{'' if len(failed) == 1 else 's'} failed:", err=True)
    for outcome in failed:
        typer.echo(f"  {outcome.run.title}: {outcome.error}", err=True)
        typer.echo(f"    {command(outcome.run, data)}", err=True)
