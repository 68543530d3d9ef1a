"""All learners by name: ours, and methods from outside this package.

A method from outside is a subclass of `Learner`, named by an installed entry point of the group `scale_cl.learners`, by
`package.module:Class` or by `file.py:Class`; see `scale_cl.plugins` for which names are imported.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import get_args

import torch

from scale_cl.engine import Compute, LearnerConfig
from scale_cl.errors import ConfigError, others_code, shown
from scale_cl.learners.learner import Learner, Traits
from scale_cl.learners.presets import PRESETS, WITHOUT_BOUNDARIES, Preset, check_preset
from scale_cl.nets.custom_backbone import BackboneLike
from scale_cl.plugins import Plugins, is_reference
from scale_cl.settings import Settings, build, suggest
from scale_cl.streams import InputSpec, Scenario

OUTSIDE = Plugins("learner", "scale_cl.learners")
_OURS = {  # name: module, class, description
    "scale": ("scale", "Scale", "SCALE: FiLM by a parameter generator, one discriminator, DER++"),
    "scale-ema": ("scale", "Scale", "SCALE that predicts by an exponential moving average of its base parameters"),
    "scale-plus": ("scale", "Scale", "SCALE with extras: average, two inner steps, flips, consistency, class ring"),
    "er": ("er", "Er", "ER-Ring: SGD on the batch and on samples replayed from a ring per task"),
    "er-ace": ("er_ace", "ErAce", "ER-ACE: ER whose batch competes only among the classes that are in it"),
    "mir": ("mir", "Mir", "MIR: ER that replays the samples which the coming step would hurt most"),
    "mer": ("mer", "Mer", "MER: ER in sequential steps, then Reptile interpolation"),
    "der": ("der", "Der", "DER: ER that keeps the logits which samples had when they were stored"),
    "derpp": ("der", "Derpp", "DER++: DER, and cross-entropy on a second draw"),
    "agem": ("agem", "Agem", "A-GEM: the batch's gradient, projected so that a replay batch does not suffer"),
    "gem": ("gem", "Gem", "GEM: the batch's gradient, projected so that no finished task's memory suffers"),
    "hal": ("hal", "Hal", "HAL: ER that holds the outputs on anchors, the points that would be forgotten most"),
    "icarl": ("icarl", "Icarl", "iCaRL: replay with distillation, and prediction by the nearest mean of exemplars"),
    "ctn": ("ctn", "Ctn", "CTN: FiLM by a controller that a semantic memory trains, and distillation"),
    "scr": ("scr", "Scr", "SCR: supervised contrastive replay, and prediction by the nearest class mean"),
    "gdumb": ("gdumb", "Gdumb", "GDumb: a balanced memory, and at task end a network trained from scratch on it"),
    "slda": ("slda", "Slda", "SLDA: streaming linear discriminant analysis on the features of a frozen backbone"),
    "acl": ("acl", "Acl", "ACL: an adversarial shared module and a private module per task, no memory"),
    "ewc": ("ewc", "Ewc", "EWC, online EWC, EWC++: a penalty on moving weights with a large Fisher information"),
    "si": ("si", "Si", "SI: a penalty on moving weights whose way through training took much off the loss"),
    "mas": ("mas", "Mas", "MAS: a penalty on moving weights that the outputs are sensitive to"),
    "lwf": ("lwf", "Lwf", "LwF: distillation from the network before the task, on the batch and through old heads"),
    "npc": ("npc", "Npc", "NPC: a learning rate per neuron, which falls with its importance"),
    "isyana": ("isyana", "Isyana", "ISYANA: neurons are held unless they serve classes that are near the task"),
    "pnn": ("pnn", "Pnn", "PNN: a network column per task that reads the frozen columns of earlier tasks"),
    "den": (
        "den",
        "Den",
        "DEN: selected units are retrained, more are added if the loss stays high, some are split",
    ),
    "learn-to-grow": (
        "learn_to_grow",
        "LearnToGrow",
        "Learn to Grow: per layer, a search decides whether a task reuses, adapts or replaces a copy",
    ),
    "bocl": ("bocl", "Bocl", "BOCL, RCL: frozen units and new ones per task, as many per layer as a search finds"),
    "kiera": ("adcn", "Kiera", "KIERA: clusters of growing autoencoders, trained without labels, and replay"),
    "adcn": ("adcn", "Adcn", "ADCN: clusters of growing autoencoders, trained without labels, and distillation"),
    "independent": ("independent", "Independent", "a network per task and nothing shared: no forgetting, no transfer"),
    "joint": ("joint", "Joint", "plain SGD on all tasks shuffled together: the upper bound"),
    "finetune": ("finetune", "Finetune", "plain SGD on the batch, no memory: the lower bound"),
}


@dataclass(frozen=True)
class LearnerEntry:
    """One learner."""

    name: str
    kind: type[Learner]
    line: str  # what it is, in a line
    presets: dict[str, Preset]  # by name

    def settings(self, stream: str, preset: str | None = None, *, boundaries: bool = True) -> dict[str, object]:
        """Settings of a preset on a stream that differ from the defaults of the learner's class.

        A method from outside that has no such preset takes its `ours`, if it has that. Without boundaries, the memory
        is one for the whole stream.
        """
        preset = check_preset(preset)
        chosen = self.presets.get(preset, self.presets.get(check_preset(None), Preset()))
        try:
            values = chosen.on(stream)
            build(self.kind.config_class, values)
        except (TypeError, ValueError) as error:  # a ConfigError is a ValueError
            what = f"the preset {preset!r}" if self.presets else "the defaults"
            raise ConfigError(f"{what} of learner {self.name!r} cannot be used: {error}") from error
        if not boundaries:
            own = {field.name for field in dataclasses.fields(self.kind.config_class)}
            values |= {name: value for name, value in WITHOUT_BOUNDARIES.items() if name in own}
        return values


def names() -> list[str]:
    """Names of all learners: ours, and installed entry points of other packages."""
    return [*_OURS, *(name for name in OUTSIDE.names() if name not in _OURS)]


def entry(name: str | type[Learner]) -> LearnerEntry:
    """The learner called `name`, or of a class; ConfigError in one line if there is none, or it cannot be used."""
    if not isinstance(name, str):
        return entry_of(name, getattr(name, "name", "") or getattr(name, "__name__", str(name)).lower())
    if name in _OURS:
        OUTSIDE.check_not_taken(name)
        module, cls, line = _OURS[name]
        kind = getattr(importlib.import_module(f"scale_cl.learners.{module}"), cls)
        return LearnerEntry(name, kind, line, {preset: own[name] for preset, own in PRESETS.items() if name in own})
    OUTSIDE.require_given(name, "--learner ")
    if not is_reference(name) and name not in OUTSIDE.names():
        raise ConfigError(f"unknown learner {name!r}; {suggest(name, names())} (see `scale-cl list learners`)")
    return entry_of(OUTSIDE.find(name), name)


def _are_presets(found: object) -> bool:
    if not isinstance(found, Mapping):
        return False
    return all(name in PRESETS and isinstance(preset, Preset) for name, preset in found.items())


def _are_scenarios(found: object) -> bool:
    return isinstance(found, tuple | list) and bool(found) and all(one in get_args(Scenario) for one in found)


def _is_smaller(found: object) -> bool:
    return found is None or (isinstance(found, tuple) and [type(one) for one in found] == [str, str])


_ATTRIBUTES: tuple[tuple[str, Callable[[object], bool], str], ...] = (  # of a class from outside
    ("presets", _are_presets, f'map {" or ".join(PRESETS)} to Preset, such as {{"ours": Preset({{"lr": 0.1}})}}'),
    ("scenarios", _are_scenarios, f"be a tuple of some of {', '.join(get_args(Scenario))}"),
    ("traits", lambda found: isinstance(found, Traits), "be a Traits"),
    ("order", lambda found: found in ("tasks", "shuffled"), "be tasks or shuffled"),
    ("after", lambda found: isinstance(found, str), "be the name of a learner"),
    ("description", lambda found: isinstance(found, str), "be a line of text"),
    ("update_settings", lambda found: isinstance(found, tuple | list), "be a tuple of names of settings"),
    ("smaller", _is_smaller, "be None, or words and the name of a setting"),
    *(
        (attribute, lambda found: isinstance(found, bool), "be True or False")
        for attribute in ("needs_boundaries", "needs_labels", "learns_at_end")
    ),
)


def _is_dataclass(config: type) -> bool:
    """Whether a class derived from a dataclass is one too, or adds nothing to it."""
    return "__dataclass_fields__" in vars(config) or not inspect.get_annotations(config)


def entry_of(kind: object, name: str) -> LearnerEntry:
    """The entry of a class from outside; ConfigError in one line that says what it lacks to be a method."""
    what = f"learner {name!r}"
    if not isinstance(kind, type) or not issubclass(kind, Learner):
        raise ConfigError(f"{what} is {kind!r}; it must be a subclass of scale_cl.learners.Learner")
    if kind.update is Learner.update:
        raise ConfigError(f"{what} has no step: {kind.__name__} must define update(self, batch)")
    config = kind.config_class
    if not (isinstance(config, type) and issubclass(config, LearnerConfig) and _is_dataclass(config)):
        raise ConfigError(f"{what}: {kind.__name__}.config_class must be a dataclass derived from LearnerConfig")
    for field in dataclasses.fields(config):
        if field.name == "name":
            raise ConfigError(f"{what}: {config.__name__} has a setting 'name', which means the learner; rename it")
        if not field.metadata.get("doc"):
            raise ConfigError(
                f"{what}: setting {field.name!r} of {config.__name__} has no documentation; "
                "declare it with setting(default, documentation)"
            )
    for attribute, is_right, wanted in _ATTRIBUTES:
        found = getattr(kind, attribute)
        if not is_right(found):
            raise ConfigError(f"{what}: {kind.__name__}.{attribute} is {shown(found)}; it must {wanted}")
    line = (kind.description or kind.__doc__ or "").strip().partition("\n")[0]
    if not line:
        raise ConfigError(f"{what}: {kind.__name__} has no docstring; its first line is shown in lists and tables")
    return LearnerEntry(name, kind, line, dict(kind.presets))


def describe(name: str) -> str:
    """What a learner is, in a line."""
    return entry(name).line


def config_class(name: str | type[Learner]) -> type[LearnerConfig]:
    """The class of a learner's settings."""
    return entry(name).kind.config_class


def preset_settings(
    name: str | type[Learner], stream: str, preset: str | None = None, *, boundaries: bool = True
) -> dict[str, object]:
    """Settings of a preset for a learner on a stream that differ from the defaults of its class."""
    return entry(name).settings(stream, preset, boundaries=boundaries)


def make(
    learner: str | type[Learner] | LearnerEntry,
    spec: InputSpec,
    config: Settings | None = None,
    *,
    seed: int = 0,
    device: torch.device | str = "cpu",
    compute: Compute | None = None,
    backbone: BackboneLike | None = None,
) -> Learner:
    """A new learner of that name, class or entry; without a config, with the defaults of its class."""
    found = learner if isinstance(learner, LearnerEntry) else entry(learner)
    name, kind = found.name, found.kind
    assert config is None or isinstance(config, LearnerConfig)
    with others_code(kind, kind.build, f"learner {name!r} cannot be built for inputs of {list(spec.shape)}"):
        made = kind(spec, config, seed=seed, device=device, compute=compute, backbone=backbone)
    made.name = name
    return made
