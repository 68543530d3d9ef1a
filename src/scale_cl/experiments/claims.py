"""The paper's claims that no table of it measures: parameters and growth, the adversary's cost, aligned features."""

from __future__ import annotations

import io
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from scale_cl import files
from scale_cl.errors import ResultError
from scale_cl.experiments import features
from scale_cl.experiments.planning import Cell
from scale_cl.experiments.result_index import Finished
from scale_cl.learners import method_properties
from scale_cl.streams import InputSpec
from scale_cl.streams import catalog as streams
from scale_cl.training.run import build_stream

FOLDER = "claims"
_SHOWN = 150  # samples of a task in a picture


@dataclass(frozen=True)
class Claim:
    """What was measured on one stream, and the files that hold it."""

    stream: str
    content: dict[str, Any]
    files: tuple[Path, ...]

    @property
    def line(self) -> str:
        """In a sentence, as far as the measurements go."""
        cost, aligned = self.content["adversary_cost"], self.content["alignment"]
        parts = []
        if cost is not None:
            parts.append(f"the adversary takes {cost['percent']:+.0f} % of time")
        probes = {name: point["probe"] for name, point in aligned.items()}
        parts += [f"tasks told apart by features of {name}: {value:.1f} %" for name, value in probes.items()]
        return f"{self.stream}: " + ("; ".join(parts) or "no run has finished")


def measure(cells: Iterable[Cell], done: Finished, out: Path, root: Path | None) -> list[Claim]:
    """Write `OUT/claims/STREAM.json` and the picture `STREAM-features.png` for every stream of the experiment."""
    groups: dict[str, list[Cell]] = {}
    for cell in cells:
        groups.setdefault(cell.config.stream.name, []).append(cell)
    return [_measured(stream, group, done, out, root) for stream, group in groups.items()]


def _measured(stream: str, cells: list[Cell], done: Finished, out: Path, root: Path | None) -> Claim:
    found = {cell.name: [done.of(cell.key)[s] for s in cell.seeds if s in done.of(cell.key)] for cell in cells}
    kept = {name: _read([f.folder for f in there]) for name, there in found.items()}
    content = {
        "schema": 1,
        "kind": "claims",
        "stream": stream,
        "parameters": _parameters(cells[0], root),
        "adversary_cost": _cost({n: [f.seed.seconds_train for f in there] for n, there in found.items()}, cells),
        "alignment": {name: _alignment(sets) for name, sets in kept.items() if sets},
        "devices": sorted({str(f.environment.get("device_name")) for there in found.values() for f in there}),
    }
    where = out / FOLDER
    file_name = cells[0].config.stream.short_name
    written = [where / f"{file_name}.json"]
    pictured = {name: sets[0] for name, sets in kept.items() if sets}
    if pictured:
        written.append(where / f"{file_name}-features.png")
        files.write_bytes(written[1], picture(pictured, title=stream))
    files.write_json(written[0], content)
    return Claim(stream, content, tuple(written))


def _read(folders: Sequence[Path]) -> list[dict[str, Any]]:
    kept = []
    for folder in folders:
        try:
            kept.append(features.read(folder))
        except ResultError:  # the result is there, its features are not: an explicit gap
            continue
    return kept


def _parameters(cell: Cell, root: Path | None) -> list[dict[str, Any]]:
    """Of every learner of the catalog: numbers in use after the first task began, and more with each further task."""
    spec, classes = _inputs(cell, root)
    rows = method_properties.rows(spec, classes)
    return [{"learner": row.learner, "parameters": row.parameters, "growth": row.growth} for row in rows]


def _inputs(cell: Cell, root: Path | None) -> tuple[InputSpec, int]:
    """The inputs of a stream and the classes of a task, without its data where they are known."""
    name = cell.config.stream.name
    example = {"scifar10": "scifar100"}.get(name, name)
    if example in method_properties.EXAMPLES:
        spec, classes = method_properties.EXAMPLES[example]
        return spec, streams.entry(name).classes_per_task or classes
    stream = build_stream(cell.config, 0, root)
    return stream.spec, len(stream.tasks[0].classes)


def _cost(seconds: dict[str, list[float]], cells: list[Cell]) -> dict[str, Any] | None:
    """Training seconds a seed with and without the adversary; None unless both are there."""
    with_it = next((cell.name for cell in cells if not cell.case and seconds[cell.name]), None)
    without = next((c.name for c in cells if c.case == {"adversary": False} and seconds[c.name]), None)
    if with_it is None or without is None:
        return None
    first, second = statistics.fmean(seconds[with_it]), statistics.fmean(seconds[without])
    return {"with": seconds[with_it], "without": seconds[without], "percent": 100 * (first / second - 1)}


def _alignment(sets: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Percent of test samples whose task is told from their features; chance is that of the largest task."""
    probes = [
        features.probe_accuracy(torch.from_numpy(s["features"]), torch.from_numpy(s["task"]), seed=number)
        for number, s in enumerate(sets)
    ]
    own = [float(s["own_accuracy"]) for s in sets if "own_accuracy" in s]
    counts = np.bincount(sets[0]["task"])
    return {
        "probe": statistics.fmean(probes),
        "probe_by_seed": probes,
        "own_discriminator_by_seed": own or None,
        "chance": 100 * float(counts.max() / counts.sum()),
    }


def picture(sets: dict[str, dict[str, Any]], *, title: str) -> bytes:
    """The features of each run in the plane of their first two principal components, coloured by task, as PNG."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.5 * len(sets), 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    for number, (name, kept) in enumerate(sets.items()):
        axes = figure.add_subplot(1, len(sets), number + 1)
        points, task = features.plane(kept["features"]), kept["task"]
        for k in range(int(task.max()) + 1):
            shown = points[task == k][:_SHOWN]
            axes.scatter(shown[:, 0], shown[:, 1], s=5, alpha=0.6, color=_colour(k), label=str(k + 1), linewidths=0)
        axes.set_title(f"{title}: {name}")
        axes.set_xlabel("first principal component")
        axes.set_ylabel("second")
    axes.legend(title="task", fontsize=6, markerscale=2, loc="center left", bbox_to_anchor=(1.0, 0.5))
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=150, metadata={"Software": None})
    return buffer.getvalue()


def _colour(number: int) -> tuple[float, float, float, float]:
    from matplotlib import colormaps

    colour: tuple[float, float, float, float] = colormaps["tab20"](number % 20)
    return colour
