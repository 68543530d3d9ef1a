"""Runs with threads of their own, as on a GPU: the same results, checkpoints where they belong, errors come out."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import get_ident

import pytest
import torch
from torch import Tensor

from scale_cl import streams
from scale_cl.errors import DivergenceError, InputError, Interrupted
from scale_cl.learners import Finetune, Learner, Scale, ScaleConfig, StepStats
from scale_cl.streams import Stream
from scale_cl.training import Event, checkpoint, loop, parallel, train_many
from scale_cl.training.checkpointing import Checkpointer
from scale_cl.training.events import Stepped
from scale_cl.training.learner_run import LearnerRun
from scale_cl.training.parallel import Runners, runners_of
from scale_cl.training.run_directory import RunDirectory

Diverged = dict[int, DivergenceError] | None
STEPS = 30  # a task
BLOCK = 25


def made(seeds: Sequence[int]) -> tuple[list[Learner], list[Stream]]:
    arrays = streams.load_arrays("digits")
    tracks = [streams.permuted(arrays, tasks=2, train=10 * STEPS, test=50, seed=seed, name="few") for seed in seeds]
    learners: list[Learner] = [
        Scale(t.spec, ScaleConfig(memory=20), seed=s) for t, s in zip(tracks, seeds, strict=True)
    ]
    return learners, tracks


@pytest.fixture
def threaded(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def with_threads(runs: Sequence[LearnerRun], diverged: Diverged = None) -> Iterator[Runners]:
        threads = {id(run): ThreadPoolExecutor(1) for run in runs}
        yield Runners(runs, threads, diverged)
        for thread in threads.values():
            thread.shutdown()

    monkeypatch.setattr(loop, "runners_of", with_threads)
    monkeypatch.setattr(parallel, "FIRST", BLOCK)
    monkeypatch.setattr(parallel, "QUICK", 0.0)  # blocks stay as they are
    monkeypatch.setattr(parallel, "SLOW", 1e9)


def test_threads_change_no_bit(threaded: None, monkeypatch: pytest.MonkeyPatch) -> None:
    threads = train_many(*made([0, 1, 2]))
    monkeypatch.undo()
    alone = train_many(*made([0, 1, 2]))
    assert [r.matrix for r in threads] == [r.matrix for r in alone]


def test_checkpoints_come_when_they_are_due_and_serve(threaded: None, tmp_path: Path) -> None:
    assert STEPS > BLOCK  # so that a block ends in a task, and a checkpoint in a block
    whole = train_many(*made([0, 1]))
    asked: list[int] = []

    def stop() -> bool:  # asked twice after each checkpoint or block
        asked.append(len(asked))
        return len(asked) > 6

    with pytest.raises(Interrupted, match="stopped as asked"):
        train_many(*made([0, 1]), checkpointer=Checkpointer(tmp_path, every=7, kept=9, stop=stop))
    steps = {
        checkpoint.read(path).state["meta"]["steps"]
        for seed in (0, 1)
        for path in checkpoint.found(RunDirectory(tmp_path).checkpoints_of(seed))
    }
    assert {7, 14, 21} <= steps
    resumed = train_many(*made([0, 1]), checkpointer=Checkpointer(tmp_path, every=7, resume=True))
    assert [r.matrix for r in resumed] == [r.matrix for r in whole]


def test_a_listener_hears_of_every_block(threaded: None) -> None:
    told: list[Event] = []
    train_many(*made([0, 1]), on_event=told.append)
    heard = [event.steps for event in told if isinstance(event, Stepped)]
    assert heard == [BLOCK, STEPS, STEPS + BLOCK, 2 * STEPS]


class Broken(Finetune):
    def observe(self, x: Tensor, y: Tensor, task: Tensor | None = None) -> StepStats:
        if self.seed == 1 and self.steps == 3:
            raise InputError("a broken batch")
        return super().observe(x, y, task)


def test_an_error_of_one_run_comes_out(threaded: None) -> None:
    _, tracks = made([0, 1])
    learners = [Broken(track.spec, seed=seed) for seed, track in enumerate(tracks)]
    with pytest.raises(InputError, match="a broken batch"):
        train_many(learners, tracks)
    assert learners[0].steps == BLOCK  # the other one ended its block


@pytest.mark.parametrize("seed", [0, 1])
def test_if_divergence_is_to_be_noted_the_others_train_on(
    threaded: None, seed: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    learners, tracks = made([0, 1])
    learners[seed] = Scale(tracks[seed].spec, ScaleConfig(memory=20, inner_lr=1e30), seed=seed)
    diverged: dict[int, DivergenceError] = {}
    (left,) = train_many(learners, tracks, diverged=diverged, checkpointer=Checkpointer(tmp_path))
    assert [(number, str(error).partition(",")[0]) for number, error in diverged.items()] == [(seed, f"seed {seed}")]
    monkeypatch.undo()
    (alone,) = train_many(*made([1 - seed]))
    assert left.matrix == alone.matrix


def test_one_run_or_a_cpu_needs_no_threads() -> None:
    learners, tracks = made([0])
    runs = [LearnerRun(learners[0], tracks[0])]
    with runners_of(runs) as runners:
        assert runners.block == 1
        assert runners.each(runs, lambda run: torch.initial_seed()) == [torch.initial_seed()]


def test_in_turn_is_one_run_after_another_each_in_its_own_thread() -> None:
    learners, tracks = made([0, 1, 2])
    runs = [LearnerRun(learner, track) for learner, track in zip(learners, tracks, strict=True)]
    at_work: list[int] = []

    def work(run: LearnerRun) -> tuple[int, int]:
        at_work.append(run.stream.seed)
        assert len(at_work) == 1
        time.sleep(0.01)
        at_work.clear()
        return run.stream.seed, get_ident()

    threads = {id(run): ThreadPoolExecutor(1) for run in runs}
    runners = Runners(runs, threads)
    in_turn, each = runners.in_turn(runs, work), runners.each(runs, lambda run: (run.stream.seed, get_ident()))
    for thread in threads.values():
        thread.shutdown()
    assert in_turn == each
    assert [seed for seed, _ in in_turn] == [0, 1, 2]


def test_blocks_become_shorter_where_steps_are_slow_and_longer_where_they_are_quick() -> None:
    with ThreadPoolExecutor(1) as thread:
        runners = Runners([], {0: thread})
        first = runners.block
        runners.took(first, (parallel.QUICK + parallel.SLOW) / 2)
        assert runners.block == first
        runners.took(first, 2 * parallel.SLOW)
        assert runners.block == first // 2
        runners.took(runners.block - 1, 0.0)  # the last one of a task
        assert runners.block == first // 2
        for _ in range(20):
            runners.took(runners.block, 2 * parallel.SLOW)
        assert runners.block == 1
        for _ in range(20):
            runners.took(runners.block, 0.0)
        assert runners.block == parallel.MOST
    alone = Runners([], {})
    alone.took(1, 0.0)
    assert alone.block == 1  # progress after every step
