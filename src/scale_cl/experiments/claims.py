"""Measurements for claims that no table of the paper shows: parameters, the adversary's cost, aligned features.

The adversary shall make the common features of different tasks indistinguishable. Since its own discriminator may just
be weak, the measure is a probe: a discriminator of the same shape, trained anew on the final features of the test
samples. The closer its accuracy is to chance, the better the features are aligned. On the MLP a FiLM layer precedes the
last layer, so that there even the common features reveal their task.
"""

from __future__ import annotations

import contextlib
import io
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.numpy import load, save
from torch import Tensor, nn

from scale_cl import files
from scale_cl.errors import ResultError
from scale_cl.experiments.planning import ExperimentCell
from scale_cl.experiments.result_index import Finished
from scale_cl.learners import Learner, method_properties
from scale_cl.streams import InputSpec, Stream
from scale_cl.streams import catalog as streams
from scale_cl.training.lanes import build_stream

FOLDER = "claims"
FEATURES_NAME = "features.safetensors"
_PROBE_STEPS = 400  # the loss of a probe has settled by then
_CHUNK = 500
_SHOWN = 150  # samples per task in a figure


def keep_features(folder: Path, learner: Learner, stream: Stream) -> None:
    """Write the features that a trained learner has for its stream's test samples."""
    features, task = test_features(learner, stream)
    kept = {"features": features, "task": task}
    own = own_accuracies(learner, torch.from_numpy(features), torch.from_numpy(task))
    if own is not None:
        kept["own_accuracies"] = np.array(own)
    files.write_bytes(folder / FEATURES_NAME, save(kept))


def read_features(folder: Path) -> dict[str, Any]:
    """The features of a run: features [n, width], task [n], and own_accuracies [tasks] if it has a discriminator."""
    path = folder / FEATURES_NAME
    try:
        kept = load(path.read_bytes())
    except OSError as error:
        raise ResultError(f"{path} cannot be read: {error.strerror}") from None
    except SafetensorError as error:
        raise ResultError(f"{path} is damaged: {error}") from None
    if not {"features", "task"} <= set(kept) or kept["features"].shape[:1] != kept["task"].shape:
        raise ResultError(f"{path} is damaged: it does not hold features and tasks of the same samples")
    return dict(kept)


def test_features(learner: Learner, stream: Stream) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Common features [n, width] float32 of all test samples in evaluation mode, and the task [n] of each."""
    features, tasks = [], []
    learner.net.eval()
    try:
        with torch.no_grad():
            for number in range(len(stream)):
                for x in stream.test_data(number)[0].split(_CHUNK):
                    task = torch.full((len(x),), number, dtype=torch.int64, device=learner.device)
                    prepared = learner.net.inputs(x.to(learner.device))
                    features.append(learner.net(prepared, task).common.float().cpu())
                    tasks.append(task.cpu())
    finally:
        learner.net.train()
    return torch.cat(features).numpy(), torch.cat(tasks).numpy()


def own_accuracies(learner: Learner, features: Tensor, task: Tensor) -> list[float] | None:
    """Percent of the samples of each task whose task the learner's discriminator predicts; None if it has none."""
    discriminator = learner.engine.owned.parts.get("discriminator")
    if not discriminator:
        return None
    with torch.no_grad():
        guess = discriminator(features.to(learner.device)).argmax(1).cpu()
    right = (guess == task + 1).double()
    return [100 * float(right[task == k].mean()) for k in range(int(task.max()) + 1)]


def probe_accuracy(features: Tensor, task: Tensor, *, seed: int = 0) -> float:
    """Percent of held-out samples whose task a new discriminator predicts, trained on the other half."""
    order = torch.randperm(len(features), generator=torch.Generator().manual_seed(seed))
    learned, held_out = order[: len(order) // 2], order[len(order) // 2 :]
    mean, deviation = features[learned].mean(0), features[learned].std(0).clamp(min=1e-6)
    x = (features - mean) / deviation
    width, classes = x.shape[1], int(task.max()) + 1
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        probe = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, classes))
    optimizer = torch.optim.Adam(probe.parameters(), lr=1e-3)
    for _ in range(_PROBE_STEPS):
        optimizer.zero_grad()
        nn.functional.cross_entropy(probe(x[learned]), task[learned]).backward()
        optimizer.step()
    with torch.no_grad():
        guess = probe(x[held_out]).argmax(1)
    return 100 * float((guess == task[held_out]).double().mean())


