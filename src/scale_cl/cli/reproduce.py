"""`scale-cl reproduce`: an experiment of the paper in one command, which can be repeated until all runs are done."""

from __future__ import annotations

import shutil
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scale_cl.cli import counted, say
from scale_cl.cli.progress import clock
from scale_cl.errors import printable

if TYPE_CHECKING:
    from scale_cl.bench.cost import Cost, Size
    from scale_cl.experiments.engine import EngineChoice, Outcome, TableLine
    from scale_cl.experiments.planning import ExperimentPlan, PlannedRun

FAILED = 1
INTERRUPTED = 130  # the exit code of shells for SIGINT
ENGINES = ("local", "ray")


def reproduce(
    experiment: Annotated[
        str,
        typer.Argument(
            help="main, families, memory, ablation, sensitivity, rates, variants, departures, steps, time, "
            "search, paper-search, matched, beyond-search, beyond, claims, all."
        ),
    ],
    streams: Annotated[
        str | None,
        typer.Option(metavar="A,B", help="Streams instead of the paper's; module:function, file.py:function, too."),
    ] = None,
    learners: Annotated[
        str | None,
        typer.Option(metavar="A,B", help="Learners instead of the paper's; module:Class, file.py:Class, too."),
    ] = None,
    preset: Annotated[str | None, typer.Option(metavar="paper|ours", help="The learners' settings [ours].")] = None,
    seeds: Annotated[
        str | None, typer.Option(metavar="N or A,B", help="Number of seeds, or a list of seeds (`3,` is only seed 3).")
    ] = None,
    tasks: Annotated[int | None, typer.Option(metavar="N", min=1, help="Use only the first N tasks.")] = None,
    grid: Annotated[
        list[str] | None,
        typer.Option(metavar="FIELD=A,B", help="For search: an axis of the grid; F+G=A,B gives both fields one value."),
    ] = None,
    data: Annotated[Path | None, typer.Option(metavar="DIR", help="Data directory.")] = None,
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Directory that results are written to and looked for in.")
    ] = Path("runs/reproduce"),
    engine: Annotated[str, typer.Option(metavar="NAME", help="Where to run: local (this machine) or ray.")] = "local",
    address: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Ray: address of this machine's cluster, or auto; else Ray is started."),
    ] = None,
    gpu_share: Annotated[
        float | None, typer.Option(metavar="PART", min=0.01, max=1, help="Ray: fraction of a GPU per run [1].")
    ] = None,
    retries: Annotated[
        int | None, typer.Option(metavar="N", min=0, help="Ray: new attempts at a run whose worker or node died [3].")
    ] = None,
    device: Annotated[str, typer.Option(metavar="NAME", help="auto, cpu, cuda or cuda:N.")] = "auto",
    threads: Annotated[int, typer.Option(metavar="N", min=1, help="CPU threads per run; with Ray, its CPUs.")] = 1,
    slots: Annotated[
        int, typer.Option(metavar="N", min=0, help="Simultaneous runs, or groups of runs on a GPU; 0: as many as fit.")
    ] = 0,
    assignments: Annotated[
        list[str] | None, typer.Option("--set", metavar="FIELD=VALUE", help="A setting for all runs; may be repeated.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the plan and stop.")] = False,
    no_run: Annotated[
        bool, typer.Option("--no-run", help="Write the tables of what is finished below --out, and run nothing.")
    ] = False,
) -> None:
    """Reproduce a table or figure of the paper.

    Runs that are finished below --out are skipped, so the same command continues after an interruption. A run that
    fails does not stop the others; it is listed at the end with the command that repeats it, and the exit code is 1.

    With --engine ray, runs go to the nodes of a Ray cluster (extra `ray`). All nodes must see --out and the data under
    the same paths and have this version of scale-cl; start the command on one of them. Without --address, Ray is
    started on this machine and stopped at the end.
    """
    from scale_cl.errors import ConfigError, OutputInUseError
    from scale_cl.experiments import definitions, planning
    from scale_cl.experiments.engine import engine_here, engine_on_ray, execute_plan
    from scale_cl.experiments.search import read_grid
    from scale_cl.settings import suggest
    from scale_cl.training.config import RunSettings
    from scale_cl.training.machine import stop_on_signal

    if engine not in ENGINES:
        raise ConfigError(f"unknown engine {engine!r}; {suggest(engine, ENGINES)}")
    wanted = definitions.chosen(experiment)
    if out.exists() and not out.is_dir():
        raise OutputInUseError(f"{out} is a file; --out names a directory")
    if grid and experiment != "search":
        raise ConfigError(f"--grid is for `reproduce search`, not for {experiment!r}")
    named = _names("learners", learners) or (definitions.GRID_LEARNERS if grid else None)
    grids = [read_grid(grid, name) for name in named or ()] if grid else []
    request = planning.Request(
        out=out,
        streams=_names("streams", streams),
        learners=named,
        seeds=_seeds(seeds),
        cases=grids[0] if grids else None,
        tasks=tasks,
        device=device,
        threads=threads,
        assignments=tuple(assignments or ()),
        preset=preset,
        strict=experiment != definitions.ALL,
    )
    RunSettings(device=device)  # raises ConfigError for a name that is no device
    options = {"address": address, "gpu-share": gpu_share, "retries": retries}
    if engine == "local" and (given := [name for name, value in options.items() if value is not None]):
        raise ConfigError(f"--{given[0]} is for --engine ray, not for local")
    choice = (
        engine_here(device, threads, data)
        if engine == "local"
        else engine_on_ray(device, threads, data, address, gpu_share, retries)
    )
    with choice as chosen:
        plan = planning.plan(wanted, request, gpu=chosen.gpu)
        at_once = slots or chosen.slots
        _show(plan, chosen, slots=at_once, out=out, to_stderr=not dry_run)
        if dry_run:
            return
        progress = _Progress(plan, gpu=chosen.gpu)
        try:
            with stop_on_signal(at_once=True):
                if not no_run:
                    execute_plan(plan, chosen.engine, slots=at_once, listener=progress)
        except KeyboardInterrupt:
            say("\nstopped; finished runs are kept, and the same command continues", err=True)
            raise typer.Exit(INTERRUPTED) from None
    for name in wanted:
        _conclude(name, plan, out, data, gpu=chosen.gpu)
    _print_failures(progress.failed, data)
    if progress.failed:
        raise typer.Exit(FAILED)


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


