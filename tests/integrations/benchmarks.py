"""Benchmarks of Avalanche made of this package's streams, the same samples in the same order, and runs through them."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from scale_cl import streams
from scale_cl.learners import Learner, ScaleConfig
from scale_cl.streams import Stream
from scale_cl.training import train

PAPER = ScaleConfig(inner_lr=0.1, outer_lr=0.01)  # for permuted streams, as `like="digits"` has it


def permuted(tasks: int = 3) -> Stream:
    """Domain-incremental: permuted digits, one head."""
    return streams.permuted(streams.load_arrays("digits"), tasks=tasks, train=60, test=50, seed=0)


def split(tasks: int = 3, train: int = 60) -> Stream:
    """Task-incremental: two digits a task."""
    arrays = streams.load_arrays("digits")
    parts = []
    for first in range(0, 2 * tasks, 2):
        own = (arrays.y_train // 2 == first // 2).nonzero()[:train, 0]
        test = (arrays.y_test // 2 == first // 2).nonzero()[:50, 0]
        parts.append(
            (arrays.x_train[own], arrays.y_train[own] - first, arrays.x_test[test], arrays.y_test[test] - first)
        )
    return streams.from_arrays(parts, scenario="task", pixel_max=16, shuffle=False)


class Samples(Dataset[Any]):
    """Samples that take another form when they are asked for, as transforms give them."""

    def __init__(self, x: Tensor, y: Tensor, form: Callable[[Tensor], Any]) -> None:
        self.x, self.targets, self.form = x, y.tolist(), form

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, i: int) -> tuple[Any, int]:
        return self.form(self.x[i]), self.targets[i]


def as_it_is(x: Tensor) -> Tensor:
    """No other form."""
    return x


def data_set(x: Tensor, y: Tensor, form: Callable[[Tensor], Any] = as_it_is) -> Any:
    """An Avalanche data set without task labels."""
    from avalanche.benchmarks.utils import as_classification_dataset

    return as_classification_dataset(Samples(x, y, form))


def unlabelled(stream: Stream, form: Callable[[Tensor], Any] = as_it_is) -> Any:
    """A benchmark without task labels, the classes of all tasks numbered through unless the tasks share them."""
    from avalanche.benchmarks import benchmark_from_datasets

    parts: dict[str, list[Any]] = {"train": [], "test": []}
    for number, task in enumerate(stream.tasks):
        first = number * len(task.classes) if stream.scenario == "task" else 0
        for part, (x, y) in (("train", stream.train_data(number)), ("test", stream.test_data(number))):
            parts[part].append(data_set(x, y + first, form))
    return benchmark_from_datasets(**parts)


def labelled(stream: Stream, form: Callable[[Tensor], Any] = as_it_is) -> Any:
    """The same with task labels 0, 1, ..."""
    from avalanche.benchmarks import task_incremental_benchmark

    return task_incremental_benchmark(unlabelled(stream, form))


def evaluator(log: Any = None) -> Any:
    """Accuracy, loss and forgetting, written to `log`."""
    from avalanche.evaluation.metrics import accuracy_metrics, forgetting_metrics, loss_metrics
    from avalanche.logging import TextLogger
    from avalanche.training.plugins import EvaluationPlugin

    return EvaluationPlugin(
        accuracy_metrics(epoch=True, experience=True, stream=True),
        loss_metrics(experience=True),
        forgetting_metrics(experience=True, stream=True),
        loggers=[TextLogger(io.StringIO() if log is None else log)],
    )


def made(cls: str = "Scale", **arguments: Any) -> Any:
    """A strategy for the digits."""
    from scale_cl.integrations import avalanche

    settings = {"pixel_max": 16, "eval_mb_size": 2000, "evaluator": evaluator()}
    return getattr(avalanche, cls)(**settings | arguments)


def accuracies(metrics: dict[str, float], tasks: int) -> list[float]:
    """Accuracy in percent on each of the first tasks."""
    names = [f"Top1_Acc_Exp/eval_phase/test_stream/Task{task:03}/Exp{task:03}" for task in range(tasks)]
    return [100 * metrics[name] for name in names]


def assert_same(one: Learner, other: Learner, parts: str = "") -> None:
    """The same state to the last bit, apart from the names of tasks."""
    ours, theirs = one.state_dict()["tensors"], other.state_dict()["tensors"]
    assert set(ours) == set(theirs)
    assert [name for name in ours if name.startswith(parts) and not torch.equal(ours[name], theirs[name])] == []


def run(strategy: Any, benchmark: Any) -> list[list[float]]:
    """Train task after task in the order of the data; the accuracies after each."""
    rows = []
    for number, experience in enumerate(benchmark.train_stream):
        strategy.train(experience, shuffle=False)
        rows.append(accuracies(strategy.eval(benchmark.test_stream), number + 1))
    strategy.end_task()
    return rows


def matrix_of(learner: Learner, stream: Stream, batch_size: int = 10) -> list[list[float]]:
    """The same by this package's own loop."""
    return [[a for a in row if a is not None] for row in train(learner, stream, batch_size=batch_size).matrix]
