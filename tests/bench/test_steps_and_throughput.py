"""What the parts measure, at tiny sizes: the shape of the figures, never how large they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from scale_cl.bench import steps
from scale_cl.bench.conditions import Clock, Conditions, bench_data
from scale_cl.bench.steps import Floor, images, updates
from scale_cl.bench.suite import BenchSettings, measure
from scale_cl.errors import ConfigError
from scale_cl.learners import Compute, Learner, registry
from scale_cl.streams import InputSpec, TaskInfo
from scale_cl.streams import catalog as streams

TINY = {"streams": ("digits",), "device": "cpu", "rounds": 1, "block": 1}


def test_steps_have_a_floor_of_as_many_images() -> None:
    entry = measure(BenchSettings(parts=("steps",), learners=("scale", "er", "finetune"), **TINY))  # type: ignore[arg-type]
    rows = {row["learner"]: row for row in entry["steps"]}
    assert [(rows[name]["images"], rows[name]["updates"]) for name in rows] == [(74, 1), (20, 3), (10, 1)]
    for row in rows.values():
        assert row["data"] == "read"
        assert row["ratio"] == pytest.approx(row["step_ms"] / row["floor_ms"])
        assert row["ratio_updates"] == pytest.approx(row["ratio"] / row["updates"])
    assert entry["settings"]["clock"] == "cpu"


@pytest.mark.usefixtures("quick_processes")
def test_seeds_run_over_processes_of_a_cpu() -> None:
    entry = measure(
        BenchSettings(parts=("seeds",), learners=("finetune",), seeds=(2,), seed_steps=3, synthetic=True, **TINY)  # type: ignore[arg-type]
    )
    (row,) = entry["seeds"]
    assert (row["seeds"], row["data"]) == (2, "synthetic")
    assert row["processes"] in (1, 2)
    assert row["steps_per_second"] == pytest.approx(6 / row["seconds"])


def test_seeds_that_share_a_device_make_their_own_steps() -> None:
    made: list[Learner] = []

    class Noted(Conditions):
        def learner(self, *args: Any, **kwargs: Any) -> Learner:
            made.append(super().learner(*args, **kwargs))
            return made[-1]

    clock, compute = Clock(torch.device("cpu"), 1), Compute("fp32", capture=False)
    how = Noted(clock, compute, batch_size=10, rounds=1, block=1, root=None, threads=1)
    seconds = steps._together(bench_data("digits", None, synthetic=True), "finetune", how, 2, 7)
    assert seconds > 0
    assert [learner.steps for learner in made] == [2 * 10 + 2 + 7] * 2  # two tasks, each thread's own, and those timed


@pytest.mark.parametrize("name", ["digits", "pmnist", "scifar10"])
def test_noise_has_the_shape_of_the_protocol(name: str, tmp_path: Path) -> None:
    given = bench_data(name, tmp_path, synthetic=True)
    stream, entry = given.stream(tasks=2), streams.entry(name)
    assert given.data == "synthetic"
    assert [(len(task.train), len(task.test)) for task in stream.tasks] == [(entry.train, entry.test)] * 2


def test_a_data_set_that_is_not_there_is_replaced_by_noise(tmp_path: Path) -> None:
    assert bench_data("pmnist", tmp_path).data == "synthetic"
    assert bench_data("digits", tmp_path).data == "read"


def test_a_floor_trains_a_copy_and_leaves_the_learner_alone() -> None:
    learner = registry.make("ctn", InputSpec((3, 8, 8), 255.0, "task"))
    learner.begin_task(TaskInfo("a", 2))
    before = learner.state_dict()["tensors"]
    floor = Floor(learner, 6, classes=2)
    moved = floor._parameters[0].detach().clone()
    floor()
    assert not torch.equal(floor._parameters[0], moved)
    after = learner.state_dict()["tensors"]
    assert all(torch.equal(after[name], before[name]) for name in before)
    assert (images(learner, 10), updates(learner)) == (10, 4)


@pytest.mark.parametrize("wrong", [{"streams": ("dgits",)}, {"learners": ("scael",)}])
def test_unknown_names_are_refused_before_anything_runs(wrong: dict[str, tuple[str, ...]]) -> None:
    with pytest.raises(ConfigError, match="did you mean"):
        measure(BenchSettings(**wrong))  # type: ignore[arg-type]
