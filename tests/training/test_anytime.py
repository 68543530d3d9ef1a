"""Evaluation within tasks and prediction before learning: the figures are right, and nothing else changes."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from scale_cl import results, streams
from scale_cl.errors import ConfigError
from scale_cl.learners import Er, ErConfig, Joint, Learner, Scale, ScaleConfig
from scale_cl.metrics import Evaluation, Predictions
from scale_cl.results import MEASURES, RunResult
from scale_cl.streams import Stream, TaskInfo
from scale_cl.training import Checkpointer, Event, accuracies, monitoring, train, train_many
from scale_cl.training.events import AnytimeEvaluated, PrequentialCounted, Stepped
from scale_cl.training.monitoring import AnytimeTests
from tests.learners.sameness import differences
from tests.training.small_streams import colours, few_digits
from tests.training.test_checkpointing import Crash, CrashAt


class OwnScores(Er):
    """A method whose scores are of one task at a time."""

    def scores(self, x: Tensor, task: Tensor) -> Tensor:
        assert len(task.unique()) == 1
        assert self.engine.predicted_task == int(task[0])
        return -super().scores(x, task)


def uneven() -> Stream:
    """Tasks with heads of different widths and test sets of different sizes."""
    draw = torch.Generator().manual_seed(3)
    parts = []
    for classes, test in ((2, 30), (4, 17), (3, 40)):
        y = torch.arange(60 + test) % classes
        x = torch.randn(60 + test, 12, generator=draw) + torch.nn.functional.one_hot(y, 12)
        parts.append((x[:60], y[:60], x[60:], y[60:]))
    return streams.from_arrays(parts, scenario="task", name="uneven")


def by_hand(learner: Learner, stream: Stream, every: int) -> tuple[list[Evaluation], list[int]]:
    """Accuracies on whole test sets within tasks and at their ends, and how many of each batch were predicted."""
    found, right, step = [], [], 0
    for number, task in enumerate(stream.tasks):
        learner.begin_task(TaskInfo(task.name, len(task.classes)))
        x, y = stream.train_data(number)
        for at in range(0, len(y), 10):
            batch = x[at : at + 10], y[at : at + 10]
            right.append(int((learner.predict(batch[0], task.name).argmax(1) == batch[1]).sum()) if step else 0)
            learner.observe(*batch)
            step += 1
            if at + 10 >= len(y):
                learner.end_task()
            if step % every == 0 or at + 10 >= len(y):
                found.append(Evaluation(step, tuple(accuracies(learner, stream, number + 1))))
    return found, right


@pytest.mark.parametrize("kind", [Er, OwnScores])
@pytest.mark.parametrize(("name", "block"), [("digits", 500), ("digits", 100), ("uneven", 500)])
def test_the_figures_are_those_of_a_test_by_hand(
    kind: type[Er], name: str, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(monitoring, "BLOCK", block)
    stream = few_digits() if name == "digits" else uneven()
    wanted, right = by_hand(kind(stream.spec), stream, 4)
    result = train(kind(stream.spec), stream, evaluate_every=4, evaluate_samples=50, prequential=True)
    assert result.evaluations == tuple(wanted)
    assert [e.step for e in wanted] == [4, 6, 8, 12, 16, 18]
    assert result.predictions == (Predictions(10, 100, sum(right[:10])), Predictions(18, 80, sum(right[10:])))
    assert result.prequential_acc == pytest.approx(100 * sum(right) / 180)


def test_a_sample_of_each_test_set_is_drawn_by_the_seed_of_the_stream() -> None:
    stream = few_digits(tasks=2)
    seen: list[Tensor] = []

    class Noting(Er):
        def scores(self, x: Tensor, task: Tensor) -> Tensor:
            seen.append(x)
            return super().scores(x, task)

    def sampled(stream: Stream) -> list[Tensor]:
        learner = Noting(stream.spec)
        seen.clear()
        tests = AnytimeTests(learner, stream, every=1, samples=7, report=lambda _: None)
        for number, task in enumerate(stream.tasks):
            learner.begin_task(task.info)
            tests.evaluate(1, number + 1)
        return list(seen)

    first, again, second = sampled(stream)
    assert torch.equal(first, again)
    rows = [{sample.numpy().tobytes() for sample in x} for x in (first, second, *map(_inputs, (stream,) * 2, (0, 1)))]
    assert (len(rows[0]), len(rows[1])) == (7, 7)
    assert rows[0] < rows[2]
    assert rows[1] < rows[3]
    assert torch.equal(sampled(few_digits(tasks=2))[0], first)
    assert not torch.equal(sampled(few_digits(seed=1, tasks=2))[0], first)


def _inputs(stream: Stream, task: int) -> Tensor:
    return stream.test_data(task)[0]


class Counting:
    """Items whose first feature tells their class, in no regular order of classes; one of them is no item."""

    def __init__(self, count: int, broken: int = -1) -> None:
        self.broken, self.targets = broken, (np.random.default_rng(0).random(count) < 0.3).astype(int).tolist()

    def __len__(self) -> int:
        return len(self.targets)

    def item(self, i: int) -> tuple[Any, int]:
        return (None if i == self.broken else np.eye(5, dtype=np.float32)[self.targets[i]]), self.targets[i]


class Listed(Counting):
    def __getitem__(self, i: int) -> tuple[Any, int]:
        return self.item(i)


class Iterating(Counting):
    def __iter__(self) -> Iterator[tuple[Any, int]]:
        return (self.item(i) for i in range(len(self)))


@pytest.mark.parametrize("kind", [Listed, Iterating])
def test_data_that_is_read_as_it_comes_is_judged_by_its_own_labels_without_what_is_skipped(kind: Any) -> None:
    how: dict[str, Any] = {"classes": [0, 1]} if kind is Iterating else {}
    pairs = [(kind(100), kind(40, broken=7))] * 2
    stream = streams.from_dataset(pairs, scenario="domain", keep="disk", workers=0, on_error="skip", **how)
    result = train(Er(stream.spec, ErConfig(lr=0.1)), stream, evaluate_every=5, evaluate_samples=40)
    at_ends = [list(e.accuracies) for e in result.evaluations if e.step in (10, 20)]
    assert at_ends == [result.matrix[0][:1], result.matrix[1]]  # both tests are on the 39 samples that can be read
    assert result.acc is not None
    assert result.acc > 90


def dropping() -> nn.Module:
    """A network whose steps depend on the random numbers of the whole process."""
    layers = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Dropout(0.5)
    return nn.Sequential(*layers)


@pytest.mark.parametrize("own", [False, True], ids=["resnet", "with dropout"])
def test_a_learner_that_is_judged_ends_with_the_same_bits(own: bool) -> None:
    stream, ended = colours(), []
    settings: list[dict[str, Any]] = [{}, {"evaluate_every": 1, "evaluate_samples": 5, "prequential": True}]
    for wanted in settings:
        torch.manual_seed(0)
        config = ScaleConfig(memory=8, norm_on_memory=True, weight_average=0.9)
        learner = Scale(stream.spec, config, backbone=dropping() if own else None)
        ended.append((learner, train(learner, stream, **wanted).matrix))
    assert differences(ended[0][0], ended[1][0]) == []
    assert ended[0][1] == ended[1][1]


@pytest.mark.parametrize("crash", [3, 7, 13, 17])
def test_a_resumed_run_has_the_same_figures(crash: int, tmp_path: Path) -> None:
    stream, told = few_digits(), list[Event]()
    wanted: dict[str, Any] = {"evaluate_every": 4, "evaluate_samples": 20, "prequential": True}
    straight = train(Er(stream.spec), stream, **wanted)
    with pytest.raises(Crash):
        train(Er(stream.spec), stream, on_event=CrashAt(crash), checkpointer=Checkpointer(tmp_path, every=3), **wanted)
    again = Checkpointer(tmp_path, every=3, resume=True)
    resumed = train(Er(stream.spec), stream, on_event=told.append, checkpointer=again, **wanted)
    assert (resumed.evaluations, resumed.predictions) == (straight.evaluations, straight.predictions)
    last = [event for event in told if isinstance(event, PrequentialCounted)][-1]
    assert (last.step, last.accuracy) == (18, straight.prequential_acc)


def test_each_figure_is_told_once_and_seeds_keep_apart() -> None:
    tracks, told = [few_digits(seed, tasks=2) for seed in (3, 8)], list[Event]()
    learners = [Er(track.spec, seed=track.seed) for track in tracks]
    results = train_many(learners, tracks, on_event=told.append, evaluate_every=5, prequential=True)
    for result, track in zip(results, tracks, strict=True):
        seed = result.seed
        events = [event for event in told if isinstance(event, AnytimeEvaluated) and event.seed == seed]
        assert events == [AnytimeEvaluated(seed, *found) for found in result.evaluations]
        counted = [event for event in told if isinstance(event, PrequentialCounted) and event.seed == seed]
        assert [event.step for event in counted] == [10, 12]
        alone = train(Er(track.spec, seed=seed), track, evaluate_every=5, prequential=True)
        assert (alone.evaluations, alone.predictions) == (result.evaluations, result.predictions)
    assert told.index(Stepped(12)) < told.index(AnytimeEvaluated(3, *results[0].evaluations[-1]))


def test_joint_training_is_evaluated_on_all_tasks_and_predicts_what_it_sees_for_the_first_time() -> None:
    stream = few_digits(tasks=2)
    config = Joint.config_class(epochs=3)
    result = train(Joint(stream.spec, config), stream, evaluate_every=10, prequential=True)
    assert [(e.step, len(e.accuracies)) for e in result.evaluations] == [(10, 2), (20, 2), (30, 2), (36, 2)]
    assert result.aaa is not None
    assert (result.wc_acc, result.min_acc, result.stability_gap) == (None, None, None)
    assert sum(count.samples for count in result.predictions) == 120


def test_a_stream_without_test_samples_is_judged_before_learning(tmp_path: Path) -> None:
    tested = uneven()
    stream = streams.from_arrays([tested.train_data(task) for task in range(3)], shuffle=False, name="uneven")
    for wanted in ({}, {"prequential": True, "evaluate_every": 5}):
        with pytest.raises(ConfigError, match=r"has no test samples.*: set run\.prequential=true"):
            train(Er(stream.spec), stream, **wanted)  # type: ignore[arg-type]
    result = train(Er(stream.spec), stream, prequential=True)
    assert result.predictions == train(Er(stream.spec), tested, prequential=True).predictions
    assert result.matrix == [[None] * 3] * 3
    assert [getattr(result, measure) for measure in MEASURES] == [None] * 4
    RunResult((result,)).write(tmp_path)
    written = results.read(tmp_path)
    assert written.seeds == (result,)
    assert written.line() == f"er on uneven: ACC -  FM -  LA -  prequential {result.prequential_acc:.1f} (1 seed, 0 s)"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_an_evaluation_within_a_task_waits_for_nothing_and_is_right() -> None:
    stream = colours(tasks=3, train=60).to("cuda")
    config = ErConfig(memory=20, norm_on_memory=True)
    learner, found = Er(stream.spec, config, device="cuda"), list[Evaluation]()
    tests = AnytimeTests(learner, stream, every=1, samples=20, report=found.append)
    wanted = []
    for number, task in enumerate(stream.tasks):
        learner.begin_task(task.info)
        x, y = stream.train_data(number)
        for at in range(0, 60, 10):
            learner.observe(x[at : at + 10], y[at : at + 10])
            with warnings.catch_warnings():  # it is a prototype, says torch
                warnings.simplefilter("ignore")
                torch.cuda.set_sync_debug_mode("error" if at > 20 else "default")  # from then on all is recorded
            try:
                tests.evaluate(at, number + 1)
            finally:
                torch.cuda.set_sync_debug_mode("default")
            wanted.append(accuracies(learner, stream, number + 1))
        learner.end_task()
    tests.flush()
    assert [list(e.accuracies) for e in found] == wanted
