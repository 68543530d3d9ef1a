"""A run inside Avalanche is the run outside it: the same bits, the same accuracies."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from scale_cl import streams
from scale_cl.learners import Er, Learner, Scale, registry
from scale_cl.streams import Stream, TaskInfo
from tests.integrations.benchmarks import (
    PAPER,
    accuracies,
    assert_same,
    data_set,
    labelled,
    made,
    matrix_of,
    permuted,
    run,
    split,
)


@pytest.mark.parametrize(("stream", "scenario"), [(permuted(), "domain"), (split(), "task")], ids=["permuted", "split"])
def test_a_stream_gives_the_bits_and_accuracies_of_our_own_loop(stream: Stream, scenario: str) -> None:
    strategy = made(like="digits", scenario=scenario, classes=len(stream.tasks[0].classes))
    rows = run(strategy, labelled(stream))
    learner = Scale(stream.spec, PAPER)
    assert rows == [pytest.approx(row, abs=1e-9) for row in matrix_of(learner, stream)]
    assert_same(strategy.learner, learner)
    assert strategy.learner.tasks == [str(task) for task in range(len(stream))]


@pytest.mark.parametrize("name", ["er", "ctn", "scale-ema", Er, "scale_cl.learners.er:Er"])
def test_other_learners_do_too(name: str | type[Learner]) -> None:
    stream = split(2)
    strategy = made("CatalogStrategy", learner=name, like="digits", seed=3)
    rows = run(strategy, labelled(stream))
    config = registry.config_class(name)(**registry.preset_settings(name, "digits"))  # type: ignore[arg-type]
    learner = registry.make(name, stream.spec, config, seed=3)
    assert rows == [pytest.approx(row, abs=1e-9) for row in matrix_of(learner, stream)]
    assert_same(strategy.learner, learner)


def as_picture(x: Tensor) -> Image.Image:
    return Image.fromarray(x[0].numpy())


def without_channel(x: Tensor) -> Tensor:
    return x[0]


def as_floats(x: Tensor) -> Tensor:
    return x.float() / 16


def as_double_array(x: Tensor) -> Any:
    return np.asarray(x, dtype=np.float64) / 16


@pytest.mark.parametrize("form", [as_picture, without_channel, as_floats, as_double_array])
def test_samples_may_have_any_usual_form(form: Callable[[Tensor], Any]) -> None:
    stream = split(2)
    strategy = made(like="digits")
    rows = run(strategy, labelled(stream, form))
    learner = Scale(stream.spec, PAPER)
    assert rows == [pytest.approx(row, abs=1e-9) for row in matrix_of(learner, stream)]
    assert_same(strategy.learner, learner, "net.")
    kept = torch.uint8 if form in (as_picture, without_channel) else torch.float32
    assert strategy.learner.memory.x.dtype == kept


def test_colour_pictures_go_to_the_resnet_as_three_channels() -> None:
    from avalanche.benchmarks import benchmark_from_datasets, task_incremental_benchmark

    strategy = made(pixel_max=255, train_mb_size=4)
    x = torch.arange(3 * 4 * 16 * 16).reshape(4, 3, 16, 16).to(torch.uint8)
    data = data_set(x, torch.arange(4) % 2, lambda image: Image.fromarray(image.permute(1, 2, 0).numpy()))
    strategy.train(task_incremental_benchmark(benchmark_from_datasets(train=[data])).train_stream, shuffle=False)
    assert strategy.learner.spec.shape == (3, 16, 16)
    assert torch.equal(strategy.learner.memory.x[:4], x)


# ---- tasks and pieces of tasks ---------------------------------------------------------------------------------------


def split_stream(benchmark: Any, size: int) -> Any:
    from avalanche.benchmarks import split_online_stream

    return split_online_stream(benchmark.train_stream, size, shuffle=False, access_task_boundaries=True)


def online_scenario(benchmark: Any, size: int) -> Any:
    from avalanche.benchmarks.scenarios.online import OnlineCLScenario

    original = benchmark.streams.values()
    online = OnlineCLScenario(original, experience_size=size, shuffle=False, access_task_boundaries=True)
    return online.streams["train_online"]


@pytest.mark.filterwarnings("ignore:Deprecated. Use `split_online_stream`:UserWarning")
@pytest.mark.parametrize("in_pieces", [split_stream, online_scenario])
@pytest.mark.parametrize("size", [1, 6], ids=["one class a piece", "several samples a piece"])
def test_pieces_of_a_task_make_the_task(in_pieces: Callable[[Any, int], Any], size: int) -> None:
    stream = split(2, train=15 * size)
    benchmark = labelled(stream)
    strategy = made(like="digits", train_mb_size=size)
    for piece in in_pieces(benchmark, size):
        strategy.train(piece, shuffle=False)
    learner = Scale(stream.spec, PAPER)
    rows = matrix_of(learner, stream, batch_size=size)
    assert accuracies(strategy.eval(benchmark.test_stream), 2) == pytest.approx(rows[-1])
    strategy.end_task()
    assert_same(strategy.learner, learner)


def test_without_boundaries_a_head_grows_as_classes_appear_and_only_a_new_label_ends_a_task() -> None:
    from avalanche.benchmarks import split_online_stream

    stream = split(2, train=15)
    benchmark = labelled(stream)
    strategy = made(like="digits", train_mb_size=1)
    for piece in split_online_stream(benchmark.train_stream, 1, shuffle=False):
        strategy.train(piece)
    learner = Scale(stream.spec, PAPER)
    for task in range(2):
        x, y = stream.train_data(task)
        seen: list[int] = []
        for one, label in zip(x, y.tolist(), strict=True):
            if label not in seen:
                seen.append(label)
                learner.begin_task(TaskInfo(str(task), len(seen)))
            learner.observe(one[None], torch.tensor([seen.index(label)]))
    assert_same(strategy.learner, learner)
    assert strategy.learner.current_task == "1"


def test_a_label_that_comes_back_goes_on_with_its_task() -> None:
    stream = split(2)
    benchmark = labelled(stream)
    first, second = benchmark.train_stream
    strategy = made(like="digits")
    strategy.train([first, second, first], shuffle=False)
    learner = Scale(stream.spec, PAPER)
    for task in (0, 1, 0):
        learner.begin_task(stream.tasks[task].info)
        x, y = stream.train_data(task)
        for rows in torch.arange(len(x)).split(10):
            learner.observe(x[rows], y[rows])
    assert strategy.learner.tasks == ["0", "1"]
    assert_same(strategy.learner, learner)


def _classic(*, task_labels: bool) -> Any:
    """Six digits, two an experience, by the generator that SplitMNIST and its like use."""
    from avalanche.benchmarks import nc_benchmark

    arrays = streams.load_arrays("digits")
    few = (arrays.y_train < 6).nonzero()[:300, 0]
    data = data_set(arrays.x_train[few], arrays.y_train[few])
    return nc_benchmark(data, data, n_experiences=3, task_labels=task_labels, shuffle=False)


def test_benchmarks_of_the_classic_kind_work_with_task_labels() -> None:
    from avalanche.benchmarks import task_incremental_benchmark

    for benchmark in (
        _classic(task_labels=True),
        task_incremental_benchmark(_classic(task_labels=False), reset_task_labels=True),
    ):
        torch.manual_seed(0)  # Avalanche shuffles by torch's own random numbers
        strategy = made(like="digits")
        strategy.train(benchmark.train_stream)
        assert strategy.learner.tasks == ["0", "1", "2"]
        assert strategy.model.net.heads.classes == [2, 2, 2]
        assert np.mean(accuracies(strategy.eval(benchmark.test_stream), 3)) > 60


def test_whole_experiences_that_share_one_label_are_one_task_and_a_warning() -> None:
    strategy = made()
    with pytest.warns(UserWarning, match="continues that task; if it is a task of its own, task_incremental_benchmark"):
        strategy.train(_classic(task_labels=False).train_stream, shuffle=False)
    assert strategy.learner.tasks == ["0"]
    assert strategy.model.net.heads.classes == [6]


# ---- the rest --------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:No loggers specified:UserWarning")
def test_a_copy_goes_on_as_the_original_does() -> None:
    benchmark = labelled(split(2))
    strategy = made(evaluator=None)
    strategy.train(benchmark.train_stream[0], shuffle=False)
    other = copy.deepcopy(strategy)
    for one in (strategy, other):
        one.train(benchmark.train_stream[1], shuffle=False)
    assert other.learner is not strategy.learner
    assert_same(strategy.learner, other.learner)
    x = split(2).test_data(1)[0]
    assert torch.equal(strategy.model(x, [1] * len(x)), other.model(x, [1] * len(x)))


def test_a_network_of_ones_own_is_the_backbone() -> None:
    own = nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.ReLU())
    strategy = made(backbone=own)
    strategy.train(labelled(split(1)).train_stream, shuffle=False)
    assert strategy.model.net.backbone.feature_width == 12
    assert sum(p.numel() for p in strategy.model.parameters()) > 64 * 12


def test_several_passes_are_made_where_they_are_asked_for() -> None:
    strategy = made("CatalogStrategy", learner="acl", settings={"epochs": 2})
    strategy.train(labelled(split(1)).train_stream, shuffle=False)
    assert strategy.learner.steps == 2 * 6
    strategy = made(train_epochs=3, memory=5)
    strategy.train(labelled(split(1)).train_stream, shuffle=False)
    assert strategy.learner.steps == 3 * 6
    assert strategy.learner.config.memory == 5
