"""The training loop on real digits: the matrix, side by side and alone, batches that do not divide a task."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from torch import Tensor

from scale_cl import streams
from scale_cl.errors import ConfigError, StreamError
from scale_cl.learners import Finetune, Learner, Scale, ScaleConfig, StepStats, registry
from scale_cl.settings import build
from scale_cl.streams import Stream
from scale_cl.training import Event, train, train_many
from scale_cl.training.events import Evaluated, Finished, Started, Stepped, TaskStarted


def digits(seed: int = 0, tasks: int = 3, train: int = 60, test: int = 50) -> Stream:
    """Permuted digits, fewer than the catalog's."""
    return streams.permuted(streams.load_arrays("digits"), tasks=tasks, train=train, test=test, seed=seed, name="few")


def scale(stream: Stream, seed: int = 0, **values: Any) -> Learner:
    config = ScaleConfig(**{"inner_lr": 0.1, "outer_lr": 0.01, "memory": 20, **values})
    return Scale(stream.spec, config, seed=seed)


class Recorder(Finetune):
    """Learns nothing and remembers what it was given."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.batches: list[tuple[str | None, list[Any], list[Any]]] = []

    def observe(self, x: Tensor, y: Tensor, task: Tensor | None = None) -> StepStats:
        self.batches.append((self.current_task, x.tolist(), y.tolist()))
        return {}


def test_the_matrix_has_a_row_for_each_task_and_nothing_above_the_diagonal() -> None:
    stream = digits()
    result = train(scale(stream), stream)
    assert (result.stream, result.learner, result.seed) == ("few", "scale", 0)
    assert result.tasks == [task.name for task in stream.tasks]
    assert len(result.matrix) == 3
    for i, row in enumerate(result.matrix):
        assert len(row) == 3
        assert all(value is None for value in row[i + 1 :])
        assert all(value is not None and 0 <= value <= 100 for value in row[: i + 1])
        assert all(value is not None and (value / 2).is_integer() for value in row[: i + 1]), (
            "of 50, every sample scored"
        )
    assert result.seconds_train > 0
    assert result.seconds_eval > 0
    assert result.config["learner"]["name"] == "scale"
    assert result.config["learner"]["memory"] == 20


def test_scale_learns_the_digits_and_forgets_less_than_fine_tuning() -> None:
    stream = streams.load("digits", tasks=3)
    results = {}
    for name in ("scale", "finetune"):
        config = build(registry.config_class(name), registry.preset_settings(name, "digits"))
        results[name] = train(registry.make(name, stream.spec, config), stream)
    kept, lost = results["scale"], results["finetune"]
    assert kept.acc is not None
    assert lost.acc is not None
    assert kept.fm is not None
    assert lost.fm is not None
    assert 80 < kept.acc <= 100
    assert kept.acc > lost.acc
    assert -5 < kept.fm < lost.fm
    assert kept.la is not None
    assert kept.la > 80
    assert kept.bwt is not None


@pytest.mark.parametrize("batch_size", [1, 7, 10, 60, 1000])
def test_every_sample_comes_once_and_in_order_whatever_the_batch_size(batch_size: int) -> None:
    stream = digits(tasks=2)
    learner = Recorder(stream.spec)
    train(learner, stream, batch_size=batch_size)
    for number, task in enumerate(stream.tasks):
        x, y = stream.train_data(number)
        batches = [(bx, by) for name, bx, by in learner.batches if name == task.name]
        assert [sample for bx, _ in batches for sample in bx] == x.tolist()
        assert [label for _, by in batches for label in by] == y.tolist()
        sizes = [len(by) for _, by in batches]
        assert sizes[:-1] == [batch_size] * (len(sizes) - 1)
        assert 1 <= sizes[-1] <= batch_size


def test_a_last_batch_that_is_smaller_is_learned_too() -> None:
    stream = digits(tasks=2, train=25)
    learner = scale(stream)
    train(learner, stream, batch_size=10)
    assert learner.steps == 6
    assert isinstance(learner, Scale)
    assert learner.memory.seen == [25, 25]


def test_seeds_side_by_side_have_the_results_they_have_alone() -> None:
    tracks = [digits(seed) for seed in (4, 9)]
    together = train_many([scale(track, track.seed) for track in tracks], tracks)
    alone = [train(scale(track, track.seed), track) for track in tracks]
    assert [result.matrix for result in together] == [result.matrix for result in alone]
    assert [result.seed for result in together] == [4, 9]
    assert together[0].matrix != together[1].matrix


def test_settings_of_one_method_run_side_by_side_over_the_same_stream() -> None:
    stream = digits()
    settings: list[dict[str, Any]] = [{}, {"weight_average": 0.9}, {"adversary": False}]
    together = train_many([scale(stream, **values) for values in settings], [stream] * 3)
    alone = [train(scale(stream, **values), stream) for values in settings]
    assert [result.matrix for result in together] == [result.matrix for result in alone]


def test_the_same_run_gives_the_same_matrix_and_another_seed_another() -> None:
    def matrix(seed: int) -> object:
        stream = digits(seed)
        return train(scale(stream, seed), stream).matrix

    assert matrix(0) == matrix(0)
    assert matrix(0) != matrix(1)


def test_a_run_cut_after_some_tasks_is_the_beginning_of_the_whole_one() -> None:
    stream = digits()
    whole, part = train(scale(stream), stream), train(scale(stream), stream.first(2))
    assert [row[:2] for row in whole.matrix[:2]] == part.matrix


def test_the_listener_is_told_everything_in_order() -> None:
    tracks, told = [digits(seed, tasks=2, train=25) for seed in (3, 5)], list[Event]()
    results = train_many([scale(track, track.seed) for track in tracks], tracks, on_event=told.append)
    expected: list[Event] = [Started("few", "scale", (3, 5), 2, 6)]
    for number, task in enumerate(tracks[0].tasks):
        expected.append(TaskStarted(number, task.name, 3))
        expected += [Stepped(3 * number + step) for step in (1, 2, 3)]
        for result in results:
            row = [value for value in result.matrix[number] if value is not None]
            expected.append(Evaluated(result.seed, number, row))
    assert told == [*expected, Finished()]


def test_the_given_config_is_what_the_result_records() -> None:
    stream = digits(tasks=1)
    config = {"stream": {"name": "few"}, "learner": {"name": "scale"}, "run": {"seed": 0}}
    result = train(scale(stream), stream, config=config)
    assert result.config == config
    assert result.fm is None
    assert result.bwt is None


def test_what_cannot_run_together_is_refused() -> None:
    stream, longer = digits(), digits(train=70)
    with pytest.raises(StreamError, match="2 learners for 1 streams"):
        train_many([scale(stream), scale(stream)], [stream])
    with pytest.raises(StreamError, match="0 learners for 0 streams"):
        train_many([], [])
    with pytest.raises(StreamError, match="same lengths"):
        train_many([scale(stream), scale(longer)], [stream, longer])
    with pytest.raises(StreamError, match="batch_size is 0; it must be at least 1"):
        train(scale(stream), stream, batch_size=0)
    other = streams.InputSpec((1, 9, 9), 16.0, "domain")
    with pytest.raises(StreamError, match=r"the learner was made for .*9, 9.* but stream 'few' has .*8, 8"):
        train(Scale(other), stream)


def test_more_tasks_than_a_growing_learner_is_bounded_to_are_refused_before_the_first() -> None:
    stream = digits(tasks=4)
    learner = registry.make("pnn", stream.spec, build(registry.config_class("pnn"), {"max_tasks": 3}))
    with pytest.raises(ConfigError, match=r"^few has 4 tasks, but pnn adds .* bounded to 3 \(learner.max_tasks\)"):
        train(learner, stream)
    assert learner.tasks == []


def test_joint_training_is_refused_where_boundaries_are_hidden() -> None:
    stream = replace(digits(), boundaries="hidden")
    with pytest.raises(ConfigError, match="joint trains on all tasks of few shuffled together, where no boundary"):
        train(registry.make("joint", stream.spec), stream)
