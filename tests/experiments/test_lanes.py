"""Planned runs that train side by side, as they do on a GPU: which ones, and that each ends as it does alone.

The engine is given a GPU that the runs do not use, so that it makes groups of runs on the CPU.
"""

from __future__ import annotations

import os
import signal
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from scale_cl import __version__, results, training
from scale_cl.experiments.definitions import Case, chosen
from scale_cl.experiments.engine import execute_plan
from scale_cl.experiments.local import LANES, LocalEngine, lane_groups
from scale_cl.experiments.planning import ExperimentPlan, PlannedRun, Request, plan, total_seconds
from scale_cl.experiments.ray_engine import work
from scale_cl.experiments.result_index import scan
from scale_cl.experiments.run_worker import as_message, is_done
from scale_cl.experiments.search import winners
from scale_cl.training.config import resolve
from tests.experiments.processes import children, waited_for
from tests.experiments.small_runs import planned
from tests.experiments.test_local import Notes


def runs_of(experiment: str, out: Path, **asked: Any) -> list[PlannedRun]:
    return plan(chosen(experiment), Request(out, **asked), gpu=True).runs


def sizes(groups: list[list[PlannedRun]]) -> list[int]:
    return [sum(len(run.config.seeds) for run in group) for group in groups]


def made(
    learner: str = "er", *, seeds: int = 1, stream: str = "digits", out: Path = Path("o"), **options: Any
) -> PlannedRun:
    named = {name.replace("__", "."): value for name, value in options.items()}
    config = resolve(stream=stream, learner=learner, options={"run.seeds": seeds, "run.device": "cpu", **named})
    run = planned(out, config)
    return replace(run, folder=run.folder.with_name("-".join(str(value) for value in (*options.values(), seeds))))


def test_trials_of_a_search_and_class_orders_share_lanes(tmp_path: Path) -> None:
    trials = runs_of("search", tmp_path, streams=("scifar100",), learners=("er", "gem"))
    groups = lane_groups(trials)
    assert sizes(groups) == [18, 18, 18, 18]
    assert sizes(lane_groups([made(learner__lr=rate / 100) for rate in range(1, 38)])) == [19, 18]
    assert [{run.config.learner_name for run in group} for group in groups] == [{"er"}, {"er"}, {"gem"}, {"gem"}]
    assert sorted(str(run.folder) for group in groups for run in group) == sorted(str(run.folder) for run in trials)
    assert sizes(lane_groups(trials, gpus=8)) == [9] * 8
    orders = lane_groups(runs_of("matched", tmp_path, streams=("scifar100",), learners=("er",)))
    assert [[run.config.stream.class_order for run in group] for group in orders] == [[3, 4, 5]]
    assert sizes(orders) == [9]
    apart = [[run] for run in trials]
    together, alone = (total_seconds(some, slots=2, gpu=True) for some in (groups, apart))
    assert alone / 3 < together < alone / 2


def test_a_group_has_what_train_many_can_train(tmp_path: Path) -> None:
    first = made()
    alike = [first, made(learner__lr=0.5), made(run__seed=4, seeds=2), made(learner__memory=9)]
    other = [
        made("gem"),
        made(stream="pmnist"),
        made(stream__part="search"),
        made(stream__tasks=2),
        made(run__batch_size=5),
        replace(made(learner__lr=0.6), experiment="memory"),
        replace(made(learner__lr=0.7), alone=True),
        replace(made(learner__lr=0.8), features=True),
    ]
    assert lane_groups([*alike, *other])[0] == [alike[2], alike[0], alike[1], alike[3]]
    assert sizes(lane_groups([*alike, *other])) == [5] + [1] * len(other)
    epochs = [made("joint", learner__epochs=number, learner__lr=rate) for number in (1, 2) for rate in (0.1, 0.2)]
    assert [{run.config.as_dict()["learner"]["epochs"] for run in group} for group in lane_groups(epochs)] == [{1}, {2}]
    uneven = [made(stream="split-digits", stream__class_order=k, learner__lr=r) for k in (3, 4) for r in (0.1, 0.2)]
    assert [{run.config.stream.class_order for run in group} for group in lane_groups(uneven)] == [{3}, {4}]
    assert LocalEngine().groups(alike) == [[run] for run in alike]
    many = made(seeds=LANES + 5)
    assert sizes(lane_groups([made(seeds=8, run__seed=n) for n in range(3)] + [many])) == [25, 16, 8]
    assert lane_groups([]) == []


