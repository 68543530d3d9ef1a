"""Whole runs from a config: one by one and over processes, with the same results."""

from __future__ import annotations

import torch

from scale_cl.results import SeedResult
from scale_cl.training import Event, run, train
from scale_cl.training.config import Config, resolve
from scale_cl.training.events import Evaluated, Finished, Loaded, Started, Stepped, TaskStarted
from scale_cl.training.run import build_learner, build_stream


def config(processes: int, learner: str = "scale") -> Config:
    options = {"stream.tasks": 2, "run.seeds": 2, "run.seed": 3, "run.batch_size": 60, "run.device": "cpu"}
    return resolve(stream="digits", learner=learner, options={**options, "run.processes": processes})


def deterministic(results: list[SeedResult]) -> list[tuple[object, ...]]:
    return [(r.stream, r.learner, r.seed, r.tasks, r.matrix) for r in results]


def test_seeds_over_processes_have_the_results_of_one_after_the_other() -> None:
    watched: list[Event] = []
    apart: list[Event] = []
    one_by_one = run(config(1), on_event=watched.append)
    over_processes = run(config(2), on_event=apart.append)
    assert deterministic(one_by_one) == deterministic(over_processes)
    assert [result.seed for result in over_processes] == [3, 4]
    assert over_processes[0].config == config(2).as_dict()
    for told in (watched, apart):
        assert told[:2] == [Loaded(), Started("digits", "scale", (3, 4), 2, 34)]
        assert told[-1] == Finished()
        assert told.count(Loaded()) == told.count(Finished()) == 1
        assert [event.task for event in told if isinstance(event, TaskStarted)] == [0, 1]
        tested = {(event.seed, event.task): event.accuracies for event in told if isinstance(event, Evaluated)}
        assert tested == {(r.seed, k): r.matrix[k][: k + 1] for r in one_by_one for k in range(2)}
        steps = [event.steps for event in told if isinstance(event, Stepped)]
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
