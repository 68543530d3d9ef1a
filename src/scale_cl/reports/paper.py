"""The paper's numbers as data: main table, ablations, sensitivity and times; and the settings that rows are named by.

SCALE, ECML PKDD 2022 (arXiv 2209.01558), paper and supplement; mean and deviation of five seeds, in percent. The order
and the colours of the learners in tables and figures stand here too; a learner that is not listed gets its own.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PrintedValue:
    """A number as printed: mean and deviation."""

    mean: float
    deviation: float


@dataclass(frozen=True)
class Target:
    """What the paper reports for one learner on one stream."""

    acc: PrintedValue
    fm: PrintedValue


def _target(acc: float, acc_deviation: float, fm: float, fm_deviation: float) -> Target:
    return Target(PrintedValue(acc, acc_deviation), PrintedValue(fm, fm_deviation))


METHOD = "scale"  # the paper's own
LEARNER_ORDER = (
    *("finetune", "ewc", "si", "mas", "lwf", "npc"),
    *("icarl", "gem", "agem", "mer", "mir", "er", "hal", "der", "derpp"),
    *("acl", "ctn", "scale", "scale-ema", "scale-plus", "pnn", "independent", "joint"),
)
COLOURS = {  # numbers in the palette of the figures
    **{"scale": 0, "ctn": 1, "er": 2, "mir": 3, "mer": 4, "gem": 5, "joint": 6, "finetune": 7, "derpp": 8},
    **{"scale-ema": 9, "scale-plus": 6, "agem": 3, "der": 4, "acl": 5},
    **{"ewc": 1, "si": 2, "mas": 3, "lwf": 4, "npc": 5, "icarl": 6, "hal": 8, "pnn": 9, "independent": 2},
}

STREAM_ORDER = ("pmnist", "scifar10", "scifar100", "sminiimagenet")
TASKS = {"pmnist": 20, "scifar10": 5, "scifar100": 17, "sminiimagenet": 17}
SPLIT = ("scifar10", "scifar100", "sminiimagenet")  # streams whose tasks have disjoint classes, in some order
MEMORY = 50

MAIN: dict[str, dict[str, Target]] = {
    "sminiimagenet": {
        "gem": _target(54.50, 0.93, 7.40, 0.89),
        "mer": _target(53.38, 1.74, 10.96, 1.57),
        "mir": _target(54.92, 2.29, 8.96, 1.68),
        "er": _target(54.62, 0.80, 9.50, 1.09),
        "ctn": _target(63.42, 1.18, 3.84, 1.26),
        "scale": _target(64.96, 1.10, 2.60, 0.60),
    },
    "scifar100": {
        "gem": _target(60.22, 1.07, 9.04, 0.84),
        "mer": _target(59.48, 1.31, 10.44, 1.11),
        "mir": _target(61.26, 0.46, 9.06, 0.63),
        "er": _target(60.68, 0.57, 9.70, 0.97),
        "ctn": _target(67.62, 0.76, 6.20, 0.97),
        "scale": _target(70.24, 0.76, 4.16, 0.48),
    },
    "pmnist": {
        "gem": _target(71.10, 0.47, 10.16, 0.41),
        "mer": _target(68.70, 0.35, 12.04, 0.30),
        "mir": _target(71.90, 0.49, 11.74, 0.34),
        "er": _target(74.76, 0.56, 9.06, 0.58),
        "ctn": _target(78.70, 0.37, 5.84, 0.36),
        "scale": _target(80.70, 0.46, 2.90, 0.27),
    },
    "scifar10": {
        "gem": _target(75.90, 1.30, 12.74, 2.85),
        "mer": _target(79.40, 1.51, 9.70, 1.07),
        "mir": _target(79.00, 1.16, 9.28, 0.91),
        "er": _target(79.76, 1.26, 8.68, 1.49),
        "ctn": _target(83.38, 0.80, 5.68, 1.43),
        "scale": _target(84.90, 0.91, 4.46, 0.40),
    },
}

ABLATIONS = {  # letter: the setting that is off, and its description
    "A": ("adversary", "without the adversary"),
    "B": ("derpp", "without DER++"),
    "C": ("generator", "without the parameter generator"),
}
ABLATION_TARGETS: dict[str, dict[str, Target]] = {
    "scifar10": {
        "A": _target(83.66, 1.42, 6.26, 1.23),
        "B": _target(76.08, 2.83, 16.32, 3.57),
        "C": _target(81.68, 1.22, 7.12, 1.63),
    },
    "scifar100": {
        "A": _target(68.58, 1.88, 5.88, 2.06),
        "B": _target(45.32, 2.09, 27.68, 1.95),
        "C": _target(66.64, 1.71, 5.76, 0.78),
    },
}

SENSITIVITY: dict[str, dict[tuple[float, float], Target]] = {  # (lambda1 = lambda2, lambda3)
    "scifar100": {
        (3.0, 0.9): _target(69.50, 0.54, 5.50, 0.44),
        (3.0, 0.3): _target(69.34, 1.04, 5.12, 0.53),
        (3.0, 0.09): _target(69.26, 1.22, 5.20, 1.08),
        (3.0, 0.03): _target(69.88, 0.98, 4.82, 0.55),
        (1.0, 0.9): _target(69.20, 0.76, 5.16, 0.85),
        (1.0, 0.3): _target(69.24, 0.84, 5.44, 1.19),
        (1.0, 0.09): _target(69.80, 0.73, 4.88, 0.90),
        (1.0, 0.03): _target(70.24, 0.76, 4.16, 0.48),
    },
}

SECONDS_DEVICE = "RTX 3080 laptop"
SECONDS: dict[str, dict[str, float]] = {
    "pmnist": {"scale": 41.33, "ctn": 52.01, "er": 26.28, "mir": 23.56, "mer": 26.80, "gem": 28.53},
    "scifar10": {"scale": 142.1, "ctn": 358.5, "er": 250.86, "mir": 242.52, "mer": 257.44, "gem": 151.96},
    "scifar100": {"scale": 108.33, "ctn": 321.87, "er": 211.94, "mir": 218.24, "mer": 222.39, "gem": 314.24},
    "sminiimagenet": {"scale": 193.73, "ctn": 298.33, "er": 290.27, "mir": 254.20, "mer": 261.17, "gem": 540.46},
}

# What runs of the paper's learners have by default (the preset `ours`), and what the preset `paper` changes in that.
_EVERYWHERE: dict[str, object] = {
    "backbone": "auto",
    "memory_budget": "task",
    "memory_policy": "ring",
    "norm_momentum": 0.1,
}
_SETTINGS: dict[str, dict[str, object]] = {  # equal on all streams; a field that is not listed is off
    "gem": {"updates": 1, "margin": 0.5, "ridge": 0.001},
    "mer": {"updates": 3, "replay": 64, "reptile_rate": 0.3, "ce": "added", "across_rate": 1.0},
    "mir": {"updates": 3, "replay": 10, "candidates": 50, "lr": 0.03, "forward": "separate"},
    "er": {"updates": 3, "replay": 10, "lr": 0.03, "ce": "added"},
    "ctn": {
        **{"replay": 64, "semantic": 0.2, "inner_steps": 2, "outer_steps": 2, "clip": 1.0},
        **{"distillation": 100.0, "temperature": 5.0},
    },
    "scale": {
        **{"memory_policy": "reservoir", "replay": 64, "adversarial_lr": 0.001},
        **{"lambda1": 1.0, "lambda2": 1.0, "lambda3": 0.03},
        **{"inner_steps": 1, "outer_steps": 1, "discriminator_steps": 1},
        **{"adversary": True, "derpp": True, "generator": True, "noise": True},
        **{"ce": "batch", "adversarial": "minus", "film": "branches", "forward": "joint", "discriminator_on": "common"},
    },
}
_RATES: dict[str, dict[str, dict[str, object]]] = {  # by learner and stream ("": the other streams of the paper)
    "gem": {"sminiimagenet": {"lr": 0.05}, "": {"lr": 0.03}},
    "mer": {"pmnist": {"lr": 0.03}, "": {"lr": 0.05}},
    "ctn": {"pmnist": {"inner_lr": 0.03, "outer_lr": 0.1}, "": {"inner_lr": 0.01, "outer_lr": 0.05}},
    "scale": {
        "pmnist": {"inner_lr": 0.1, "outer_lr": 0.01, "norm_on_memory": False},
        "": {"inner_lr": 0.01, "outer_lr": 0.1, "norm_on_memory": True},
    },
}

_AS_PRINTED: dict[str, dict[str, object]] = {
    "scale": {"memory_policy": "ring", "norm_on_memory": False},
    "ctn": {"reuse_batch": True, "stored_in_training": True},
}

LEARNERS = tuple(_SETTINGS)


def usual_settings(learner: str, stream: str) -> dict[str, object]:
    """A learner's default settings; on streams that are not the paper's, without those that depend on the stream."""
    if learner not in _SETTINGS:
        return {"memory": MEMORY}
    by_stream = _RATES.get(learner, {})
    rates = by_stream.get(stream, by_stream.get("", {})) if stream in TASKS else {}
    return {"memory": MEMORY, **_EVERYWHERE, **_SETTINGS[learner], **rates}


def printed_settings(learner: str, stream: str) -> dict[str, object]:
    """What the preset `paper` has otherwise than `usual_settings`, on a stream of the paper."""
    usual = usual_settings(learner, stream)
    return {name: value for name, value in _AS_PRINTED.get(learner, {}).items() if usual.get(name) != value}


def depends_on_stream(learner: str) -> set[str]:
    """Settings of a learner that are known on the paper's streams only."""
    return {field for rates in _RATES.get(learner, {}).values() for field in rates}
