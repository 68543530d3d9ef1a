"""Boundaries that a detector finds: tasks are opened and recalled, and samples since the change move to their task."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from scale_cl import metrics, results, streams
from scale_cl.errors import CheckpointError, ConfigError, StreamError
from scale_cl.learners import Bocl, BoclConfig, Learner, registry
from scale_cl.learners.boundaries import BoundaryFinder, Detection
from scale_cl.results import FoundBoundary, RunResult
from scale_cl.streams import Stream
from scale_cl.training import Event, train
from scale_cl.training.checkpointing import Checkpointer
from scale_cl.training.events import Stepped
from tests.learners.sameness import differences
from tests.training.small_streams import colours, few_digits


def hidden(tasks: int = 3, train: int = 400) -> Stream:
    return replace(few_digits(tasks=tasks, train=train), boundaries="detect")


def make(name: str, stream: Stream) -> Learner:
    config = registry.config_class(name)(**registry.preset_settings(name, "digits"))  # type: ignore[arg-type]
    return registry.make(name, stream.spec, config)


def learnt(finder: BoundaryFinder, stream: Stream) -> None:
    for task in range(len(stream)):
        x, y = stream.train_data(task)
        for rows in torch.arange(len(x)).split(10):
            finder.observe(x[rows], y[rows])


@pytest.mark.parametrize(
    ("name", "signal", "samples"),
    [
        ("er", "loss", 800),
        ("icarl", "loss", 800),
        ("ctn", "features", 200),
        ("independent", "loss", 800),
    ],
)
def test_permuted_digits_are_told_apart(name: str, signal: str, samples: int) -> None:
    stream = hidden(train=samples)
    learner = make(name, stream)
    result = train(learner, stream, detection=Detection(signal=signal))  # type: ignore[arg-type]
    assert result.boundaries is not None
    assert result.boundaries.true == (samples // 10 + 1, samples // 5 + 1)
    assert result.boundaries.scores == (1.0, 1.0)
    assert [(b.task, b.new) for b in result.boundaries.found] == [("found-2", True), ("found-3", True)]
    assert learner.tasks == ["found-1", "found-2", "found-3"]
    assert (result.acc or 0) > 50


def test_samples_since_the_change_move_and_earlier_ones_take_their_places() -> None:
    stream = hidden(tasks=2)
    learner = make("er", stream)
    finder = BoundaryFinder(learner, Detection(detector="kswin"), classes=10)  # finds a change after some batches
    learnt(finder, stream)
    late = finder.found[0].step - 41
    assert 0 < finder.repeated <= late < 10
    memory, (old, _), (new, _) = learner.engine.owned.memories["memory"], stream.train_data(0), stream.train_data(1)
    for task, (own, other) in enumerate([(old, new), (new, old)]):
        stored = memory.x[memory.rows_of(task)]
        assert len(stored) == 50
        assert all(bool((own == x).flatten(1).all(1).any()) for x in stored)
        assert not any(bool((other == x).flatten(1).all(1).any()) for x in stored)


def test_only_a_rise_opens_a_task() -> None:
    finder = BoundaryFinder(make("er", hidden()), Detection(detector="kswin"))
    finder.step = 100
    signals = [3.0 + 0.01 * n for n in range(20)] + [0.1 + 0.001 * n for n in range(30)]
    assert not any(finder._changed(signal) for signal in signals)
    assert any(finder._changed(3.0 + 0.01 * n) for n in range(10))


class CrashAt:
    def __init__(self, step: int) -> None:
        self.step = step

    def __call__(self, event: Event) -> None:
        if event == Stepped(self.step):
            raise KeyboardInterrupt


@pytest.mark.parametrize("crash", [36, 43])
def test_a_run_goes_on_to_the_same_bits(tmp_path: Path, crash: int) -> None:
    stream, detection = hidden(tasks=2), Detection(detector="kswin")
    straight, resumed = make("er", stream), make("er", stream)
    wanted = train(straight, stream, detection=detection)
    saving = Checkpointer(tmp_path, every=crash)
    with pytest.raises(KeyboardInterrupt):
        train(make("er", stream), stream, detection=detection, checkpointer=saving, on_event=CrashAt(crash + 1))
    going_on = Checkpointer(tmp_path, resume=True)
    result = train(resumed, stream, detection=detection, checkpointer=going_on)
    assert (result.matrix, result.boundaries) == (wanted.matrix, wanted.boundaries)
    assert differences(straight, resumed) == []


def test_a_damaged_state_is_refused() -> None:
    finder = BoundaryFinder(make("er", hidden()))
    with pytest.raises(CheckpointError, match="boundaries found is damaged"):
        finder.load_state_dict({"tensors": {}, "meta": {"sizes": [3]}})


def test_what_was_found_is_written_next_to_the_truth(tmp_path: Path) -> None:
    stream = hidden(tasks=2)
    result = train(make("er", stream), stream, detection=Detection(signal="features"))
    RunResult((result,)).write(tmp_path)
    assert results.read(tmp_path).seeds[0] == results.read_seed(tmp_path / "seeds" / "seed-0.json") == result
    assert RunResult((result,)).boundaries_line() == "boundaries found: recall 1.00, precision 1.00"
    assert isinstance(result.boundaries, results.FoundBoundaries)
    assert isinstance(result.boundaries.found[0], FoundBoundary)


def test_recall_and_precision_count_the_first_batches_of_a_task() -> None:
    assert metrics.boundary_scores([105, 111, 250], [101, 201]) == (0.5, 1 / 3)
    assert metrics.boundary_scores([], [101]) == (0.0, None)
    assert metrics.boundary_scores([3], []) == (None, 0.0)


def test_what_makes_no_sense_is_refused() -> None:
    stream = replace(colours(), boundaries="detect")
    digits = streams.load("split-digits", boundaries="detect")
    for hopeless, scenario in ((stream, "domain"), (digits, "class")):
        with pytest.raises(StreamError, match=f"the same labels for different classes; take scenario {scenario}$"):
            train(make("er", hopeless), hopeless)
    with pytest.raises(ConfigError, match=r"where no boundary can be found; leave stream\.boundaries at told"):
        train(make("joint", hidden()), hidden())
    with pytest.raises(ConfigError, match="single pass over the stream; bocl makes 2, so set epochs=1"):
        train(Bocl(hidden().spec, BoclConfig(epochs=2)), hidden())
    with pytest.raises(ConfigError, match=r"gdumb learns a task when it ends.*stream\.signal=features"):
        train(make("gdumb", hidden()), hidden())


def test_without_river_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "river", None)
    with pytest.raises(ConfigError, match=r"needs the extra: pip install 'scale-cl\[drift\]'"):
        train(make("er", hidden()), hidden())
