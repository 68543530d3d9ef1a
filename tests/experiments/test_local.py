"""The engine of this machine, with real processes."""

from __future__ import annotations

import os
import signal
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from scale_cl import results, training
from scale_cl.experiments import local
from scale_cl.experiments.engine import Engine, Outcome
from scale_cl.experiments.local import LocalEngine
from scale_cl.experiments.planning import PlannedRun
from tests.experiments.processes import children, waited_for
from tests.experiments.small_runs import config, planned


class Notes:
    """A listener that notes all that it is told."""

    def __init__(self) -> None:
        self.outcomes: dict[Path, Outcome] = {}
        self.fractions: list[float] = []

    def progressed(self, run: PlannedRun, fraction: float) -> None:
        self.fractions.append(fraction)

    def retried(self, run: PlannedRun, reason: str) -> None:
        raise AssertionError(f"{run.title} begins again: {reason}")

    def ended(self, outcome: Outcome) -> None:
        self.outcomes[outcome.run.folder] = outcome


def executed(engine: Engine, runs: list[PlannedRun], slots: int) -> dict[Path, Outcome]:
    notes = Notes()
    engine.execute(runs, slots=slots, listener=notes)
    assert all(0 < fraction <= 1 for fraction in notes.fractions)
    return notes.outcomes


def test_matrices_do_not_depend_on_where_runs_go_and_failures_stop_nobody(tmp_path: Path) -> None:
    configs = [config("er", seed=seed, tasks=2) for seed in (0, 1)]
    runs = [planned(tmp_path, c) for c in configs]
    lacking = planned(tmp_path, config(stream="pmnist"))
    outcomes = executed(LocalEngine(root=tmp_path / "none"), [lacking, *runs], 2)
    assert [outcomes[run.folder].error for run in runs] == [None, None]
    error = outcomes[lacking.folder].error
    assert error is not None
    assert "mnist" in error.lower()
    assert "\n" not in error
    in_workers = [results.read(run.folder).seeds[0].matrix for run in runs]
    assert in_workers == [training.run(c).seeds[0].matrix for c in configs]


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="looks processes up in /proc")
def test_a_process_that_dies_or_meets_an_error_of_python_is_one_failure_and_is_replaced(tmp_path: Path) -> None:
    long = planned(tmp_path, config("er", tasks=10))
    short = planned(tmp_path, config("finetune"))
    broken = replace(planned(tmp_path, config("finetune", seed=7)), features=True)
    broken = replace(broken, config=replace(broken.config, run=replace(broken.config.run, seeds=2)))
    before = children(os.getpid())

    def kill() -> None:
        waited_for(lambda: (long.folder / ".lock").exists())
        (worker,) = children(os.getpid()) - before
        os.kill(worker, signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    outcomes = executed(LocalEngine(), [long, broken, short], 1)
    killer.join()
    assert outcomes[long.folder].error == (
        "the process of this run ended with signal SIGKILL; it may have run out of memory"
    )
    assert outcomes[broken.folder].error == "ValueError: too many values to unpack (expected 1)"
    assert not broken.folder.exists()
    assert outcomes[short.folder].error is None
    assert children(os.getpid()) - before == set()


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="looks processes up in /proc")
def test_an_interruption_ends_every_process(tmp_path: Path) -> None:
    before = children(os.getpid())

    class Interrupting(Notes):
        def ended(self, outcome: Outcome) -> None:
            raise KeyboardInterrupt

    runs = [planned(tmp_path, config("finetune")), planned(tmp_path, config("er", tasks=10))]
    with pytest.raises(KeyboardInterrupt):
        LocalEngine().execute(runs, slots=2, listener=Interrupting())
    assert children(os.getpid()) - before == set()


def test_a_run_alone_is_not_pinned_however_many_slots_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    placed = []

    class Placing(LocalEngine):
        def _place(self, number: int, workers: int) -> Any:
            placed.append(super()._place(number, workers))
            return placed[-1]

    monkeypatch.setattr(local, "cores", lambda: [2, 3])
    outcomes = Notes()
    Placing().execute([planned(tmp_path, config("finetune"))], slots=2, listener=outcomes)
    assert [place.cores for place in placed] == [[]]


def test_workers_get_cores_of_their_own_if_they_fill_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "cores", lambda: [2, 3, 5, 7])
    assert [LocalEngine()._place(i, 4).cores for i in range(4)] == [[2], [3], [5], [7]]
    assert [LocalEngine(threads=2)._place(i, 2).cores for i in range(2)] == [[2, 3], [5, 7]]
    assert [LocalEngine(threads=3)._place(0, 1).cores] == [[2, 3, 5]]
    for few_or_many in (1, 2, 3, 5):  # of few, another program's would be pinned to the same cores
        assert [LocalEngine()._place(i, few_or_many).cores for i in range(few_or_many)] == [[]] * few_or_many
    shared = LocalEngine(gpus=("4", "6"))
    assert [shared._place(i, 4).environment["CUDA_VISIBLE_DEVICES"] for i in range(4)] == ["4", "6", "4", "6"]
    assert [shared._place(i, 2).cores for i in range(2)] == [[2, 3], [5, 7]]
    assert "CUDA_VISIBLE_DEVICES" not in LocalEngine(gpus=("0",))._place(0, 2).environment
    assert local.slots(gpus=0, threads=1) == 4
    assert local.slots(gpus=0, threads=3) == 1
    assert local.slots(gpus=1, threads=1) == 1
    assert local.slots(gpus=2, threads=1) == 2