def search(out: Path, *more: str) -> ExperimentPlan:
    """A search of three points on tasks of ten steps; one of them diverges."""
    cases: tuple[Case, ...] = ({"lr": 0.03}, {"lr": 1e30}, {"lr": 0.1, "replay": 5})
    few = ("run.batch_size=100", *more)
    asked = Request(out, ("digits",), ("er",), cases=cases, tasks=2, device="cpu", assignments=few)
    return plan(chosen("search"), asked, gpu=True)


def test_every_run_of_a_search_ends_as_it_does_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    searched, notes, errors = search(Path("o")), Notes(), list[str | None]()
    for folder in ("alone", "together"):
        (tmp_path / folder).mkdir()
    monkeypatch.chdir(tmp_path / "alone")
    for run in searched.runs:
        on_a_cluster = as_message(run, None) | {"version": __version__}
        errors.append(work(on_a_cluster, None, "")["error"])
    winners(searched.cells, scan(Path("o")), Path("o"))
    monkeypatch.chdir(tmp_path / "together")
    engine = LocalEngine(gpus=("0",))
    assert len(engine.groups(searched.runs)) == 1
    execute_plan(searched, engine, slots=1, listener=notes)
    assert [notes.outcomes[run.folder].error for run in searched.runs] == errors
    assert [error is None for error in errors] == [True, False, True]
    (best,) = winners(searched.cells, scan(Path("o")), Path("o"))
    assert (best.finished, best.points) == (2, 3)
    assert search(Path("o")).runs == [], "the others are done, and what has diverged will again"
    again = search(Path("o"), "run.precision=fp32").runs
    assert [run.folder.parent.name for run in again] == ["er-lr=0.03", "er-lr=1e+30", "er-lr=0.1-replay=5"]

    files = sorted(path.relative_to(tmp_path / "alone") for path in (tmp_path / "alone").rglob("*"))
    assert files == sorted(path.relative_to(tmp_path / "together") for path in (tmp_path / "together").rglob("*"))
    for name in files:
        alone, together = tmp_path / "alone" / name, tmp_path / "together" / name
        if name.name == "result.json":
            one, other = results.read(alone), results.read(together)
            assert [seed.matrix for seed in one.seeds] == [seed.matrix for seed in other.seeds]
            assert [seed.config for seed in one.seeds] == [seed.config for seed in other.seeds]
            assert one.environment["command"] == other.environment["command"]
        elif name.parent == Path("o/search") and alone.is_file():  # the best settings, and all points
            assert alone.read_bytes() == together.read_bytes()


class Retries(Notes):
    def __init__(self) -> None:
        super().__init__()
        self.retries: list[str] = []

    def retried(self, run: PlannedRun, reason: str) -> None:
        self.retries.append(reason)


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="looks processes up in /proc")
def test_a_group_whose_process_dies_starts_again_in_halves_and_what_is_done_is_skipped(tmp_path: Path) -> None:
    runs = [made(out=tmp_path, stream__tasks=2, learner__lr=rate) for rate in (0.03, 0.1, 0.2)]
    training.run(runs[0].config, runs[0].folder)
    written = (runs[0].folder / "result.json").read_bytes()
    before, notes = children(os.getpid()), Retries()

    def kill() -> None:
        waited_for(lambda: (runs[2].folder / "checkpoints").exists())
        (worker,) = children(os.getpid()) - before
        os.kill(worker, signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    LocalEngine(gpus=("0",)).execute(runs, slots=1, listener=notes)
    killer.join()
    assert notes.retries == ["the process of this run ended with signal SIGKILL; it may have run out of memory"] * 3
    assert [notes.outcomes[run.folder].error for run in runs] == [None] * 3
    assert all(is_done(run) for run in runs)
    assert (runs[0].folder / "result.json").read_bytes() == written
    found = [results.read(run.folder).seeds[0].matrix for run in runs]
    assert found == [training.run(run.config).seeds[0].matrix for run in runs]