def _show(plan: ExperimentPlan, chosen: EngineChoice, *, slots: int, out: Path, to_stderr: bool) -> None:
    from rich.console import Console
    from rich.table import Table

    from scale_cl.experiments.engine import searched_lines
    from scale_cl.experiments.planning import step_count, stream_and_order, total_seconds

    table = Table("experiment", "stream", "learner", box=None, pad_edge=False)
    for heading in ("seeds", "done", "to run", "steps", "about"):
        table.add_column(heading, justify="right")
    for cell in plan.cells:
        to_run = sum(len(run.config.seeds) for run in cell.runs)
        expected = clock(total_seconds([[run] for run in cell.runs], slots=1, gpu=chosen.gpu)) if cell.runs else "-"
        numbers = [len(cell.seeds), len(cell.done), to_run, step_count(cell.config)]
        table.add_row(cell.experiment, stream_and_order(cell.config), cell.name, *map(str, numbers), expected)
    console = Console(stderr=to_stderr, soft_wrap=True)
    console.print(table)
    for line in searched_lines(plan.cells):
        say(line, err=to_stderr)
    elsewhere = sum(len(cell.elsewhere) for cell in plan.cells)
    shared = f", {elsewhere} shared with an earlier experiment" if elsewhere else ""
    groups = chosen.engine.groups(plan.runs)
    seconds = total_seconds(groups, slots=slots, gpu=chosen.gpu)
    done = sum(len(cell.done) for cell in plan.cells)
    runs = f"{counted(len(plan.runs), 'run')} to do"
    if len(groups) < len(plan.runs):
        runs += f", side by side in {counted(len(groups), 'group')}"
    how, alone = f"up to {slots} at once", sum(run.alone for run in plan.runs)
    if alone:
        how = "all one after another" if alone == len(plan.runs) else f"{how}, {alone} one after another"
    line = f"{runs}, {how}, about {clock(seconds)}; {done} seeds done already{shared}; in {out}"
    say(line, err=to_stderr)


class _Progress:
    """Prints the progress: a line per finished run, and on a terminal a live line for the current ones."""

    def __init__(self, plan: ExperimentPlan, *, gpu: bool) -> None:
        from scale_cl.experiments.planning import total_seconds

        self.failed: list[Outcome] = []
        self._weights = {run.folder: total_seconds([[run]], slots=1, gpu=gpu) for run in plan.runs}
        self._running: dict[Path, tuple[str, float]] = {}
        self._done, self._ended, self._began = 0.0, 0, time.monotonic()
        self._live = sys.stderr.isatty()

    def progressed(self, run: PlannedRun, fraction: float) -> None:
        self._running[run.folder] = run.title, fraction
        if self._live:
            running = "; ".join(f"{title} {100 * part:.0f} %" for title, part in self._running.values())
            left = self._left()
            shown = running[: max(0, shutil.get_terminal_size().columns - 1 - len(left))]
            self._clear()
            print(printable(f"{shown}{left}"), end="", file=sys.stderr, flush=True)

    def _clear(self) -> None:
        """Begin the live line anew."""
        if self._live:
            print("\r\x1b[K", end="", file=sys.stderr)

    def retried(self, run: PlannedRun, reason: str) -> None:
        self._running.pop(run.folder, None)
        self._clear()
        say(f"{run.title}: begins again; {reason}", err=True)

    def ended(self, outcome: Outcome) -> None:
        from scale_cl.results import read

        self._running.pop(outcome.run.folder, None)
        self._ended += 1
        self._done += self._weights[outcome.run.folder]
        if outcome.error is None:
            result = read(outcome.run.folder).line().partition(": ")[2]
        else:
            result = f"failed: {outcome.error}"
            self.failed.append(outcome)
        self._clear()
        count = f"[{self._ended}/{len(self._weights)}]"
        say(f"{count} {outcome.run.title}: {result}{self._left()}", err=True)

    def _left(self) -> str:
        """Remaining time at the pace so far; a run counts as much as its estimated time."""
        total = sum(self._weights.values())
        done = self._done + sum(self._weights[folder] * part for folder, (_, part) in self._running.items())
        if self._ended == len(self._weights) or done <= 0:
            return ""
        return f"; {clock((time.monotonic() - self._began) * (total / done - 1))} left"


