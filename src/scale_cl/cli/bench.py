"""`scale-cl bench`: step times against the floor, whole streams, seeds side by side, growth with tasks, cost."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from scale_cl.bench import PARTS
from scale_cl.cli import say

_HISTORY = Path("benchmarks") / "history.jsonl"


def bench(
    parts: Annotated[
        list[str] | None,
        typer.Argument(metavar="[PART]...", help=f"Parts to run, of {', '.join(PARTS)}; all if none is given."),
    ] = None,
    stream: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Stream to measure, may be repeated; default: pmnist and scifar100."),
    ] = None,
    learner: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Learner to measure, may be repeated; default: all for steps, scale and er for other parts.",
        ),
    ] = None,
    device: Annotated[str, typer.Option(metavar="NAME", help="auto, cpu, cuda or cuda:N.")] = "auto",
    threads: Annotated[int, typer.Option(metavar="N", help="CPU threads per process.", min=1)] = 1,
    rounds: Annotated[int, typer.Option(metavar="N", help="Rounds, whose median is a step's time.", min=1)] = 15,
    block: Annotated[int, typer.Option(metavar="N", help="Steps per round [5 for colour on a CPU, or 20].", min=0)] = 0,
    tasks: Annotated[int | None, typer.Option(metavar="N", help="Tasks of part streams [all].", min=1)] = None,
    grow_to: Annotated[int, typer.Option(metavar="N", help="Number of tasks in part growth.", min=2)] = 1000,
    seeds: Annotated[str, typer.Option(metavar="N,N", help="Numbers of seeds side by side in part seeds.")] = "1,2,5",
    seed_steps: Annotated[int, typer.Option(metavar="N", help="Steps per seed in part seeds.", min=1)] = 100,
    data: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Data directory; noise of the same shape replaces a missing data set."),
    ] = None,
    synthetic: Annotated[bool, typer.Option("--synthetic", help="Use noise even if the data set is there.")] = False,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Directory for bench.json and bench.png; default: a new one under runs/."),
    ] = None,
    history: Annotated[Path, typer.Option(metavar="FILE", help="The history: one JSON line per benchmark.")] = _HISTORY,
    save: Annotated[bool, typer.Option("--save", help="Append this benchmark to the history.")] = False,
    compare: Annotated[
        bool, typer.Option("--compare", help="Print ratios to earlier benchmarks of the same kind of machine.")
    ] = False,
) -> None:
    """Measure speed and memory, and compare with earlier times.

    Writes JSON and a figure.
    """
    from scale_cl.bench.suite import BenchSettings, append_history, comparison, draw, measure, read_history
    from scale_cl.files import write_json
    from scale_cl.training.config import require_known
    from scale_cl.training.run_directory import new_directory

    for part in parts or ():
        require_known("part", part, list(PARTS))
    settings = BenchSettings(
        parts=tuple(dict.fromkeys(parts or PARTS)),
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
    before = read_history(history) if save or compare else []
    entry = measure(settings, arguments=sys.argv[1:], say=lambda line: say(line, err=True))
    directory = out or new_directory("bench")
    write_json(directory / "bench.json", entry)
    draw(entry, directory / "bench.png")
    if save:
        append_history(history, entry)
    for line in _lines(entry):
        say(line)
    if compare:
        lines, none = comparison(entry, before), f"{history} has no benchmark of this kind of machine"
        say("")
        say("a ratio above 1 is slower or larger" if lines else none)
        for line in lines:
            say(line)
    say(f"wrote {directory / 'bench.json'} and bench.png", err=True)


def _counts(text: str) -> tuple[int, ...]:
    from scale_cl.errors import ConfigError

    words = text.split(",")
    if not all(word.strip().isdigit() and 1 <= int(word) <= 1000 for word in words):
        raise ConfigError(f"--seeds {text!r}: give numbers from 1 to 1000 with commas between them, such as 1,2,5")
    return tuple(int(word) for word in words)


def _lines(entry: dict[str, Any]) -> list[str]:
    """The entry as lines of text."""
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
        lines.append(f"seeds   {_who(row)}  {row['seeds']} seeds  {row['steps_per_second']:.0f} steps/s in total")
    for row in entry.get("growth", []):
        size = f"{row['bytes_per_task'] / 1024:.1f} KiB per task, {row['unexplained_bytes']} bytes unexplained"
        lines.append(f"growth  {_who(row)}  {row['tasks']} tasks  step x {row['ratio']:.2f}  {size}")
    for row in entry.get("cost", []):
        kept = {kind: f"{row[kind] / 1024:.0f} KiB" for kind in ("samples", "logits", "importances", "networks")}
        passed = f"{row['forward']:.1f} forward + 2 x {row['backward']:.1f} backward = {row['images']:.1f} images"
        kinds = ", ".join(f"{kind} {size}" for kind, size in kept.items())
        lines.append(f"cost    {row['learner']} on {row['stream']}  {passed} per batch  {kinds}")
    return lines


def _who(row: dict[str, Any]) -> str:
    return f"{row['learner']} on {row['stream']} ({row['data']})"
