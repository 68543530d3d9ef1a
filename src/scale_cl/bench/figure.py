"""One picture of a benchmark: a panel for each part that was measured."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scale_cl import files

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Rows = list[dict[str, Any]]


def draw(entry: dict[str, Any], path: Path) -> None:
    """Write the picture; the ending of `path` says whether PNG or SVG."""
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
    names = [f"{row['learner']}, {row['stream']}" for row in rows][::-1]
    ratios = [row["ratio"] for row in rows][::-1]
    bars = axes.barh(names, ratios, color="tab:blue")
    axes.bar_label(bars, fmt="%.1f", padding=3)
    axes.axvline(1, color="tab:red", linewidth=1)
    axes.set(xlabel="floors (forward, backward, SGD of the backbone)", title="time of a step")


def _streams(axes: Axes, rows: Rows) -> None:
    names = [f"{row['learner']}, {row['stream']}" for row in rows][::-1]
    trained = [row["seconds_train"] for row in rows][::-1]
    axes.barh(names, trained, color="tab:blue", label="training")
    axes.barh(names, [row["seconds_eval"] for row in rows][::-1], left=trained, color="tab:orange", label="evaluation")
    axes.set(xlabel="seconds", title="whole streams")
    axes.legend()


def _seeds(axes: Axes, rows: Rows) -> None:
    for label, some in _by_learner(rows):
        axes.plot([r["seeds"] for r in some], [r["steps_per_second"] for r in some], marker="o", label=label)
    axes.set(xlabel="seeds side by side", ylabel="steps a second, of all", title="throughput", ylim=(0, None))
    axes.legend()


def _growth(axes: Axes, rows: Rows) -> None:
    for label, some in _by_learner(rows):
        axes.plot([r["tasks"] for r in some], [r["ratio"] for r in some], marker="o", label=label)
    axes.axhline(1, color="tab:red", linewidth=1)
    axes.set(xscale="log", xlabel="tasks so far", ylabel="step against the first", title="growth", ylim=(0, None))
    axes.legend()


def _by_learner(rows: Rows) -> list[tuple[str, Rows]]:
    labels = dict.fromkeys(f"{row['learner']}, {row['stream']}" for row in rows)
    return [(label, [row for row in rows if f"{row['learner']}, {row['stream']}" == label]) for label in labels]


_PANELS: dict[str, Callable[[Any, Rows], None]] = {
    "steps": _steps,
    "streams": _streams,
    "seeds": _seeds,
    "growth": _growth,
}
