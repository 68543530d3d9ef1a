"""The experiments of the paper as data: streams, learners and the settings that vary, all in one table.

All that the experiments need to know about learners by name stands here: which learners run where, which one is the
upper bound, and how long a step of each takes.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from scale_cl.errors import ConfigError
from scale_cl.settings import suggest

Case = dict[str, object]  # settings of the learner by name, added to the paper's for the stream


@dataclass(frozen=True)
class Experiment:
    """One table or figure."""

    line: str  # what it shows
    streams: tuple[str, ...]
    learners: tuple[str, ...]
    cases: tuple[Case, ...] = ({},)  # every learner runs once per case
    grids: Mapping[str, tuple[Case, ...]] = field(default_factory=dict)  # if given: cases of each learner's own
    bounds: tuple[str, ...] = ()  # learners that run once, for comparison, with the paper's settings
    everywhere: Case = field(default_factory=dict)  # settings of all learners that have them
    on_images: Case = field(default_factory=dict)  # likewise, on streams of colour images
    searched: str = ""  # the experiment whose search has found the learners' settings, where its files are
    seeds: int = 5
    first_seed: int = 0
    orders: tuple[int, ...] = ()  # class orders, each with `seeds_per_order` seeds, where tasks differ in their classes
    seeds_per_order: int = 3
    part: str = "continual"
    preset: str | None = None  # the learners' settings, unless the user names others; None: the recommended ones
    alone: bool = False  # its times count: one seed per run, one run at a time, nothing beside it
    sizes: bool = False  # its tables have parameters and bytes kept
    features: bool = False  # features of the test samples are stored with each result
    hidden: bool = False  # results go to a hidden folder, which reports skip


def grid(fields: Mapping[str, Sequence[object]]) -> tuple[Case, ...]:
    """All combinations; `lambda1+lambda2` is one axis on which both fields have the same value."""
    axes = [[dict.fromkeys(name.split("+"), value) for value in values] for name, values in fields.items()]
    return tuple({k: v for part in point for k, v in part.items()} for point in itertools.product(*axes))


def drawn(fields: Mapping[str, Sequence[object]]) -> tuple[Case, ...]:
    """The preset and `POINTS` points of a grid, always the same ones: all learners get as many trials."""
    points = grid(fields)
    ranked = sorted(points, key=lambda point: hashlib.sha256(json.dumps(point, sort_keys=True).encode()).digest())
    return {}, *(point for point in points if point in ranked[:POINTS])


POINTS = 36
_PAPER_RATES = (0.001, 0.01, 0.1)  # of alpha and beta in the supplement's grid
PAPER_STREAMS = ("pmnist", "scifar10", "scifar100", "sminiimagenet")
PAPER_LEARNERS = ("gem", "mer", "mir", "er", "ctn", "scale")
FAMILIES = (  # systems that the paper names: regularisation, structure, and memory with some that it runs
    *("ewc", "si", "mas", "lwf", "npc", "isyana"),
    *("pnn", "independent", "acl", "den", "learn-to-grow", "bocl", "kiera", "adcn"),  # the last two: few labels
    *("icarl", "hal", "er", "derpp", "scale"),
)
_VARIANTS = (  # SCALE with one choice made otherwise, for claims of the paper
    *("ScaleReversal", "ScaleTaskDiscriminators", "ScalePlainDiscriminator"),
    *("ScaleOrthogonal", "ScaleOneLevel", "ScaleTwoMemories"),
)
SCALE_VARIANTS = tuple(f"scale_cl.experiments.scale_variants:{name}" for name in _VARIANTS)
_PLAIN_DISCRIMINATOR = SCALE_VARIANTS[_VARIANTS.index("ScalePlainDiscriminator")]
_PRINTED: Case = {"ce": "together", "adversarial": "plus", "film": "sum"}  # equations 1 to 3 to the letter
OURS = ("scale-plus", "scale")  # the first of these that a comparison has is tested against the others
JOINT_TRAINING = ("joint",)  # learners that are trained on all tasks shuffled together: upper bounds

# Milliseconds per step of each learner in the middle of a stream, rounded, on one core of an ordinary server:
# on the MLP (PMNIST), on the ResNet with 32x32 images, and with 84x84 images.
CPU_MILLISECONDS = {
    "scale": (5, 180, 1200),
    "scale-ema": (5, 180, 1200),
    "scale-plus": (16, 340, 2300),
    "er": (2.5, 110, 700),
    "mir": (7, 240, 1600),
    "mer": (6, 300, 2000),
    "der": (3, 80, 550),
    "derpp": (4, 120, 800),
    "agem": (3, 80, 550),
    "gem": (12, 450, 3000),
    "ctn": (12, 370, 2500),
    "acl": (10, 90, 600),
    "hal": (8, 140, 900),
    "icarl": (2.5, 110, 700),
    "ewc": (2, 30, 150),
    "si": (2, 30, 150),
    "mas": (2, 30, 150),
    "lwf": (1.5, 30, 180),
    "npc": (2, 30, 200),
    "isyana": (2, 40, 250),
    "pnn": (15, 150, 900),
    "den": (4, 10, 60),
    "learn-to-grow": (2.5, 60, 400),
    "bocl": (15, 30, 150),
    "kiera": (17, 30, 150),
    "adcn": (16, 25, 140),
    "independent": (1, 20, 120),
    "joint": (1, 30, 200),
    "finetune": (1, 20, 120),
}

_RATES, _FINE_RATES = (0.01, 0.03, 0.1, 0.2), (0.01, 0.03, 0.05, 0.1, 0.2, 0.3)
_Axes = dict[str, Sequence[object]]
_REPLAY: _Axes = {"lr": _RATES, "replay": (10, 32, 64), "updates": (1, 2, 3)}
_ONE_FORWARD: _Axes = {"forward": ("separate", "joint")}
_STORED: _Axes = {**_REPLAY, **_ONE_FORWARD, "logits_from": ("step", "task-end"), "alpha": (0.3, 1.0, 3.0)}
SEARCH_AXES: dict[str, _Axes] = {  # what is searched of each learner, `POINTS` points of all
    "er": {**_REPLAY, "ce": ("added", "together")},  # together: in one forward
    "mir": {**_REPLAY, **_ONE_FORWARD, "candidates": (50, 100)},
    "mer": {**_REPLAY, "ce": ("added", "together"), "reptile_rate": (0.3, 0.6, 1.0)},
    "gem": {"lr": _RATES, "updates": (1, 2, 3), "margin": (0.0, 0.5, 1.0)},
    "agem": {"lr": _RATES, "updates": (1, 2, 3), "replay": (64, 128, 256)},
    "der": _STORED,
    "derpp": {**_STORED, "beta": (0.5, 1.0)},
    "hal": {**_REPLAY, "anchoring": (0.1, 0.3, 1.0)},
    "icarl": {**_REPLAY, "distillation": (0.3, 1.0, 3.0)},
    "ctn": {
        "inner_lr": (0.01, 0.03, 0.1),
        "outer_lr": (0.01, 0.05, 0.1),
        "replay": (10, 20, 40),
        "inner_steps": (1, 2),
        "outer_steps": (1, 2),
        "distillation": (30.0, 100.0, 300.0),
        "reuse_batch+stored_in_training": (False, True),
    },
    "scale": {
        "inner_lr": (0.01, 0.03, 0.1),
        "outer_lr": (0.01, 0.05, 0.1),
        "replay": (10, 32, 64),
        "inner_steps": (1, 2),
        "outer_steps": (1, 2),
        "lambda1+lambda2": (1.0, 3.0),
        "lambda3": (0.03, 0.09, 0.3),
    },
    "acl": {
        "lr": (0.001, 0.003, 0.01, 0.03),
        "discriminator_lr": (0.0001, 0.001, 0.01),
        "shared_steps": (1, 3, 5),
        "adversarial": (0.005, 0.05, 0.2),
        "orthogonal": (0.03, 0.1, 0.3),
    },
    "independent": {"lr": _FINE_RATES, "updates": (1, 2, 3, 4, 5, 6)},
    "joint": {"lr": _FINE_RATES, "epochs": (1, 2, 3, 5, 7, 10)},
}
_TOP_RATES = (*_RATES, 0.4)
_AVERAGES = (0.98, 0.99, 0.995)
# Higher rates and weights of consistency brought nothing to ER and DER++: results/beyond/pmnist-wide-grid.
_EXTRA: _Axes = {"lr": _RATES, "updates": (2, 3, 4), "weight_average": _AVERAGES, "consistency": (0.1, 0.3)}
BEYOND_AXES: dict[str, _Axes] = {  # with the extras of `scale-plus`, at most four times the cost of SCALE
    "scale": {
        "inner_lr": _TOP_RATES,
        "inner_steps": (1, 2),
        "outer_steps": (1, 2),
        "replay": (32, 55),
        "weight_average": _AVERAGES,
        "consistency": (0.1, 0.3, 1.0),
    },
    "er": {**_EXTRA, "replay": (32, 64), "ce": ("added", "together")},
    "derpp": {**_EXTRA, "replay": (16, 30), **_ONE_FORWARD, "logits_from": ("step", "task-end")},  # two draws
    "joint": {
        "lr": _TOP_RATES,
        "epochs": (3, 5, 10),
        "weight_average": (0.99, 0.995, 0.999),
        "consistency": (0.0, 0.1),
    },
}
SEARCH_STREAMS = ("pmnist", "scifar100")
IMAGES_SEARCHED_ON = "scifar100"  # for all streams of colour images; another stream is searched on its own tasks
GRID_LEARNERS = ("scale",)  # searched over a grid from the command line, if none is named
UNIFORM_SAMPLE: Case = {"memory_policy": "reservoir"}
NORM_ON_MEMORY: Case = {"norm_on_memory": True}
_EXTRAS: Case = {  # of `scale-plus` on PMNIST
    "memory_policy": "class-ring",
    "weight_average": 0.985,
    "average_warmup": True,
    "consistency": 0.1,
}
_EXTRAS_ON_IMAGES: Case = {**NORM_ON_MEMORY, "weight_average": 0.995, "augment": "flip", "average_flips": True}

_MATCHED = Experiment(
    "all methods with a uniform sample, batch norm measured on it, and what their search has found",
    streams=PAPER_STREAMS,
    learners=tuple(SEARCH_AXES),
    everywhere=UNIFORM_SAMPLE,
    on_images=NORM_ON_MEMORY,
    searched="search",
    first_seed=200,
    orders=(3, 4, 5),
)

EXPERIMENTS = {
    "main": Experiment("accuracy and forgetting of all methods", PAPER_STREAMS, PAPER_LEARNERS),
    "families": Experiment("regularisation, structure and memory in one pass", PAPER_STREAMS, FAMILIES, sizes=True),
    "memory": Experiment(
        "accuracy against memory size, with joint training as the upper bound",
        streams=("scifar100", "sminiimagenet"),
        learners=("mer", "mir", "ctn", "scale"),
        cases=grid({"memory": (50, 100, 150, 200)}),
        bounds=JOINT_TRAINING,
    ),
    "ablation": Experiment(
        "SCALE complete, and without A the adversary, B DER++ (and so replay), C the parameter generator, A and C",
        streams=("scifar10", "scifar100"),
        learners=("scale",),
        cases=(
            {},
            {"adversary": False},
            {"derpp": False},
            {"generator": False},
            {"adversary": False, "generator": False},
        ),
    ),
    "sensitivity": Experiment(
        "SCALE over the weights of its losses",
        streams=("scifar100",),
        learners=("scale",),
        cases=grid({"lambda1+lambda2": (1.0, 3.0), "lambda3": (0.03, 0.09, 0.3, 0.9)}),
    ),
    "rates": Experiment(
        "SCALE over its learning rates alpha, beta and mu",
        streams=("scifar100",),
        learners=("scale",),
        cases=grid({"inner_lr": _PAPER_RATES, "outer_lr": _PAPER_RATES, "adversarial_lr": (0.0001, 0.001, 0.01)}),
    ),
    "variants": Experiment(
        "SCALE, and SCALE with one of its choices made otherwise",
        streams=("pmnist", "scifar100"),
        learners=("scale", *SCALE_VARIANTS),
    ),
    "departures": Experiment(
        "SCALE exactly as printed, each departure from that alone, all together, and then other readings alone",
        streams=("pmnist", "scifar100"),
        learners=("scale",),
        cases=(
            _PRINTED,
            *({**_PRINTED, "ce": value} for value in ("batch", "added")),
            *({**_PRINTED, "adversarial": value} for value in ("minus", "fake")),
            {**_PRINTED, "film": "branches"},
            {},
            {"second_order": True},
            {"noise": False},
            {"adversarial": "fake"},
            {"discriminator_on": "film"},
            {"refresh_logits": True},
            {"memory_policy": "reservoir"},
            {"norm_on_memory": True},
        ),
        preset="paper",
    ),
    "steps": Experiment(
        "execution times of CTN and SCALE with the same numbers of inner and outer steps, one run at a time",
        streams=PAPER_STREAMS,
        learners=("ctn", "scale"),
        cases=grid({"inner_steps+outer_steps": (1, 2)}),
        seeds=1,
        alone=True,
    ),
    "time": Experiment(
        "execution times, one run at a time with nothing beside it", PAPER_STREAMS, PAPER_LEARNERS, alone=True
    ),
    "search": Experiment(
        "a grid of equal size for each learner, on held-out training images of the tasks reserved for search",
        streams=SEARCH_STREAMS,
        learners=tuple(SEARCH_AXES),
        grids={learner: drawn(axes) for learner, axes in SEARCH_AXES.items()},
        everywhere=UNIFORM_SAMPLE,
        on_images=NORM_ON_MEMORY,
        seeds=1,
        part="search",
    ),
    "paper-search": Experiment(
        "the grid of the paper's supplement for SCALE, on the tasks reserved for search",
        streams=("pmnist", "scifar100", "sminiimagenet"),
        learners=GRID_LEARNERS,
        cases=grid(
            {
                "lambda1+lambda2": (1.0, 3.0),
                "lambda3": (0.03, 0.09, 0.3, 0.9),
                "inner_lr": _PAPER_RATES,
                "outer_lr": _PAPER_RATES,
            }
        ),
        seeds=1,
        part="search",
    ),
    "matched": _MATCHED,
    "unsearched": replace(
        _MATCHED,
        line="all methods as in `matched`, with their presets in place of what a search has found",
        searched="",
    ),
    "beyond-search": Experiment(
        "a grid of equal size for each learner with the extras of `scale-plus`, on the tasks reserved for search",
        streams=SEARCH_STREAMS,
        learners=tuple(BEYOND_AXES),
        grids={learner: drawn(axes) for learner, axes in BEYOND_AXES.items()},
        everywhere=_EXTRAS,
        on_images=_EXTRAS_ON_IMAGES,
        seeds=1,
        part="search",
    ),
    "beyond": Experiment(
        "`scale-plus`, with and without adversary and generator, beside others with the same extras and a search",
        streams=PAPER_STREAMS,
        learners=("scale-plus", *BEYOND_AXES),
        grids=dict.fromkeys(BEYOND_AXES, ({},)) | {"scale-plus": ({}, {"adversary": False, "generator": False})},
        everywhere=_EXTRAS,
        on_images=_EXTRAS_ON_IMAGES,
        searched="beyond-search",
        first_seed=200,
        orders=(3, 4, 5),
    ),
    "claims": Experiment(
        "parameters and their growth, the adversary's cost, the alignment of features, what the discriminator forgets",
        streams=PAPER_STREAMS,
        learners=("scale", _PLAIN_DISCRIMINATOR),
        grids={"scale": ({}, {"adversary": False}), _PLAIN_DISCRIMINATOR: ({},)},
        seeds=1,
        alone=True,
        features=True,
        hidden=True,
    ),
}

ALL = "all"


def chosen(name: str) -> dict[str, Experiment]:
    """The experiment named `name`, or all of them for `all`."""
    if name == ALL:
        return dict(EXPERIMENTS)
    if name not in EXPERIMENTS:
        raise ConfigError(f"unknown experiment {name!r}; {suggest(name, [*EXPERIMENTS, ALL])}")
    return {name: EXPERIMENTS[name]}