def plane(features: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """[n, 2]: the first two principal components, each with its largest loading positive."""
    centred = features - features.mean(0)
    directions = np.linalg.svd(centred, full_matrices=False)[2][:2]
    largest = np.abs(directions).argmax(1)
    signs = np.sign(directions[np.arange(len(directions)), largest])
    projected: np.ndarray[Any, Any] = centred @ (directions * signs[:, None]).T
    return projected


@dataclass(frozen=True)
class Claim:
    """The measurements on one stream, and the files that hold them."""

    stream: str
    content: dict[str, Any]
    files: tuple[Path, ...]

    @property
    def line(self) -> str:
        """The measurements in one line."""
        cost, aligned = self.content["adversary_cost"], self.content["alignment"]
        parts = []
        if cost is not None:
            parts.append(f"the adversary takes {cost['percent']:+.0f} % of time")
        probes = {name: point["probe"] for name, point in aligned.items()}
        parts += [f"tasks told apart by features of {name}: {value:.1f} %" for name, value in probes.items()]
        return f"{self.stream}: " + ("; ".join(parts) or "no run has finished")


def measure_claims(cells: Iterable[ExperimentCell], done: Finished, out: Path, root: Path | None) -> list[Claim]:
    """Write `OUT/claims/STREAM.json` and the figure `STREAM-features.png` for every stream of the experiment."""
    groups: dict[str, list[ExperimentCell]] = {}
    for cell in cells:
        groups.setdefault(cell.config.stream.name, []).append(cell)
    return [_measured(stream, group, done, out, root) for stream, group in groups.items()]


def _measured(stream: str, cells: list[ExperimentCell], done: Finished, out: Path, root: Path | None) -> Claim:
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
        files.write_bytes(written[1], features_figure(pictured, title=stream))
    files.write_json(written[0], content)
    return Claim(stream, content, tuple(written))


def _read(folders: Sequence[Path]) -> list[dict[str, Any]]:
    kept = []
    for folder in folders:
        with contextlib.suppress(ResultError):  # a result without its features is a gap
            kept.append(read_features(folder))
    return kept


def _parameters(cell: ExperimentCell, root: Path | None) -> list[dict[str, Any]]:
    """Per learner: the parameters in use in the first task, and how many every further task adds."""
    spec, classes = _inputs(cell, root)
    rows = method_properties.rows(spec, classes)
    return [{"learner": row.learner, "parameters": row.parameters, "growth": row.growth} for row in rows]


def _inputs(cell: ExperimentCell, root: Path | None) -> tuple[InputSpec, int]:
    """The input spec of a stream and its classes per task, without reading data where both are known."""
    name = cell.config.stream.name
    example = {"scifar10": "scifar100"}.get(name, name)
    if example in method_properties.EXAMPLES:
        spec, classes = method_properties.EXAMPLES[example]
        return spec, streams.entry(name).classes_per_task or classes
    stream = build_stream(cell.config, 0, root)
    return stream.spec, len(stream.tasks[0].classes)


def _cost(seconds: dict[str, list[float]], cells: list[ExperimentCell]) -> dict[str, Any] | None:
    """Training seconds per seed with and without the adversary; None unless both have finished."""
    with_it = next((cell.name for cell in cells if not cell.case and seconds[cell.name]), None)
    without = next((c.name for c in cells if c.case == {"adversary": False} and seconds[c.name]), None)
    if with_it is None or without is None:
        return None
    first, second = statistics.fmean(seconds[with_it]), statistics.fmean(seconds[without])
    return {"with": seconds[with_it], "without": seconds[without], "percent": 100 * (first / second - 1)}


def _alignment(sets: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Percent of test samples whose task a probe predicts; chance is the share of the largest task."""
    probes = [
        probe_accuracy(torch.from_numpy(s["features"]), torch.from_numpy(s["task"]), seed=number)
        for number, s in enumerate(sets)
    ]
    own = [s["own_accuracies"].tolist() for s in sets if "own_accuracies" in s]
    counts = np.bincount(sets[0]["task"])
    return {
        "probe": statistics.fmean(probes),
        "probe_by_seed": probes,
        "own_discriminator_by_seed_and_task": own or None,
        "chance": 100 * float(counts.max() / counts.sum()),
    }


def features_figure(sets: dict[str, dict[str, Any]], *, title: str) -> bytes:
    """PNG: the features of each run on their first two principal components, coloured by task."""
    from matplotlib import colormaps
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.5 * len(sets), 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    for number, (name, kept) in enumerate(sets.items()):
        axes = figure.add_subplot(1, len(sets), number + 1)
        points, task = plane(kept["features"]), kept["task"]
        for k in range(int(task.max()) + 1):
            shown = points[task == k][:_SHOWN]
            colour = colormaps["tab20"](k % 20)
            axes.scatter(shown[:, 0], shown[:, 1], s=5, alpha=0.6, color=colour, label=str(k + 1), linewidths=0)
        axes.set_title(f"{title}: {name}")
        axes.set_xlabel("first principal component")
        axes.set_ylabel("second")
    axes.legend(title="task", fontsize=6, markerscale=2, loc="center left", bbox_to_anchor=(1.0, 0.5))
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=150, metadata={"Software": None})
    return buffer.getvalue()
