"""The config of a run: three sections, `stream`, `learner` and `run`, and the order in which their sources apply.

Defaults, then the preset's settings for this learner on this stream, then the config file, then options and `--set`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from scale_cl.errors import CheckpointError, ConfigError
from scale_cl.learners import LearnerConfig
from scale_cl.learners import registry as learners
from scale_cl.settings import Settings, as_dict, build, field_names, parse_assignment, parse_text, setting, suggest
from scale_cl.streams import catalog as streams
from scale_cl.streams.user_streams import UserStream, is_own, own_name
from scale_cl.training.config_file import read_config_file

DEFAULT_LEARNER = "scale"
PRESETS = ("paper", "ours")
DEFAULT_PRESET = "ours"
SECTIONS = ("stream", "learner", "run")
_DEVICES = re.compile(r"auto|cpu|cuda(:\d{1,2})?")


@dataclass(frozen=True)
class StreamSettings(Settings):
    """Which stream, and how much of it."""

    name: str = setting("digits", "name of the stream, see `scale-cl list streams`; or folder:PATH, or csv:FILE")
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
        return Path(self.name.partition(":")[2]).absolute().stem if is_own(self.name) else self.name

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
    preset: str = DEFAULT_PRESET  # that the learner's settings began with; recorded, but all settings are in `learner`

    @property
    def own_data(self) -> UserStream | None:
        """Where the images of the user's own stream are; None for a stream of the catalog."""
        own = self.stream.own_data
        return None if own is None else replace(own, base=self.base)

    @property
    def seeds(self) -> list[int]:
        """The seeds to run."""
        return list(range(self.run.seed, self.run.seed + self.run.seeds))

    @classmethod
    def from_dict(cls, content: Any, path: Path | None = None, *, preset: str | None = None) -> Config:
        """The config whose `as_dict` is `content`; errors name the file `path` that it was read from."""
        whole = isinstance(content, dict) and all(isinstance(content.get(section), dict) for section in SECTIONS)
        if not whole:
            raise CheckpointError(f"{path} is damaged: its config does not have the sections {', '.join(SECTIONS)}")
        options = {f"{section}.{k}": v for section in SECTIONS for k, v in content[section].items()}
        return resolve(options=options, preset=preset)

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
    preset: str | None = None,
) -> Config:
    """Make the config of a run.

    Args:
        stream: name of the stream; by default digits.
        learner: name of the learner; by default scale.
        file: a YAML file with the sections stream, learner and run, or the `result.json` of an earlier run.
        options: values by dotted name, such as `run.seeds`.
        assignments: texts such as `inner_lr=0.05` or `run.batch_size=20`; a name without a dot is the learner's.
        preset: which settings the learner begins with: `paper` or `ours`; by default ours.
    """
    from_file: dict[str, dict[str, Any]] = {section: {} for section in SECTIONS}
    if file is not None:
        from_file, named = read_config_file(file, SECTIONS)
        preset = preset or named
    preset = preset or DEFAULT_PRESET
    if preset not in PRESETS:
        raise ConfigError(f"unknown preset {preset!r}; {suggest(preset, PRESETS)}")
    given = _given(stream, learner, options or {}, [parse_assignment(text) for text in assignments])

    stream_values = {**from_file["stream"], **_texts_read(StreamSettings, given, "stream")}
    stream_settings = build(StreamSettings, stream_values, section="stream")
    if not is_own(stream_settings.name):
        _require_stream(stream_settings.name)

    learner_name = given.pop("learner.name", from_file["learner"].pop("name", DEFAULT_LEARNER))
    name = str(learner_name)
    require_known("learner", name, learners.names())
    kind = learners.config_class(name)
    _point_out_section(kind, given)
    learner_values = {
        **_preset_settings(name, stream_settings.name, preset),
        **from_file["learner"],
        **_texts_read(kind, given, "learner"),
    }
    run_values = {**from_file["run"], **_texts_read(RunSettings, given, "run")}
    return Config(
        stream=stream_settings,
        learner_name=name,
        learner=build(kind, learner_values, section="learner"),
        run=build(RunSettings, run_values, section="run"),
        preset=preset,
    )


def _preset_settings(learner: str, stream: str, preset: str) -> dict[str, object]:
    """The settings that the preset gives a learner on a stream, where they differ from its defaults."""
    return learners.paper_settings(learner, stream)


def require_known(what: str, name: str, known: list[str]) -> None:
    """Raise ConfigError, naming the closest one, unless `name` is known."""
    if name not in known:
        raise ConfigError(f"unknown {what} {name!r}; {suggest(name, known)} (see `scale-cl list {what}s`)")


def _require_stream(name: str) -> None:
    """As `require_known`; a folder or CSV file of that name is what was meant."""
    own = None if name in streams.names() else own_name(name)
    if own is not None:
        raise ConfigError(f"unknown stream {name!r}; did you mean {own!r}?")
    require_known("stream", name, streams.names())


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
