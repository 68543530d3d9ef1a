"""Settings of our learners that differ from the defaults of their classes, per preset and stream.

`paper` has what was published, for each learner as far as something was:

* `scale`, `ctn`, `er`, `mir`, `mer` and `gem`: the supplement of SCALE's paper for every stream, a ring as memory and
  torch's running averages in batch norm. What it leaves open follows its text or, for `ctn`, the authors' code.
* Methods that the paper only names, with the settings with which they were published: those of the A-GEM paper for one
  pass for `ewc` (EWC++), `si`, `mas` and `pnn`; the authors' own, apart from their epochs, for `hal`, `icarl`,
  `isyana`, `den` and `acl`. HAL's memory is a ring per class.
* `der`, `derpp`, `agem` and `er-ace`: rate and number of updates that the supplement has for `er`, whatever the preset.
  The memory of DER and DER++ is their authors' reservoir.
* `scale-ema` and `scale-plus` are ours, whatever the preset: `scale-ema` is the `scale` of the preset with a weight
  average, `scale-plus` is the same in both.
* All others: chosen by us for one pass, where neither their papers nor a survey (for `scr`) have settings that fit.

A learner without an entry has the defaults of its class in both presets.

`ours` is what we recommend: a uniform sample as SCALE's memory and, on images, batch-norm statistics measured on the
memory; gradients are clipped on images of the user's own, where the paper's rates can diverge below 32 x 32; three
updates per batch for `icarl` too, as for `er`, and for `hal` on small grey images and features; rates and penalties of
our own for `den` and for the methods that regularise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from scale_cl.errors import ConfigError
from scale_cl.settings import suggest

PresetName = Literal["paper", "ours"]
PRESET_NAMES: tuple[str, ...] = get_args(PresetName)
DEFAULT_PRESET: PresetName = "ours"
USER_IMAGES = ("folder:", "csv:")  # how streams of the user's own images are named
USER_FEATURES = "features:"  # the user's own feature vectors or grey images, in an estimator
# Where `Preset.permuted` applies; USER_FEATURES: an estimator, except on colour images.
_PERMUTED = ("pmnist", "digits", "split-digits", USER_FEATURES)
Values = Mapping[str, Any]


@dataclass(frozen=True)
class Preset:
    """Settings of one learner by stream; the later of these wins where several apply."""

    everywhere: Values = field(default_factory=dict)
    permuted: Values = field(default_factory=dict)  # small grey images and features: `_PERMUTED` has the streams
    user_images: Values = field(default_factory=dict)  # of any size, perhaps few
    streams: Mapping[str, Values] = field(default_factory=dict)  # by name

    def on(self, stream: str) -> dict[str, Any]:
        """The settings on a stream."""
        values = dict(self.everywhere)
        if stream in _PERMUTED:
            values |= self.permuted
        if stream.startswith(USER_IMAGES):
            values |= self.user_images
        return values | dict(self.streams.get(stream, {}))


WITHOUT_BOUNDARIES: Values = {"memory": 500, "memory_budget": "total", "memory_policy": "balanced"}
"""On a stream without boundaries, for every learner that has such settings: one memory for the whole stream."""
_SCALE_RATES = {"inner_lr": 0.1, "outer_lr": 0.01}  # on permuted streams
# The paper's inner rate for permuted streams is the best for digits, but lets SCALE diverge on split MNIST.
_SCALE_STREAMS = {USER_FEATURES: {"inner_lr": 0.03}, "split-digits": {"inner_lr": 0.03}}
# `scale-plus`: what gained most of the extras that all learners have; images of the user's own may not be flipped
_AVERAGED = {"weight_average": 0.995, "average_warmup": True, "consistency": 0.1}
_PLUS = {"inner_steps": 2, "memory_policy": "class-ring", "augment": "flip", "average_flips": True, **_AVERAGED}
_NO_FLIPS = {"augment": "none", "average_flips": False}
_PLUS_PERMUTED = {**_SCALE_RATES, **_NO_FLIPS, "outer_steps": 2, "weight_average": 0.98, "norm_on_memory": False}
_PLUS_STREAMS = _SCALE_STREAMS | {"pmnist": {"replay": 55, "weight_average": 0.985}}  # at four times its cost
_PLUS_PRESET = Preset(_PLUS, permuted=_PLUS_PERMUTED, user_images={"clip": 5.0, **_NO_FLIPS}, streams=_PLUS_STREAMS)
_AS_PRINTED = {"memory_policy": "ring", "norm_on_memory": False}
_CTN_RATES = {"inner_lr": 0.03, "outer_lr": 0.1}
# Standardised features are larger than pixels in [0, 1]: at the rate for permuted streams these forget or diverge.
_ON_FEATURES = {USER_FEATURES: {"lr": 0.03}}
_DEN_STEPS = {"lr": 0.1, "head_steps": 10, "retrain_steps": 20, "expand_steps": 10}  # of 100 batches of a task
_BOTH = {  # learners to which nothing of ours was added
    "mer": Preset(permuted={"lr": 0.03}),
    "gem": Preset(streams={"sminiimagenet": {"lr": 0.05}}),
    "acl": Preset(
        permuted={"lr": 0.001, "discriminator_lr": 0.0001},
        streams={"sminiimagenet": {"lr": 0.003, "adversarial": 0.005}},
    ),
    "joint": Preset(permuted={"lr": 0.1}),
    "pnn": Preset(permuted={"lr": 0.1}, streams=_ON_FEATURES),
    "independent": Preset(permuted={"lr": 0.1}),
    "learn-to-grow": Preset(permuted={"lr": 0.1, "search_steps": 20, "candidates": 1}),
    "bocl": Preset(permuted={"lr": 0.1, "search_steps": 10}),
    "kiera": Preset(streams={USER_FEATURES: {"lr": 0.0001}}),
    "adcn": Preset(streams={USER_FEATURES: {"lr": 0.0001}}),
}
PRESETS: dict[str, dict[str, Preset]] = {
    "paper": {
        "scale": Preset(everywhere=_AS_PRINTED, permuted=_SCALE_RATES),
        "scale-ema": Preset(
            everywhere=_AS_PRINTED | {"weight_average": 0.99}, permuted=_SCALE_RATES | {"weight_average": 0.95}
        ),
        "scale-plus": _PLUS_PRESET,
        "ctn": Preset(everywhere={"reuse_batch": True, "stored_in_training": True}, permuted=_CTN_RATES),
        "ewc": Preset(everywhere={"mode": "running", "implicit": False}, permuted={"interval": 10}),
        "si": Preset(everywhere={"implicit": False}, permuted={"lr": 0.1}),
        "mas": Preset(everywhere={"decay": 0.0, "implicit": False}, permuted={"lr": 0.1}),
        "hal": Preset(everywhere={"memory_policy": "class-ring"}, permuted={"lr": 0.1, "anchoring": 0.1}),
        "icarl": Preset(),
        "lwf": Preset(),
        "npc": Preset(),
        "isyana": Preset(everywhere={"lr": 1.0, "other_lr": 0.01, "penalty": 1.0}),
        "den": Preset(everywhere={"l1": 1e-5, "threshold": 0.01}, permuted=_DEN_STEPS),
        **_BOTH,
    },
    "ours": {
        "scale": Preset(
            permuted=_SCALE_RATES | {"norm_on_memory": False}, user_images={"clip": 5.0}, streams=_SCALE_STREAMS
        ),
        "scale-ema": Preset(
            everywhere={"weight_average": 0.99},
            permuted=_SCALE_RATES | {"norm_on_memory": False, "weight_average": 0.95},
            user_images={"clip": 5.0},
            streams=_SCALE_STREAMS,
        ),
        "scale-plus": _PLUS_PRESET,
        "ctn": Preset(permuted=_CTN_RATES),
        "ewc": Preset(permuted={"lr": 0.1}, streams=_ON_FEATURES),
        "si": Preset(permuted={"lr": 0.1, "penalty": 0.03}, streams=_ON_FEATURES),
        "mas": Preset(permuted={"lr": 0.1, "penalty": 0.03}, streams=_ON_FEATURES),
        "lwf": Preset(permuted={"lr": 0.1, "distillation": 0.5}, streams=_ON_FEATURES),
        "npc": Preset(permuted={"lr": 0.1, "alpha": 0.03}, streams=_ON_FEATURES),
        "isyana": Preset(permuted={"lr": 0.1}),
        "den": Preset(permuted=_DEN_STEPS | {"stay": 0.01}),
        # With this clip five seeds of Split CIFAR-100 were steady; without it only 5 slots (`paper`) were tried.
        "hal": Preset(
            {"clip": 5.0},
            permuted={"lr": 0.1, "anchoring": 0.1, "updates": 3, "clip": 0.0},
            streams=_ON_FEATURES,
        ),
        "icarl": Preset(everywhere={"updates": 3}, permuted={"lr": 0.1}, streams=_ON_FEATURES),
        **_BOTH,
    },
}


def check_preset(name: str | None) -> str:
    """The preset of that name, by default `ours`."""
    if name is not None and name not in PRESETS:
        raise ConfigError(f"unknown preset {name!r}; {suggest(name, PRESET_NAMES)}")
    return name or DEFAULT_PRESET
