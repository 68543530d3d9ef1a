"""`scale-cl bench`: step times against the floor, whole streams, seeds side by side, and growth with tasks."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from collections.abc import Sequence

_HISTORY = Path("benchmarks") / "history.jsonl"
_PARTS = ("steps", "streams", "seeds", "growth")


def bench(
    parts: Annotated[
        list[str] | None, typer.Argument(metavar="[PART]...", help=f"Of {', '.join(_PARTS)}; all if none is named.")
    ] = None,
    stream: Annotated[
        list[str] | None, typer.Option(help="May be repeated; pmnist and scifar100 if not given.")
    ] = None,
    learner: Annotated[
        list[str] | None,
        typer.Option(help="May be repeated; if not given, all for steps, and scale and er for the rest."),
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    threads: Annotated[int, typer.Option(metavar="N", help="CPU threads of a process.", min=1)] = 1,
    rounds: Annotated[int, typer.Option(metavar="N", help="Rounds whose median is a step's time.", min=1)] = 15,
    block: Annotated[
        int, typer.Option(metavar="N", help="Steps in a round; 0: 20, or 5 of a large network on a CPU.", min=0)
    ] = 0,
    tasks: Annotated[
        int | None, typer.Option(metavar="N", help="Tasks of a whole stream; all if not given.", min=1)
    ] = None,
    grow_to: Annotated[int, typer.Option(metavar="N", help="Tasks up to which growth is measured.", min=2)] = 1000,
    seeds: Annotated[str, typer.Option(metavar="N,N", help="Numbers of seeds to run side by side.")] = "1,2,5",
    seed_steps: Annotated[int, typer.Option(metavar="N", help="Steps of each of these seeds.", min=1)] = 100,
    data: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where the data sets are; without one, noise of its shape.")
    ] = None,
    synthetic: Annotated[bool, typer.Option("--synthetic", help="Noise even where the data set is there.")] = False,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where bench.json and bench.png go; a new folder under runs/.")
    ] = None,
    history: Annotated[Path, typer.Option(metavar="FILE", help="The history, a line a benchmark.")] = _HISTORY,
    save: Annotated[bool, typer.Option("--save", help="Add this benchmark to the history.")] = False,
    compare: Annotated[
        bool, typer.Option("--compare", help="Print ratios to what the history has of such a machine.")
    ] = False,
) -> None:
    """Measure speed and memory: JSON and a plot, and a history that shows a slowdown."""
    from scale_cl.bench import BenchSettings, measure
    from scale_cl.bench import history as kept
    from scale_cl.bench.figure import draw
    from scale_cl.files import write_json
    from scale_cl.training.run_directory import new_directory

    settings = BenchSettings(
        parts=_known_parts(parts or list(_PARTS)),
        streams=tuple(stream or BenchSettings.streams),
        learners=tuple(learner or ()),
        device=device,
        threads=threads,
        rounds=rounds,
        block=block,
        tasks=tasks,
        grow_to=grow_to,
        seeds=_counts(seeds),
        seed_steps=seed_steps,
        synthetic=synthetic,
        root=data,
    )
    before = kept.read(history) if save or compare else []
    entry = measure(settings, arguments=sys.argv[1:], say=lambda line: typer.echo(line, err=True))
    directory = out or new_directory("bench")
    write_json(directory / "bench.json", entry)
    draw(entry, directory / "bench.png")
    if save:
        kept.append(history, entry)
    for line in _lines(entry):
        typer.echo(line)
    if compare:
        lines = kept.comparison(entry, before)
        typer.echo("")
        typer.echo("a ratio above 1 is slower or larger" if lines else f"{history} has nothing of such a machine")
        for line in lines:
            typer.echo(line)
    typer.echo(f"wrote {directory / 'bench.json'} and bench.png", err=True)


def _known_parts(names: Sequence[str]) -> tuple[str, ...]:
    from scale_cl.training.config import require_known

    for name in names:
        require_known("part", name, list(_PARTS))
    return tuple(dict.fromkeys(names))


def _counts(text: str) -> tuple[int, ...]:
    from scale_cl.errors import ConfigError

    words = text.split(",")
    if not all(word.strip().isdigit() and 1 <= int(word) <= 1000 for word in words):
        raise ConfigError(f"--seeds {text!r}: give numbers from 1 to 1000 with commas between them, such as 1,2,5")
    return tuple(int(word) for word in words)


def _lines(entry: dict[str, Any]) -> list[str]:
    """The figures for a person."""
    lines = []
    for row in entry.get("steps", []):
        ratios = f"{row['ratio']:.2f} floors of {row['images']} images"
        if row["updates"] > 1:
            ratios += f" = {row['updates']} x {row['ratio_updates']:.2f}"
        lines.append(f"step    {_who(row)}  {row['step_ms']:.2f} ms  {ratios}")
    for row in entry.get("streams", []):
        peak = "unknown" if row["peak_bytes"] is None else f"{row['peak_bytes'] / 2**20:.0f} MiB"
        of_which = f"{row['seconds_eval']:.2f} of them evaluation"
        lines.append(f"stream  {_who(row)}  {row['tasks']} tasks  {row['seconds']:.2f} s, {of_which}  peak {peak}")
    for row in entry.get("seeds", []):
        lines.append(f"seeds   {_who(row)}  {row['seeds']} seeds  {row['steps_per_second']:.0f} steps/s of all")
    for row in entry.get("growth", []):
        size = f"{row['bytes_per_task'] / 1024:.1f} KiB a task, {row['unexplained_bytes']} bytes unexplained"
        lines.append(f"growth  {_who(row)}  {row['tasks']} tasks  step x {row['ratio']:.2f}  {size}")
    return lines


def _who(row: dict[str, Any]) -> str:
    return f"{row['learner']} on {row['stream']} ({row['data']})"