def _conclude(name: str, plan: ExperimentPlan, out: Path, data: Path | None, *, gpu: bool) -> None:
    """Print the numbers of an experiment, and write what follows from them."""
    from scale_cl.experiments.definitions import EXPERIMENTS
    from scale_cl.experiments.engine import finished_results, table_lines

    if not plan.experiment(name):
        return
    done = finished_results(name, out, gpu=gpu)
    lines = table_lines(plan, name, done)
    sizes = [_size(line) for line in lines] if EXPERIMENTS[name].sizes else []
    _print_lines(name, lines, sizes)
    if EXPERIMENTS[name].part == "search":
        from scale_cl.experiments.search import winners

        for winner in winners(plan.experiment(name), done, out):
            counted = f"{winner.finished} of {winner.points} points"
            say(f"best on {winner.stream}, {counted}: ACC {winner.accuracy:.1f}, wrote {winner.config}")
    if EXPERIMENTS[name].orders or sizes:
        _write_tables(name, lines, sizes, out)
    if name == "claims":
        from scale_cl.experiments.claims import measure_claims

        for claim in measure_claims(plan.experiment(name), done, out, data):
            say(claim.line)
            say("wrote " + ", ".join(map(str, claim.files)), err=True)


def _write_tables(name: str, lines: list[TableLine], sizes: list[Size | None], out: Path) -> None:
    """Write the tables of a comparison: what each method reached, its size or its cost, and paired tests."""
    from scale_cl.bench.matched import MatchedRow, write_matched

    rows: dict[str, list[MatchedRow]] = {}
    for line, size in zip(lines, sizes or [None] * len(lines), strict=True):
        cost, settings = None if sizes else _cost(line), line.cells[0].config.as_dict()["learner"]
        rows.setdefault(_where(line), []).append(MatchedRow(line.name, line.lanes, cost, settings, size))
    for where, own in rows.items():
        say("wrote " + ", ".join(map(str, write_matched(where, own, out / name / where))))


def _where(line: TableLine) -> str:
    """The stream, and how many of its tasks if not all."""
    tasks = line.cells[0].config.stream.tasks
    return line.stream if tasks is None else f"{line.stream}-{tasks}-tasks"


def _size(line: TableLine) -> Size | None:
    from scale_cl.bench.cost import size_of
    from scale_cl.streams import catalog

    config = line.cells[0].config
    if line.stream not in catalog.ENTRIES:
        return None
    return size_of(config.learner_name, config.learner, line.stream, tasks=config.stream.tasks)


def _cost(line: TableLine) -> Cost | None:
    from scale_cl.bench.cost import cost_of
    from scale_cl.streams import catalog

    config = line.cells[0].config
    if line.stream not in catalog.ENTRIES or not line.lanes:  # which takes time, and is of no use without a result
        return None
    say(f"counting what {line.name} on {line.stream} costs", err=True)
    size, tasks = config.run.batch_size, config.stream.tasks
    return cost_of(config.learner_name, config.learner, line.stream, batch=size, tasks=tasks)


def _print_lines(name: str, lines: list[TableLine], sizes: list[Size | None]) -> None:
    """Print the table of an experiment, with columns of sizes if they are given."""
    from scale_cl.experiments.definitions import EXPERIMENTS

    say(f"{name}: {EXPERIMENTS[name].line}")
    rows: list[tuple[str, ...]] = [("stream", "learner", "ACC", "FM", "seconds", "seeds")]
    rows += [(line.stream, line.name, *line.values) for line in lines]
    if sizes:
        counted = [("-",) * 3 if s is None else (f"{s.parameters:,}", f"+{s.growth:,}", f"{s.bytes:,}") for s in sizes]
        columns = [("parameters", "per task", "bytes kept"), *counted]
        rows = [(*row[:-1], *more, row[-1]) for row, more in zip(rows, columns, strict=True)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        say("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip())


def _print_failures(failed: list[Outcome], data: Path | None) -> None:
    from scale_cl.experiments.planning import rerun_command

    if failed:
        say(f"{counted(len(failed), 'run')} failed:", err=True)
    for outcome in failed:
        say(f"  {outcome.run.title}: {outcome.error}", err=True)
        say(f"    {rerun_command(outcome.run, data)}", err=True)
