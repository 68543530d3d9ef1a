"""The experiments of the paper as data: streams, learners, and the settings that vary. The table below is all of it."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scale_cl.errors import ConfigError
from scale_cl.settings import suggest

Case = dict[str, object]  # settings of the learner by name, on top of the paper's for the stream


@dataclass(frozen=True)
class Experiment:
    """One table or figure."""

    line: str  # what it shows
    streams: tuple[str, ...]
    learners: tuple[str, ...]
    cases: tuple[Case, ...] = ({},)  # every learner runs once for each
    bounds: tuple[str, ...] = ()  # learners that run once, for comparison, as the paper's settings have them
    seeds: int = 5
    part: str = "continual"
    alone: bool = False  # its times count: a seed a run, one run after another, nothing beside it
    features: bool = False  # the features of the test samples are kept with each result
    hidden: bool = False  # its results lie in a hidden folder: reports leave them out


def grid(fields: Mapping[str, Sequence[object]]) -> tuple[Case, ...]:
    """All combinations; `lambda1+lambda2` is one axis along which both have the same value."""
    axes = [[dict.fromkeys(name.split("+"), value) for value in values] for name, values in fields.items()]
    return tuple({k: v for part in point for k, v in part.items()} for point in itertools.product(*axes))


PAPER_STREAMS = ("pmnist", "scifar10", "scifar100", "sminiimagenet")
PAPER_LEARNERS = ("gem", "mer", "mir", "er", "ctn", "scale")

EXPERIMENTS = {
    "main": Experiment("accuracy and forgetting of all methods", PAPER_STREAMS, PAPER_LEARNERS),
    "memory": Experiment(
        "accuracy against the size of the memory, with joint training as the bound",
        streams=("scifar100", "sminiimagenet"),
        learners=("mer", "mir", "ctn", "scale"),
        cases=grid({"memory": (50, 100, 150, 200)}),
        bounds=("joint",),
    ),
    "ablation": Experiment(
        "SCALE whole, and without A the adversary, B DER++ and so replay, C the parameter generator",
        streams=("scifar10", "scifar100"),
        learners=("scale",),
        cases=({}, {"adversary": False}, {"derpp": False}, {"generator": False}),
    ),
    "sensitivity": Experiment(
        "SCALE over the weights of its losses",
        streams=("scifar100",),
        learners=("scale",),
        cases=grid({"lambda1+lambda2": (1.0, 3.0), "lambda3": (0.03, 0.09, 0.3, 0.9)}),
    ),
    "time": Experiment(
        "execution times, one run after another with nothing beside it", PAPER_STREAMS, PAPER_LEARNERS, alone=True
    ),
    "search": Experiment(
        "hyper-parameters over a grid, on the tasks kept for search",
        streams=("pmnist", "scifar100", "sminiimagenet"),
        learners=("scale",),
        cases=grid(
            {
                "lambda1+lambda2": (1.0, 3.0),
                "lambda3": (0.03, 0.09, 0.3, 0.9),
                "inner_lr": (0.001, 0.01, 0.1),
                "outer_lr": (0.001, 0.01, 0.1),
            }
        ),
        seeds=1,
        part="search",
    ),
    "claims": Experiment(
        "parameters and their growth, the adversary's cost, and the alignment of features with and without it",
        streams=PAPER_STREAMS,
        learners=("scale",),
        cases=({}, {"adversary": False}),
        seeds=1,
        alone=True,
        features=True,
        hidden=True,
    ),
}

ALL = "all"


def chosen(name: str) -> dict[str, Experiment]:
    """The experiment called `name`, or all of them."""
    if name == ALL:
        return dict(EXPERIMENTS)
    if name not in EXPERIMENTS:
        raise ConfigError(f"unknown experiment {name!r}; {suggest(name, [*EXPERIMENTS, ALL])}")
    return {name: EXPERIMENTS[name]}
