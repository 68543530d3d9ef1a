"""Whole runs from a config: one by one and over processes, with the same results."""

from __future__ import annotations

import torch

from scale_cl.results import SeedResult
from scale_cl.training import run, train
from scale_cl.training.config import Config, resolve
from scale_cl.training.run import build_learner, build_stream
from tests.training.watcher import Watcher


def config(processes: int, learner: str = "scale") -> Config:
    options = {"stream.tasks": 2, "run.seeds": 2, "run.seed": 3, "run.batch_size": 60, "run.device": "cpu"}
    return resolve(stream="digits", learner=learner, options={**options, "run.processes": processes})


def deterministic(results: list[SeedResult]) -> list[tuple[object, ...]]:
    return [(r.stream, r.learner, r.seed, r.tasks, r.matrix) for r in results]


def test_seeds_over_processes_have_the_results_of_one_after_the_other() -> None:
    watched, apart = Watcher(), Watcher()
    one_by_one = run(config(1), observer=watched)
    over_processes = run(config(2), observer=apart)
    assert deterministic(one_by_one) == deterministic(over_processes)
    assert [result.seed for result in over_processes] == [3, 4]
    assert over_processes[0].config == config(2).as_dict()
    for watcher in (watched, apart):
        assert watcher.told[0] == ("started", "digits", "scale", [3, 4], 2, 34)
        assert watcher.told[-1] == ("finished",)
        assert [told[1] for told in watcher.told if told[0] == "task_started"] == [0, 1]
        tested = {(told[1], told[2]): told[3] for told in watcher.told if told[0] == "evaluated"}
        assert tested == {(r.seed, k): r.matrix[k][: k + 1] for r in one_by_one for k in range(2)}
        steps = [told[1] for told in watcher.told if told[0] == "stepped"]
        assert steps == sorted(steps)
        assert steps[-1] == 34


def test_a_run_is_the_training_of_its_parts() -> None:
    wanted = config(1, learner="finetune")
    device = torch.device("cpu")
    by_hand = []
    for seed in wanted.seeds:
        stream = build_stream(wanted, seed, None)
        by_hand.append(train(build_learner(wanted, stream, seed, device), stream, batch_size=60))
    results = run(wanted)
    assert [r.matrix for r in results] == [r.matrix for r in by_hand]
    assert results[0].matrix != results[1].matrix
