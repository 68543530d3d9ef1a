"""A whole benchmark: the requested parts measured into one JSON entry, its figure, and the history of entries.

The history is a file with one JSON object per line, oldest first, so that a slowdown shows.
"""

from __future__ import annotations

import datetime
import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scale_cl import files
from scale_cl.bench import PARTS
from scale_cl.bench.conditions import Clock, Conditions, bench_data
from scale_cl.bench.cost import cost_row
from scale_cl.bench.growth import growth
from scale_cl.bench.steps import step_times, stream_times, throughput
from scale_cl.errors import ResultError
from scale_cl.learners import registry as learner_catalog
from scale_cl.streams import catalog as stream_catalog
from scale_cl.training.config import RunSettings, require_known
from scale_cl.training.machine import compute, describe, prepare

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SCHEMA = "scale-cl/bench/1"
BenchEntry = dict[str, Any]
Rows = list[dict[str, Any]]
_MAIN = ("scale", "er")  # measured in all parts but `steps` unless others are named


@dataclass(frozen=True)
class BenchSettings:
    """What to measure, and for how long."""

    parts: tuple[str, ...] = PARTS
    streams: tuple[str, ...] = ("pmnist", "scifar100")
    learners: tuple[str, ...] = ()  # empty: all for `steps`, SCALE and ER for the other parts
    device: str = "auto"
    threads: int = 1
    batch_size: int = 10
    rounds: int = 15
    block: int = 0  # steps per round; 0: 20, but 5 for colour images on a CPU
    tasks: int | None = None  # tasks per stream in part `streams`; None: all
    grow_to: int = 1000  # number of tasks in part `growth`
    seeds: tuple[int, ...] = (1, 2, 5)
    seed_steps: int = 100  # steps per seed in part `seeds`
    synthetic: bool = False  # noise even if the data set is installed
    root: Path | None = None


def measure(
    settings: BenchSettings, *, arguments: list[str] | None = None, say: Callable[[str], None] = lambda _line: None
) -> BenchEntry:
    """Run the parts and return the entry for the history; `say` is called with a line when a part begins."""
    for name in settings.streams:
        require_known("stream", name, stream_catalog.names())
    for name in settings.learners:
        learner_catalog.OUTSIDE.give(name)
        learner_catalog.config_class(name)  # raises ConfigError for an unknown learner
    run = RunSettings(device=settings.device, threads=settings.threads, batch_size=settings.batch_size)
    device = prepare(run)
    clock = Clock(device, settings.threads)
    entry: BenchEntry = {
        "schema": SCHEMA,
        "when": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "environment": describe(device, settings.threads, arguments),
        "settings": {"batch_size": settings.batch_size, "rounds": settings.rounds, "clock": clock.kind},
    }
    every, main = (list(settings.learners or names) for names in (learner_catalog.names(), _MAIN))
    for name in settings.streams:
        given = bench_data(name, settings.root, synthetic=settings.synthetic)
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
            elif part == "growth":
                for learner in main:
                    rows += growth(given, learner, how, tasks=settings.grow_to)
            else:
                rows += [cost_row(learner, name, batch=settings.batch_size) for learner in main]
    return entry


