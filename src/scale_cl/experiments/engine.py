"""Execute a plan: what an engine is, which ones there are, and the numbers that a plan has produced so far."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from scale_cl.experiments.definitions import EXPERIMENTS
from scale_cl.experiments.result_index import Finished, scan
from scale_cl.results import SeedResult, percent

if TYPE_CHECKING:  # the processes of an engine import this module before torch
    from scale_cl.experiments.planning import ExperimentCell, ExperimentPlan, PlannedRun


@dataclass(frozen=True)
class Outcome:
    """How a run ended: with a result in its folder, or with a one-line error."""

    run: PlannedRun
    seconds: float
    error: str | None = None


class Listener(Protocol):
    """Receives the progress of runs."""

    def progressed(self, run: PlannedRun, fraction: float) -> None:
        """A run has done this fraction of its steps; called about once a second."""

    def retried(self, run: PlannedRun, reason: str) -> None:
        """The worker of a run died, which is not the fault of the run; the run starts again."""

    def ended(self, outcome: Outcome) -> None:
        """A run has ended."""


class Engine(Protocol):
    """Executes runs. A run that fails, or whose process dies too often, is an outcome like any other."""

    def groups(self, runs: Sequence[PlannedRun]) -> list[list[PlannedRun]]:
        """The runs in groups that it trains side by side, each as if it were one run."""

    def execute(self, runs: Sequence[PlannedRun], *, slots: int, listener: Listener) -> None:
        """Execute all runs, at most `slots` groups at once; return when all have ended."""


@dataclass(frozen=True)
class EngineChoice:
    """An engine, whether it uses GPUs, and how many runs it has room for."""

    engine: Engine
    gpu: bool
    slots: int


@contextlib.contextmanager
def engine_here(device: str, threads: int, data: Path | None) -> Iterator[EngineChoice]:
    """The engine of this machine."""
    from scale_cl.experiments import local
    from scale_cl.training.machine import choose_device

    gpu = choose_device(device).type == "cuda"
    gpus = _gpus(device) if gpu else []
    engine = local.LocalEngine(root=data, threads=threads, gpus=gpus)
    yield EngineChoice(engine, gpu, local.slots(gpus=len(gpus), threads=threads))


@contextlib.contextmanager
def engine_on_ray(
    device: str, threads: int, data: Path | None, address: str | None, gpu_share: float | None, retries: int | None
) -> Iterator[EngineChoice]:
    """The engine of a Ray cluster; without an address, a cluster of this machine is started with the first run."""
    from scale_cl.errors import ConfigError
    from scale_cl.experiments import local
    from scale_cl.experiments.ray_cluster import Cluster, imported_ray
    from scale_cl.experiments.ray_engine import GPU_SHARE, RETRIES, RayEngine
    from scale_cl.training.machine import choose_device

    imported_ray()
    if device.startswith("cuda:"):
        raise ConfigError(f"--device {device}: which GPU a run gets is up to Ray; use cuda")
    with Cluster(address, gpus=device != "cpu") as cluster:
        if address is None:
            gpu = choose_device(device).type == "cuda"
        else:
            cluster.start()
            gpu = device == "cuda" or (device == "auto" and any(node.gpus for node in cluster.nodes()))
        share = (gpu_share or GPU_SHARE) if gpu else 0.0
        again = RETRIES if retries is None else retries
        engine = RayEngine(cluster, root=data, threads=threads, gpu_share=share, retries=again)
        room = engine.slots() if address else local.slots(gpus=len(_gpus(device)) if gpu else 0, threads=threads)
        yield EngineChoice(engine, gpu, room)


def _gpus(device: str) -> list[str]:
    """The GPUs to use, as CUDA_VISIBLE_DEVICES names them."""
    import torch

    if device.startswith("cuda:"):
        return [device.removeprefix("cuda:")]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    count = torch.cuda.device_count()
    return visible.split(",")[:count] if visible else [str(number) for number in range(count)]


@dataclass(frozen=True)
class TableLine:
    """The cells of an experiment that differ only in their class order, with their finished seeds."""

    cells: tuple[ExperimentCell, ...]
    lanes: dict[tuple[object, int], SeedResult]  # by class order and seed

    @property
    def stream(self) -> str:
        """The name of the stream."""
        return self.cells[0].config.stream.name

    @property
    def name(self) -> str:
        """The learner and the settings of its case."""
        return self.cells[0].name

    @property
    def values(self) -> tuple[str, str, str, str]:
        """ACC, FM, training seconds per seed, and the number of finished seeds, those of all class orders."""
        there, asked = len(self.lanes), sum(len(cell.seeds) for cell in self.cells)
        if not there:
            return "-", "-", "-", f"0 of {asked}"
        columns = ([getattr(lane, m) for lane in self.lanes.values()] for m in ("acc", "fm", "seconds_train"))
        acc, fm, seconds = (percent(column) for column in columns)
        return acc, fm, seconds, str(there) if there == asked else f"{there} of {asked}"


def execute_plan(plan: ExperimentPlan, engine: Engine, *, slots: int, listener: Listener) -> None:
    """Execute the runs of a plan: first those that may share the machine, then those that must run alone."""
    for alone in (False, True):
        runs = [run for run in plan.runs if run.alone == alone]
        if runs:
            engine.execute(runs, slots=1 if alone else slots, listener=listener)


def finished_results(experiment: str, out: Path, *, gpu: bool) -> Finished:
    """The finished results that count for an experiment."""
    if EXPERIMENTS[experiment].alone:
        return scan(out / experiment, alone="cuda" if gpu else "cpu")
    return scan(out)


def table_lines(plan: ExperimentPlan, experiment: str, done: Finished) -> list[TableLine]:
    """The numbers of an experiment as they are on disk now."""
    alike: dict[tuple[str, str], list[ExperimentCell]] = {}
    for cell in plan.experiment(experiment):
        alike.setdefault((cell.config.stream.name, cell.name), []).append(cell)
    made = []
    for cells in alike.values():
        lanes: dict[tuple[object, int], SeedResult] = {}
        for cell in cells:
            found, order = done.of(cell.key), cell.config.stream.class_order
            lanes |= {(order, seed): found[seed].seed for seed in cell.seeds if seed in found}
        made.append(TableLine(tuple(cells), lanes))
    return made


def searched_lines(cells: Sequence[ExperimentCell]) -> list[str]:
    """Where the settings of learners come from that a search should have found: a line per file, and one for gaps."""
    from scale_cl.experiments.planning import searched_on  # which imports torch

    asked = [cell for cell in cells if EXPERIMENTS[cell.experiment].searched]
    files = list(dict.fromkeys(cell.found for cell in asked if cell.found is not None))
    lines = [f"settings from {file}" for file in files]
    gaps: dict[str, dict[str, dict[str, None]]] = {}
    for cell in asked:
        if cell.found is None:
            own = gaps.setdefault(EXPERIMENTS[cell.experiment].searched, {})
            own.setdefault(searched_on(cell.config.stream.name), {})[cell.config.learner_name] = None
    for search, streams in gaps.items():
        missing = "; ".join(f"on {stream} for {', '.join(learners)}" for stream, learners in streams.items())
        lines.append(f"no `scale-cl reproduce {search}` below --out {missing}: preset settings there")
    return lines
