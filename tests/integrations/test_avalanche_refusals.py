"""What a strategy does not take is refused in one line that says what would be right."""

from __future__ import annotations

import importlib
import re
import sys
from typing import Any

import pytest
import torch
from PIL import Image
from torch import Tensor

from scale_cl.errors import ConfigError, InputError, ScaleClError
from tests.integrations.benchmarks import data_set, labelled, made, split, unlabelled


def refused(error: type[Exception], line: str, cls: str = "Scale", **arguments: Any) -> None:
    with pytest.raises(error) as raised:
        made(cls, **arguments)
    assert str(raised.value) == line


def test_settings_that_are_not_there_or_out_of_range() -> None:
    refused(ConfigError, "unknown setting 'inner_rl'; did you mean 'inner_lr'?", inner_rl=0.1)
    refused(ConfigError, "inner_lr: -1.0 is out of range, it must be above 0", inner_lr=-1.0)
    refused(ConfigError, "scenario is 'class'; it must be 'task' or 'domain'", scenario="class")
    refused(ConfigError, "train_mb_size is 0; it must be a whole number of at least 1", train_mb_size=0)
    refused(ConfigError, "classes is 0; it must be a whole number of at least 1", classes=0)
    refused(ConfigError, "pixel_max is 0; it must be a positive number such as 255", pixel_max=0)
    refused(ConfigError, "like: unknown stream 'pmnits'; did you mean 'pmnist'?", like="pmnits")
    refused(
        ConfigError,
        "learner 'joint' trains on all tasks at once; give one that takes them in turn",
        "CatalogStrategy",
        learner="joint",
    )


@pytest.mark.parametrize("name", ["model", "optimizer", "criterion"])
def test_what_other_strategies_need(name: str) -> None:
    line = f"{name} is not taken: the learner has its own; a network is given as backbone=..."
    arguments: dict[str, Any] = {name: torch.nn.Linear(1, 1)}
    refused(ConfigError, line, **arguments)


def test_plugins_that_act_on_the_backward_pass() -> None:
    from avalanche.training.plugins import EWCPlugin, LwFPlugin

    for plugin in (EWCPlugin(ewc_lambda=1.0), LwFPlugin()):
        with pytest.raises(ConfigError, match=f"plugin {type(plugin).__name__} acts on the backward pass"):
            made(plugins=[plugin])


def test_a_plugin_that_looks_on_is_welcome() -> None:
    from avalanche.training.plugins import SupervisedPlugin

    class Count(SupervisedPlugin):  # type: ignore[misc]
        updates = 0

        def before_update(self, strategy: Any, *args: Any, **kwargs: Any) -> None:
            self.updates += 1

    count = Count()
    made(plugins=[count]).train(labelled(split(1)).train_stream)
    assert count.updates == 6


def test_a_benchmark_without_task_labels() -> None:
    benchmark, strategy = unlabelled(split(1)), made()
    for use, data in ((strategy.train, benchmark.train_stream), (strategy.eval, benchmark.test_stream)):
        with pytest.raises(InputError, match=r"^the benchmark has no task labels.*task_incremental_benchmark.*$"):
            use(data)


def test_an_experience_of_several_tasks() -> None:
    from avalanche.benchmarks import benchmark_from_datasets
    from avalanche.benchmarks.scenarios.task_aware import with_task_labels

    one, two = (experience.dataset for experience in labelled(split(2)).train_stream)
    both = with_task_labels(benchmark_from_datasets(train=[one.concat(two)]))
    with pytest.raises(InputError, match="a batch holds samples of the tasks 0, 1; give experiences of one task each"):
        made().train(both.train_stream)


def _other(form: Any) -> Any:
    return labelled(split(1), form)


def as_whole_numbers(x: Tensor) -> Tensor:
    return x.long()


def as_volume(x: Tensor) -> Tensor:
    return x[None]


def in_two_sizes(x: Tensor) -> Image.Image:
    return Image.fromarray(x[0].numpy()).resize((8, 8) if x[0, 2, 2] > 8 else (9, 8))


def of_sixteen_bits(x: Tensor) -> Image.Image:
    return Image.fromarray(x[0].numpy().astype("uint16"))


@pytest.mark.parametrize(
    ("form", "line"),
    [
        (as_whole_numbers, "a batch is of torch.int64; give uint8 pixels or floats"),
        (as_volume, "a batch has shape [10, 1, 1, 8, 8]; give features [n, f] or images [n, h, w] or [n, c, h, w]"),
        (
            in_two_sizes,
            "images of shapes [1, 8, 8] and [1, 8, 9] are in one batch; "
            "give the benchmark a transform that makes them equal",
        ),
        (
            of_sixteen_bits,
            "an image has pixels of more than 8 bits (mode I;16); give 8 bits per channel, or a tensor",
        ),
    ],
)
def test_samples_of_a_form_that_is_not_known(form: Any, line: str) -> None:
    with pytest.raises(InputError) as raised:
        made().train(_other(form).train_stream, shuffle=False)
    assert str(raised.value) == line


def test_samples_unlike_the_first_ones() -> None:
    strategy = made(eval_mb_size=10)
    strategy.train(labelled(split(1)).train_stream)
    with pytest.raises(InputError, match=re.escape("a batch has shape [10, 1, 4, 8]; this learner takes [n, 1, 8, 8]")):
        strategy.eval(_other(lambda x: x[:, ::2]).test_stream)
    with pytest.raises(InputError, match=re.escape("a batch is of torch.float32; this learner takes torch.uint8")):
        strategy.eval(_other(lambda x: x / 16).test_stream)


def test_labels_below_zero() -> None:
    from avalanche.benchmarks import benchmark_from_datasets, task_incremental_benchmark

    x, y = split(1).train_data(0)
    benchmark = task_incremental_benchmark(benchmark_from_datasets(train=[data_set(x, y - 1)]))
    with pytest.raises(InputError, match="label -1 is below 0; labels count up from 0"):
        made().train(benchmark.train_stream)


def test_asking_for_the_learner_before_there_is_one() -> None:
    with pytest.raises(ScaleClError, match="no learner yet: the first batch"):
        _ = made().learner


def test_a_missing_extra_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(sys.modules):
        if name.partition(".")[0] == "avalanche":
            monkeypatch.setitem(sys.modules, name, None)
        if name.startswith("scale_cl.integrations.avalanche"):
            monkeypatch.delitem(sys.modules, name)
    with pytest.raises(ScaleClError) as raised:
        importlib.import_module("scale_cl.integrations.avalanche")
    assert str(raised.value) == "strategies for Avalanche need the extra: pip install 'scale-cl[avalanche]'"