def read_history(path: Path) -> list[BenchEntry]:
    """All entries of a history file; empty if the file does not exist."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return []
    except (OSError, UnicodeDecodeError) as error:
        raise ResultError(f"history {path} cannot be read: {error}") from None
    entries = []
    for number, line in enumerate(lines, 1):
        try:
            entry = json.loads(line)
        except ValueError:
            entry = None
        if not isinstance(entry, dict) or entry.get("schema") != SCHEMA:
            raise ResultError(f"{path}, line {number}: not an entry of {SCHEMA}")
        entries.append(entry)
    return entries


def append_history(path: Path, entry: BenchEntry) -> None:
    """Append an entry; the file is rewritten whole or not at all."""
    lines = [json.dumps(each, allow_nan=False, sort_keys=True) for each in [*read_history(path), entry]]
    files.write_text(path, "\n".join(lines) + "\n")


def comparison(entry: BenchEntry, earlier: list[BenchEntry]) -> list[str]:
    """One line per figure that the same kind of machine, with as many threads, has measured before.

    The value, the value when it was last measured, and the ratio; above 1 is slower or larger.
    """
    then: dict[str, tuple[float, str]] = {}
    for each in earlier:
        if _machine(each) == _machine(entry):
            then |= {name: (value, each["when"][:10]) for name, value in figures(each).items() if value > 0}
    now = {name: value for name, value in figures(entry).items() if name in then}
    width = max(map(len, now), default=0)
    lines = []
    for name, value in now.items():
        old, when = then[name]
        lines.append(f"{name:{width}}  {value:10.4g}  was {old:10.4g} on {when}  ratio {value / old:.2f}")
    return lines


def figures(entry: BenchEntry) -> dict[str, float]:
    """The figures that reveal a slowdown, by name; lower is better for all."""
    found: dict[str, float] = {}
    for row in entry.get("steps", []):
        found[f"step of {_who(row)}, floors"] = row["ratio"]
        found[f"step of {_who(row)}, ms"] = row["step_ms"]
    for row in entry.get("streams", []):
        found[f"{_who(row)}, {row['tasks']} tasks, seconds"] = row["seconds"]
        if row["peak_bytes"] is not None:
            found[f"{_who(row)}, {row['tasks']} tasks, peak MiB"] = row["peak_bytes"] / 2**20
    for row in entry.get("seeds", []):
        found[f"{_who(row)}, {row['seeds']} seeds, ms a step of one"] = 1e3 / row["steps_per_second"]
    for row in entry.get("growth", []):
        found[f"step of {_who(row)} after {row['tasks']} tasks, ms"] = row["step_ms"]
        found[f"state of {_who(row)} after {row['tasks']} tasks, MiB"] = row["state_bytes"] / 2**20
    for row in entry.get("cost", []):
        found[f"cost of {_who(row)}, images per batch"] = row["images"]
    return found


def _who(row: BenchEntry) -> str:
    return f"{row['learner']} on {row['stream']}"


def _machine(entry: BenchEntry) -> tuple[object, ...]:
    made_with = entry["environment"]
    return made_with["device"].partition(":")[0], made_with["device_name"], made_with["threads"]


def draw(entry: BenchEntry, path: Path) -> None:
    """Write a figure with one panel per part; the suffix of `path` decides between PNG and SVG."""
    from matplotlib.figure import Figure

    panels: list[tuple[Callable[[Axes, Rows], None], Rows]] = [
        (panel, entry[part]) for part, panel in _PANELS.items() if entry.get(part)
    ]
    figure = Figure(figsize=(6 * len(panels), 4.5), layout="constrained")
    for number, (panel, rows) in enumerate(panels, 1):
        panel(figure.add_subplot(1, len(panels), number), rows)
    made_with = entry["environment"]
    figure.suptitle(f"{made_with['device_name']}, torch {made_with['torch']}, scale-cl {made_with['scale_cl']}")
    buffer = io.BytesIO()
    figure.savefig(buffer, format=path.suffix[1:], dpi=120)
    files.write_bytes(path, buffer.getvalue())


def _steps(axes: Axes, rows: Rows) -> None:
    names = [_label(row) for row in rows][::-1]
    ratios = [row["ratio"] for row in rows][::-1]
    bars = axes.barh(names, ratios, color="tab:blue")
    axes.bar_label(bars, fmt="%.1f", padding=3)
    axes.axvline(1, color="tab:red", linewidth=1)
    axes.set(xlabel="floors (forward, backward, SGD of the backbone)", title="time per step")


def _streams(axes: Axes, rows: Rows) -> None:
    names = [_label(row) for row in rows][::-1]
    trained = [row["seconds_train"] for row in rows][::-1]
    axes.barh(names, trained, color="tab:blue", label="training")
    axes.barh(names, [row["seconds_eval"] for row in rows][::-1], left=trained, color="tab:orange", label="evaluation")
    axes.set(xlabel="seconds", title="whole streams")
    axes.legend()


def _seeds(axes: Axes, rows: Rows) -> None:
    for label, some in _by_learner(rows):
        axes.plot([r["seeds"] for r in some], [r["steps_per_second"] for r in some], marker="o", label=label)
    axes.set(xlabel="seeds side by side", ylabel="steps per second, all seeds", title="throughput", ylim=(0, None))
    axes.legend()


def _growth(axes: Axes, rows: Rows) -> None:
    for label, some in _by_learner(rows):
        axes.plot([r["tasks"] for r in some], [r["ratio"] for r in some], marker="o", label=label)
    axes.axhline(1, color="tab:red", linewidth=1)
    axes.set(xscale="log", xlabel="tasks so far", ylabel="step against the first", title="growth", ylim=(0, None))
    axes.legend()


def _cost(axes: Axes, rows: Rows) -> None:
    names = [_label(row) for row in rows][::-1]
    forward = [row["forward"] for row in rows][::-1]
    axes.barh(names, forward, color="tab:blue", label="forward")
    axes.barh(names, [2 * r["backward"] for r in rows][::-1], left=forward, color="tab:orange", label="2 x backward")
    axes.set(xlabel="images per batch", title="cost")
    axes.legend()


def _label(row: dict[str, Any]) -> str:
    """Learner and stream; of a learner in a file without its folder, for which a figure has no room."""
    return f"{row['learner'].rpartition('/')[2]}, {row['stream']}"


def _by_learner(rows: Rows) -> list[tuple[str, Rows]]:
    labels = dict.fromkeys(map(_label, rows))
    return [(label, [row for row in rows if _label(row) == label]) for label in labels]


_PANELS: dict[str, Callable[[Any, Rows], None]] = dict(
    zip(PARTS, (_steps, _streams, _seeds, _growth, _cost), strict=True)
)
