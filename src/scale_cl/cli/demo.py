"""`scale-cl demo`: what forgetting is and what avoids it, on data that needs no download."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Annotated

import typer

from scale_cl.cli import say

if TYPE_CHECKING:
    from scale_cl.results import RunResult

_INTERRUPTED = 130  # as shells report Ctrl-C: there is nothing to resume
_LEARNERS = (("finetune", "fine-tuning"), ("scale", "SCALE"))


def demo(
    seeds: Annotated[int, typer.Option(metavar="N", help="Number of seeds.", min=1, max=100)] = 3,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Only the table.")] = False,
) -> None:
    """Compare SCALE with plain fine-tuning; no download.

    Trains both on ten tasks and shows what they still know at the end. Writes no files.
    """
    from scale_cl.cli.run import run_with_progress
    from scale_cl.errors import Interrupted
    from scale_cl.training.config import resolve
    from scale_cl.training.run_directory import RunRequest

    if not quiet:
        say(
            "Ten tasks arrive one after another: the same 8x8 digits, pixels shuffled differently for each task.\n"
            "Every sample is seen once. Fine-tuning keeps nothing; SCALE keeps 50 samples per task.\n"
        )
    configs = [resolve(learner=name, stream="digits", options={"run.seeds": seeds}) for name, _ in _LEARNERS]
    try:
        results = [run_with_progress(RunRequest(config), None, quiet=quiet) for config in configs]
    except Interrupted as stopped:
        say(f"scale-cl: {stopped}", err=True)
        raise typer.Exit(_INTERRUPTED) from None
    _print_table(results)
    say(
        "\nACC: accuracy over all tasks at the end. FM: how much of the best was forgotten.\n"
        "LA: accuracy right after learning each task.\n"
        "First task: its accuracy when just learnt → at the end.\n"
        "Percent, mean ± deviation over the seeds.\n"
        "\nNext:\n"
        "  scale-cl list learners                 the methods there are\n"
        "  scale-cl run --learner scale-plus      the one we recommend; keeps its result\n"
        "  scale-cl run --stream folder:PATH      images of your own, a folder per task\n"
        "  scale-cl show scale --stream digits    every setting and its meaning\n"
        "  scale-cl data list                     benchmarks to download"
    )


def _print_table(results: list[RunResult]) -> None:
    from rich.console import Console
    from rich.table import Table

    from scale_cl.results import percent

    count = len(results[0].seeds)
    table = Table(title=f"{len(results[0].seeds[0].tasks)} tasks of digits, {count} seed{'s' if count > 1 else ''}")
    table.add_column("", no_wrap=True)
    for heading in ("ACC", "FM", "LA", "first task"):
        table.add_column(heading, justify="right", no_wrap=True)
    for (_, label), result in zip(_LEARNERS, results, strict=True):
        measures = [percent(result.values(measure)) for measure in ("acc", "fm", "la")]
        table.add_row(label, *measures, f"{_first_task(result, 0):.1f} → {_first_task(result, -1):.1f}")
    Console().print(table)


def _first_task(result: RunResult, after: int) -> float:
    """Mean accuracy on the first task after learning task number `after`."""
    return statistics.fmean(seed.matrix[after][0] or 0.0 for seed in result.seeds)
