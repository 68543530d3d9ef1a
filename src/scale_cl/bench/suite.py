"""A whole benchmark: the parts asked for, one after another, as one JSON entry."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scale_cl.bench.bench_data import material
from scale_cl.bench.clock import Clock
from scale_cl.bench.conditions import Conditions
from scale_cl.bench.full_stream import stream_times
from scale_cl.bench.growth import growth
from scale_cl.bench.history import SCHEMA
from scale_cl.bench.side_by_side import throughput
from scale_cl.bench.steps import step_times
from scale_cl.learners import registry as learner_catalog
from scale_cl.streams import catalog as stream_catalog
from scale_cl.training.config import RunSettings, require_known
from scale_cl.training.machine import compute, describe, prepare

PARTS = ("steps", "streams", "seeds", "growth")
_MAIN = ("scale", "er")  # whose streams, seeds and growth are measured unless others are named


@dataclass(frozen=True)
class BenchSettings:
    """What to measure, and how long."""

    parts: tuple[str, ...] = PARTS
    streams: tuple[str, ...] = ("pmnist", "scifar100")
    learners: tuple[str, ...] = ()  # none: all for the steps, SCALE and ER for the rest
    device: str = "auto"
    threads: int = 1
    batch_size: int = 10
    rounds: int = 15
    block: int = 0  # steps in a round; 0: twenty, but five of images in colour
    tasks: int | None = None  # of a stream, in part `streams`; none: all
    grow_to: int = 1000  # tasks, in part `growth`
    seeds: tuple[int, ...] = (1, 2, 5)
    seed_steps: int = 100  # of each seed, in part `seeds`
    synthetic: bool = False  # noise even where the data set is there
    root: Path | None = None


def measure(
    settings: BenchSettings, *, arguments: list[str] | None = None, say: Callable[[str], None] = lambda _line: None
) -> dict[str, Any]:
    """Run the parts and return the entry for the history; `say` gets a line when a part begins."""
    for name in settings.streams:
        require_known("stream", name, stream_catalog.names())
    for name in settings.learners:
        require_known("learner", name, learner_catalog.names())
    run = RunSettings(device=settings.device, threads=settings.threads, batch_size=settings.batch_size)
    device = prepare(run)
    clock = Clock(device, settings.threads)
    entry: dict[str, Any] = {
        "schema": SCHEMA,
        "when": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "environment": describe(device, settings.threads, arguments),
        "settings": {"batch_size": settings.batch_size, "rounds": settings.rounds, "clock": clock.kind},
    }
    every, main = (list(settings.learners or names) for names in (learner_catalog.names(), _MAIN))
    for name in settings.streams:
        given = material(name, settings.root, synthetic=settings.synthetic)
        colour = given.stream(tasks=1).spec.shape[0] == 3
        how = Conditions(
            clock,
            compute(run, device),
            settings.batch_size,
            settings.rounds,
            settings.block or (5 if colour and device.type == "cpu" else 20),
            settings.root,
            settings.threads,
        )
        for part in settings.parts:
            say(f"{part} on {name} ({given.data} data)")
            rows = entry.setdefault(part, [])
            if part == "steps":
                rows += step_times(given, every, how)
            elif part == "streams":
                rows += stream_times(given, main, how, tasks=settings.tasks)
            elif part == "seeds":
                for learner in main:
                    counts, steps = list(settings.seeds), settings.seed_steps
                    rows += throughput(given, learner, how, counts=counts, steps=steps)
            else:
                for learner in main:
                    rows += growth(given, learner, how, tasks=settings.grow_to)
    return entry
