"""The config of a run: three sections, `stream`, `learner` and `run`, and the order in which their sources apply.

Defaults, then the paper's settings for this learner on this stream, then the config file, then options and `--set`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from scale_cl.errors import ConfigError
from scale_cl.learners import LearnerConfig
from scale_cl.learners import registry as learners
from scale_cl.plugins import is_reference
from scale_cl.settings import Settings, as_dict, build, field_names, parse_assignment, parse_text, setting, suggest
from scale_cl.streams import catalog as streams
from scale_cl.streams.user_streams import OUTSIDE, UserStream, find_outside, is_own, own_name
from scale_cl.training.config_file import read_config_file

DEFAULT_LEARNER = "scale"
SECTIONS = ("stream", "learner", "run")
_DEVICES = re.compile(r"auto|cpu|cuda(:\d{1,2})?")


@dataclass(frozen=True)
class StreamSettings(Settings):
    """Which stream, and how much of it."""

    name: str = setting(
        "digits",
        "name of the stream, see `scale-cl list streams`; or folder:PATH, csv:FILE, module:function, file.py:function",
    )
    tasks: int | None = setting(None, "number of tasks from the first on; none for all", low=1)
    class_order: int | Literal["default", "natural"] = setting(
        "default",
        "order in which tasks get their classes: default (the stream's own), natural, or the seed of another",
        low=0,
        high=2**32 - 1,
    )
    part: Literal["continual", "search", "all"] = setting(
        "continual", "which tasks: the continual run's, the first three kept for search, or all"
    )
    scenario: Literal["task", "domain"] = setting(
        "task", "own images: a head for each task's own classes (task), or one head for all tasks (domain)"
    )
    size: int | None = setting(None, "own images: height and width to resize to; none: all have the same", low=1)
    channels: int = setting(3, "own images: 3 for colour, 1 for grey", choices=(1, 3))
    held_out: float = setting(
        0.2, "own images: share of a class to test with, where no split is given", above=0, below=1
    )

    @property
    def short_name(self) -> str:
        """The name without a path, fit for a folder's name."""
        if is_own(self.name):
            return Path(self.name.partition(":")[2]).absolute().stem
        return re.sub(r"[^\w.-]+", "-", self.name).strip("-.")

    @property
    def own_data(self) -> UserStream | None:
        """Where the images of the user's own stream are; None for a stream of the catalog."""
        if not is_own(self.name):
            return None
        if self.class_order != "default" or self.part == "search":
            raise ConfigError(
                f"stream.class_order and stream.part are of the catalog's streams; {self.name} has neither"
            )
        return UserStream(self.name, self.scenario, self.size, self.channels, self.held_out)


@dataclass(frozen=True)
class RunSettings(Settings):
    """Seeds, batches and the machine."""

    seed: int = setting(0, "first seed", low=0, high=2**31)
    seeds: int = setting(1, "number of seeds, counted up from the first", low=1, high=10_000)
    batch_size: int = setting(10, "samples that arrive at once", low=1)
    device: str = setting("auto", "auto (a GPU if there is one), cpu, cuda or cuda:N")
    threads: int = setting(1, "CPU threads of a process; another number gives other bits", low=1, high=1024)
    precision: Literal["fp32", "tf32", "bf16"] = setting("tf32", "arithmetic on the GPU; the CPU always uses fp32")
    channels_last: bool = setting(True, "keep images with channels last in memory, which is faster; gives other bits")
    direct_convolutions: bool = setting(
        True, "kernels of our own for convolutions of few channels on the GPU, in TF32 with channels last"
    )
    capture: bool = setting(True, "record the step as a CUDA graph and replay it")
    autotune: bool = setting(
        False, "let cuDNN try its kernels first, for convolutions that are left to it: some seconds at the start"
    )
    deterministic: bool = setting(False, "same bits on CUDA at every run, at some cost in speed")
    processes: int = setting(0, "processes over which seeds are spread on the CPU; 0 for as many as cores allow", low=0)
    on_divergence: Literal["stop", "skip"] = setting(
        "stop", "when a loss or gradient is not finite: stop the run, or skip the step"
    )
    checkpoint_every: int = setting(0, "steps from one checkpoint to the next; 0: only at the end of each task", low=0)
    checkpoint_seconds: float = setting(0.0, "seconds from one checkpoint to the next within a task; 0: none", low=0)
    checkpoints_kept: int = setting(2, "checkpoints of a seed that stay, the newest ones", low=1)
    keep_state: bool = setting(
        False, "keep the last checkpoint of each seed, the trained learner with its memory, when the run is done"
    )

    def __post_init__(self) -> None:
        """Check the form of the device's name; whether it is there is found out when it is used."""
        super().__post_init__()
        if not _DEVICES.fullmatch(self.device):
            raise ConfigError(f"run.device: {self.device!r} is not one of auto, cpu, cuda, cuda:N")


@dataclass(frozen=True)
class Config:
    """Everything that a run is a function of."""

    stream: StreamSettings
    learner_name: str
    learner: LearnerConfig
    run: RunSettings
    base: Path | None = None  # where a relative path of the stream begins, if not here; no part of the result

    @property
    def own_data(self) -> UserStream | None:
        """Where the images of the user's own stream are; None for a stream of the catalog."""
        own = self.stream.own_data
        return None if own is None else replace(own, base=self.base)

    @property
    def seeds(self) -> list[int]:
        """The seeds to run."""
        return list(range(self.run.seed, self.run.seed + self.run.seeds))

    def as_dict(self) -> dict[str, Any]:
        """The three sections as JSON values; the learner's holds its name as well."""
        return {
            "stream": as_dict(self.stream),
            "learner": {"name": self.learner_name, **as_dict(self.learner)},
            "run": as_dict(self.run),
        }


def resolve(
    *,
    stream: str | None = None,
    learner: str | None = None,
    file: Path | None = None,
    options: Mapping[str, object] | None = None,
    assignments: Iterable[str] = (),
) -> Config:
    """Make the config of a run.

    `options` maps dotted names such as `run.seeds` to values, `assignments` are texts such as `inner_lr=0.05` or
    `run.batch_size=20`; a name without a dot is the learner's.
    """
    from_file = read_config_file(file, SECTIONS) if file else {section: {} for section in SECTIONS}
    assigned = [parse_assignment(text) for text in assignments]
    given = _given(stream, learner, options or {}, assigned)

    stream_values = {**from_file["stream"], **_texts_read(StreamSettings, given, "stream")}
    stream_settings = build(StreamSettings, stream_values, section="stream")
    require_stream(stream_settings.name, typed=stream is not None or "stream.name" in dict(assigned))

    learner_name = given.pop("learner.name", from_file["learner"].pop("name", DEFAULT_LEARNER))
    name = str(learner_name)
    require_known("learner", name, learners.names())
    kind = learners.config_class(name)
    _point_out_section(kind, given)
    learner_values = {
        **learners.paper_settings(name, stream_settings.name),
        **from_file["learner"],
        **_texts_read(kind, given, "learner"),
    }
    run_values = {**from_file["run"], **_texts_read(RunSettings, given, "run")}
    return Config(
        stream=stream_settings,
        learner_name=name,
        learner=build(kind, learner_values, section="learner"),
        run=build(RunSettings, run_values, section="run"),
    )


def require_known(what: str, name: str, known: list[str]) -> None:
    """Raise ConfigError, naming the closest one, unless `name` is known."""
    if name not in known:
        raise ConfigError(f"unknown {what} {name!r}; {suggest(name, known)} (see `scale-cl list {what}s`)")


def require_stream(name: str, *, typed: bool) -> None:
    """Raise ConfigError unless `name` is a stream; `typed`: the user named it, so that a reference may be imported."""
    if is_own(name):
        return
    if typed:
        OUTSIDE.give(name)
    if name in streams.ENTRIES:
        OUTSIDE.check_not_taken(name)
        return
    if not is_reference(name):
        own = None if name in streams.names() else own_name(name)
        if own is not None:
            raise ConfigError(f"unknown stream {name!r}; did you mean {own!r}?")
        require_known("stream", name, streams.names())
    elif name not in OUTSIDE.given:
        raise ConfigError(
            f"stream {name!r} is named in a file, from which nothing is imported; name it yourself, --stream {name}, "
            "or install it as an entry point"
        )
    find_outside(name)  # raises ConfigError if it cannot be used


class _Text(str):
    """A value that came as text and is still to be read as its field's type."""


def _given(
    stream: str | None, learner: str | None, options: Mapping[str, object], assigned: list[tuple[str, str]]
) -> dict[str, object]:
    """Options and assignments by their full dotted names."""
    given: dict[str, object] = dict(options)
    given.update({f"{k}.name": v for k, v in (("stream", stream), ("learner", learner)) if v is not None})
    by_option = set(given)
    for name, text in assigned:
        full = name if "." in name else f"learner.{name}"
        section = full.partition(".")[0]
        if section not in SECTIONS:
            raise ConfigError(f"--set {name}: unknown section {section!r}; sections are {', '.join(SECTIONS)}")
        if full in by_option:
            raise ConfigError(f"{full} is given twice, by an option and by --set; give it once")
        given[full] = text if full.endswith(".name") else _Text(text)
    return given


def _texts_read(kind: type[Settings], given: Mapping[str, object], section: str) -> dict[str, object]:
    """The given values of one section, texts read as the types of the fields."""
    own = {k.partition(".")[2]: v for k, v in given.items() if k.partition(".")[0] == section}
    return {k: parse_text(kind, k, v, section=section) if isinstance(v, _Text) else v for k, v in own.items()}


def _point_out_section(kind: type[Settings], given: Mapping[str, object]) -> None:
    """A bare name belongs to the learner; if only another section has such a field, say how to write it."""
    for full in given:
        section, _, field = full.partition(".")
        if section == "learner" and field not in field_names(kind):
            for other, settings in (("run", RunSettings), ("stream", StreamSettings)):
                if field in field_names(settings):
                    raise ConfigError(f"unknown setting {full!r}; did you mean '{other}.{field}'?")
