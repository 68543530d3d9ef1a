"""The config of a run: three sections, `stream`, `learner` and `run`, and the order in which their sources apply.

Defaults, then the preset's settings for this learner on this stream, then the config file, then options and `--set`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import yaml

from scale_cl import files
from scale_cl.errors import CheckpointError, ConfigError, shown
from scale_cl.json_format import parsed
from scale_cl.learners import LearnerConfig
from scale_cl.learners import registry as learners
from scale_cl.learners.boundaries import Detection
from scale_cl.learners.presets import DEFAULT_PRESET, check_preset
from scale_cl.plugins import is_reference, name_references
from scale_cl.settings import Settings, as_dict, build, field_names, parse_assignment, parse_text, setting, suggest
from scale_cl.streams import InputSpec, Scenario
from scale_cl.streams import catalog as streams
from scale_cl.streams.user_streams import OUTSIDE, UserStream, find_outside, is_own, own_name

DEFAULT_LEARNER = "scale"
SECTIONS = ("stream", "learner", "run")
_LARGEST = 1 << 20  # bytes of a config file
_LONGEST_NAME = 60  # characters of a stream's name in that of a folder
_OF_IMAGES = ("channels", "held_out", "keep", "workers", "on_error", "window")  # settings of own images alone
_DEVICES = re.compile(r"auto|cpu|cuda(:\d{1,2})?")


@dataclass(frozen=True)
class StreamSettings(Detection):
    """Which stream, and how much of it."""

    name: str = setting(
        "digits",
        "name of the stream, see `scale-cl list streams`; or folder:PATH, csv:FILE, module:function, file.py:function",
    )
    tasks: int | None = setting(None, "number of tasks from the first on; none for all", low=1)
    class_order: int | Literal["default", "natural", "seed"] = setting(
        "default",
        "order in which tasks get their classes: default (the stream's own), natural, the seed of another (from 3 on, "
        "classes of the tasks kept for search keep their places), or seed: another for each seed of the run",
        low=0,
        high=2**32 - 1,
    )
    part: Literal["continual", "search", "all"] = setting(
        "continual",
        "which tasks: the continual run's, three kept for search (tested on held-out training images), or all",
    )
    scenario: Literal["default", "task", "domain", "class"] = setting(
        "default",
        "a head for each task's own classes (task), one head for classes that all tasks have (domain), or one head for "
        "all classes so far (class); default: domain if the tasks of a named stream have the same classes, else task",
    )
    boundaries: Literal["told", "hidden", "detect"] = setting(
        "told", "whether the learner is told where tasks begin and end, is not told, or a detector finds out"
    )
    train_share: float = setting(
        1.0, "share of each class's training samples per task that is used, drawn by the seed", above=0, high=1
    )
    schedule: Literal["steps", "gaussian"] = setting(
        "steps", "how tasks follow each other: one after another, or each around its own time (gaussian)"
    )
    blur: float = setting(
        0.0, "with schedule steps: share of the samples of a task that arrive during other tasks", low=0, high=1
    )
    width: float = setting(
        0.5, "with schedule gaussian: standard deviation of the time of arrival, in units of tasks", above=0
    )
    size: int | None = setting(
        None,
        "own images, and named streams of image files: height and width to resize to; none: own images have one size, "
        "those of a named stream get its own",
        low=1,
    )
    channels: int = setting(3, "own images: 3 for colour, 1 for grey", choices=(1, 3))
    held_out: float = setting(
        0.2, "own images: share of each class kept for testing, if no split is given; 0: no test", low=0, below=1
    )
    keep: Literal["auto", "memory", "disk"] = setting(
        "auto", "own images: read all into memory, or each from disk when it is needed; auto: memory if there is room"
    )
    workers: int | None = setting(
        None, "own images: processes that read from disk; 0: a thread; none: one per core, at most 8", low=0, high=1024
    )
    on_error: Literal["stop", "skip"] = setting(
        "stop", "own images: when one cannot be read: stop the run, or leave it out with a warning"
    )
    window: int | None = setting(
        None, "own images: shuffle within each so many samples of a task; none: within the whole task", low=1
    )

    @property
    def short_name(self) -> str:
        """The name without a path, fit for a folder's name."""
        if is_own(self.name):
            return Path(self.name.partition(":")[2]).absolute().stem[:_LONGEST_NAME]
        return _folder_name(self.name)[:_LONGEST_NAME]

    @property
    def own_data(self) -> UserStream | None:
        """Where the images of the user's own stream are; None for a stream of the catalog."""
        if not is_own(self.name):
            return None
        if self.class_order != "default" or self.part == "search":
            unknown = "stream.class_order and stream.part are of the catalog's streams"
            raise ConfigError(f"{unknown}; {self.name} has neither")
        scenario: Scenario = "task" if self.scenario == "default" else self.scenario
        return UserStream(
            self.name,
            scenario,
            self.size,
            self.channels,
            self.held_out,
            keep=self.keep,
            workers=self.workers,
            on_error=self.on_error,
            window=self.window,
        )


@dataclass(frozen=True)
class RunSettings(Settings):
    """Seeds, batches and the machine."""

    seed: int = setting(0, "first seed", low=0, high=2**31)
    seeds: int = setting(1, "number of seeds, counted up from the first", low=1, high=10_000)
    batch_size: int = setting(10, "samples per step", low=1)
    device: str = setting("auto", "auto (a GPU if there is one), cpu, cuda or cuda:N")
    threads: int = setting(1, "CPU threads per process; another number gives other bits", low=1, high=1024)
    precision: Literal["fp32", "tf32", "bf16"] = setting("tf32", "arithmetic on the GPU; the CPU always uses fp32")
    channels_last: bool = setting(True, "store images with channels last, which is faster; gives other bits")
    direct_convolutions: bool = setting(
        True, "use our own kernels for convolutions of few channels on the GPU, in TF32 with channels last"
    )
    capture: bool = setting(True, "record the step as a CUDA graph and replay it")
    autotune: bool = setting(False, "let cuDNN try its kernels for other convolutions: some seconds at the start")
    deterministic: bool = setting(False, "same bits on CUDA in every run, at some cost in speed")
    processes: int = setting(0, "processes over which seeds are spread on the CPU; 0 for as many as cores allow", low=0)
    on_divergence: Literal["stop", "skip"] = setting(
        "stop", "when a loss or gradient is not finite: stop the run, or skip the step"
    )
    evaluate_every: int = setting(
        0, "steps from one evaluation within tasks to the next; 0: only at the end of each task", low=0
    )
    evaluate_samples: int = setting(125, "test samples per task of such an evaluation, the same each time", low=1)
    prequential: bool = setting(False, "predict each batch before it is learnt, and count the correct predictions")
    checkpoint_every: int = setting(0, "steps from one checkpoint to the next; 0: only at the end of each task", low=0)
    checkpoint_seconds: float = setting(0.0, "seconds from one checkpoint to the next within a task; 0: none", low=0)
    checkpoints_kept: int = setting(2, "number of checkpoints per seed that stay, the newest ones", low=1)
    keep_state: bool | Literal["auto"] = setting(
        "auto",
        "keep the model of each seed after the run, the learner with the samples in its memory; auto: for own images",
    )

    def __post_init__(self) -> None:
        """Check the form of the device's name; whether the device exists is checked when it is used."""
        super().__post_init__()
        if not _DEVICES.fullmatch(self.device):
            raise ConfigError(f"run.device: {self.device!r} is not one of auto, cpu, cuda, cuda:N")


@dataclass(frozen=True)
class Config:
    """Everything that determines a run's result."""

    stream: StreamSettings
    learner_name: str
    learner: LearnerConfig
    run: RunSettings
    base: Path | None = None  # where a relative path of the stream begins, if not here; no part of the result
    preset: str = DEFAULT_PRESET  # that the learner's settings began with; recorded, but all settings are in `learner`
    before: tuple[StreamSettings, ...] = ()  # the streams that the learner is trained on before this one

    @property
    def keeps_state(self) -> bool:
        """Whether the model stays when the run is finished: as asked, or if it was trained on the user's own images."""
        return is_own(self.stream.name) if self.run.keep_state == "auto" else self.run.keep_state

    @property
    def own_data(self) -> UserStream | None:
        """Where the images of the user's own stream are; None for a stream of the catalog."""
        own = self.stream.own_data
        return None if own is None else replace(own, base=self.base)

    @property
    def short_name(self) -> str:
        """Learner and stream without paths, fit for a folder's name."""
        return f"{_folder_name(self.learner_name)}-{self.stream.short_name}"

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
        before = content.get("before", [])
        if not isinstance(before, list) or not all(isinstance(one, dict) for one in before):
            raise CheckpointError(f"{path} is damaged: 'before' of its config does not list streams")
        recorded = {**content, "stream": _recorded_stream(content["stream"])}
        return replace(resolve(recorded=recorded, preset=preset), before=_streams_before(before))

    def as_dict(self) -> dict[str, Any]:
        """The three sections as JSON values; the learner's holds its name as well.

        With streams before this one there is a fourth, `before`, which lists them.
        """
        return {
            **({"before": [as_dict(stream) for stream in self.before]} if self.before else {}),
            "stream": as_dict(self.stream),
            "learner": {"name": self.learner_name, **as_dict(self.learner)},
            "run": as_dict(self.run),
        }


def resolve(
    *,
    stream: str | None = None,
    learner: str | None = None,
    file: Path | None = None,
    recorded: Mapping[str, Mapping[str, Any]] | None = None,
    options: Mapping[str, object] | None = None,
    assignments: Iterable[str] = (),
    preset: str | None = None,
) -> Config:
    """Make the config of a run.

    Args:
        stream: name of the stream; by default digits.
        learner: name of the learner; by default scale.
        file: a YAML file with the sections stream, learner and run, or the `result.json` of an earlier run.
        recorded: instead of such a file, values of the sections that were read from one.
        options: values by dotted name, such as `run.seeds`.
        assignments: texts such as `inner_lr=0.05` or `run.batch_size=20`; a name without a dot is the learner's.
        preset: which settings the learner begins with: `paper` or `ours`; by default ours.

    Code from outside this package that a file or `recorded` names is not imported, see `scale_cl.plugins`.
    """
    from_file: dict[str, dict[str, Any]] = {section: dict((recorded or {}).get(section, {})) for section in SECTIONS}
    if file is not None:
        from_file, named = read_config_file(file)
        preset = preset or named
    preset = check_preset(preset)
    given = _given(stream, learner, options or {}, [parse_assignment(text) for text in assignments])

    stream_values = {**from_file["stream"], **_texts_read(StreamSettings, given, "stream")}
    stream_settings = build(StreamSettings, stream_values, section="stream")
    require_stream(stream_settings.name, typed="stream.name" in given)
    run = build(RunSettings, {**from_file["run"], **_texts_read(RunSettings, given, "run")}, section="run")
    _check_used(stream_settings, run, given)

    name_references(learner=given.get("learner.name"), backbone=given.get("learner.backbone"))
    name = given.pop("learner.name", from_file["learner"].pop("name", DEFAULT_LEARNER))
    if not isinstance(name, str):
        raise ConfigError(f"learner.name: {shown(name)} is not text; give a name, module:Class or file.py:Class")
    kind = learners.config_class(name)
    _point_out_section(kind, given)
    _check_applies(name, stream_settings)
    boundaries = stream_settings.boundaries != "hidden"
    learner_values = {
        **learners.preset_settings(name, stream_settings.name, preset, boundaries=boundaries),
        **from_file["learner"],
        **_texts_read(kind, given, "learner"),
    }
    return Config(
        stream=stream_settings,
        learner_name=name,
        learner=build(kind, learner_values, section="learner"),
        run=run,
        preset=preset,
    )


def _check_used(stream: StreamSettings, run: RunSettings, given: Mapping[str, object]) -> None:
    """Raise ConfigError if a given setting would have no effect in this run."""
    images = f"your own images, folder:PATH or csv:FILE; {stream.name} has none"
    found = "boundaries that are found: stream.boundaries=detect"
    kinds: tuple[tuple[Settings, Iterable[str], bool, str], ...] = (
        (stream, _OF_IMAGES, is_own(stream.name), images),
        (stream, field_names(Detection), stream.boundaries == "detect", found),
        (stream, ["width"], stream.schedule == "gaussian", "tasks that fade into each other: stream.schedule=gaussian"),
        (run, ["evaluate_samples"], run.evaluate_every > 0, "evaluations within tasks: run.evaluate_every=STEPS"),
    )
    for settings, fields, used, what in kinds:
        section, usual = "run" if settings is run else "stream", type(settings)()
        for field in fields:
            if not used and f"{section}.{field}" in given and getattr(settings, field) != getattr(usual, field):
                raise ConfigError(f"{section}.{field} is for {what}")


def _check_applies(learner: str, stream: StreamSettings) -> None:
    """Raise ConfigError if the learner does not apply to the stream, before any data is read."""
    kind = learners.entry(learner).kind
    scenario: Scenario = stream.scenario if stream.scenario != "default" else "task"
    if stream.scenario == "default" and stream.name in streams.ENTRIES:
        scenario = streams.ENTRIES[stream.name].scenarios[0]
    kind.check_applies(InputSpec((1,), None, scenario, stream.boundaries != "hidden"), learner, stream.name)
    blurred = stream.blur > 0 or stream.schedule != "steps"
    if blurred and scenario == "class" and stream.boundaries == "told" and kind.traits.task_specific_parameters:
        raise ConfigError(
            f"{learner} has parameters per task, and the tasks of a blurred stream share classes; take "
            "stream.boundaries=hidden, or a learner with one head for all classes"
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
    OUTSIDE.require_given(name, "--stream ")
    if not is_reference(name):
        own = None if name in streams.names() else own_name(name)
        if own is not None:
            raise ConfigError(f"unknown stream {name!r}; did you mean {own!r}?")
        require_known("stream", name, streams.names())
    find_outside(name)  # raises ConfigError if it cannot be used


def _folder_name(name: str) -> str:
    """A name without the folder of a file, and without characters that mean something in a path."""
    return re.sub(r"[^\w.-]+", "-", name.rpartition("/")[2]).strip("-.")


class _Text(str):
    """A value given as text, to be read as its field's type."""


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
    """The given values of one section; texts are read as the types of their fields."""
    own = {k.partition(".")[2]: v for k, v in given.items() if k.partition(".")[0] == section}
    return {k: parse_text(kind, k, str(v), section=section) if isinstance(v, _Text) else v for k, v in own.items()}


def _point_out_section(kind: type[Settings], given: Mapping[str, object]) -> None:
    """A name without a dot is the learner's; if only another section has such a field, suggest that one."""
    for full in given:
        section, _, field = full.partition(".")
        if section == "learner" and field not in field_names(kind):
            for other, settings in (("run", RunSettings), ("stream", StreamSettings)):
                if field in field_names(settings):
                    raise ConfigError(f"unknown setting {full!r}; did you mean '{other}.{field}'?")


# ---- config files ----------------------------------------------------------------------------------------------------
def read_config_file(path: Path) -> tuple[dict[str, dict[str, Any]], str | None]:
    """The values of each section and the preset, from a page of YAML or the `result.json` of an earlier run.

    `stream: pmnist` is short for a section with only a name. Only plain values are read: aliases, duplicate keys and
    large files are refused, with the line of the error.
    """
    content = _parse(path, _read(path))
    if content is None:
        content = {}
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: expected the sections {', '.join(SECTIONS)}, found {type(content).__name__}")
    if "schema" in content and isinstance(content.get("config"), dict):
        content = {**content["config"], "preset": content.get("preset")}  # the result of an earlier run
        if content.pop("before", None):
            raise ConfigError(f"{path} is of a run that was taught more: run its first stream, then `scale-cl learn`")
        if isinstance(content.get("stream"), dict):
            content["stream"] = _recorded_stream(content["stream"])
    preset = content.pop("preset", None)
    if not isinstance(preset, str | None):
        raise ConfigError(f"{path}: 'preset' must be a name, found {type(preset).__name__}")
    return {section: _section(path, content, section) for section in SECTIONS}, preset


def streams_learnt(recorded: Mapping[str, Any]) -> tuple[StreamSettings, ...]:
    """The streams that a run with this recorded config has learnt, in order."""
    return _streams_before([*recorded.get("before", []), recorded["stream"]])


def _streams_before(recorded: list[dict[str, Any]]) -> tuple[StreamSettings, ...]:
    return tuple(build(StreamSettings, _recorded_stream(one), section="stream") for one in recorded)


def _recorded_stream(values: dict[str, Any]) -> dict[str, Any]:
    """The stream's section of an earlier run; the default scenario was called "task", for domain streams as well."""
    return {**values, "scenario": "default"} if values.get("scenario") == "task" else values


def _section(path: Path, content: dict[Any, Any], section: str) -> dict[str, Any]:
    for name in content:
        if name not in SECTIONS:
            raise ConfigError(f"{path}: unknown section {shown(name)}; {suggest(shown(name), SECTIONS)}")
    values = content.get(section)
    if values is None:
        return {}
    if isinstance(values, str) and section != "run":
        return {"name": values}
    if not isinstance(values, dict) or not all(isinstance(k, str) for k in values):
        raise ConfigError(f"{path}: section {section!r} must hold named values, such as `{section}: {{...}}`")
    return dict(values)


def _read(path: Path) -> str:
    try:
        return files.read_plain(path, _LARGEST).decode("utf-8")
    except FileNotFoundError:
        raise ConfigError(f"config file {path} does not exist") from None
    except files.TooLargeError:
        raise ConfigError(f"{path} is larger than {_LARGEST} bytes; a config is a page or so of YAML") from None
    except OSError as error:
        raise ConfigError(f"config file {path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"config file {path} is not UTF-8 text: byte {error.start}") from None


def _parse(path: Path, text: str) -> Any:
    if path.suffix == ".json":
        try:
            return parsed(text)
        except json.JSONDecodeError as error:
            raise ConfigError(f"{path} is not JSON, line {error.lineno}: {error.msg}") from None
        except ValueError as error:
            raise ConfigError(f"{path} cannot be read: {error}") from None
    try:
        return yaml.load(text, Loader=_PlainLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f", line {mark.line + 1}" if mark else ""
        raise ConfigError(f"{path}{where}: {error.problem or 'not YAML'}") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: not YAML: {' '.join(str(error).split())}") from None
    except RecursionError:
        raise ConfigError(f"{path}: it is nested too deeply") from None
    except ValueError as error:
        raise ConfigError(f"{path}: not YAML: {error}") from None


class _PlainLoader(yaml.SafeLoader):
    """SafeLoader without tags, aliases and duplicate keys that reads words and numbers as YAML 1.2 does."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.AliasEvent):
            problem = "aliases (*name) are not read; write the value out"
            raise yaml.composer.ComposerError(None, None, problem, event.start_mark)  # type: ignore[arg-type]
        if getattr(event, "tag", None) is not None:
            problem = "tags (!name) are not read; write the plain value"
            raise yaml.composer.ComposerError(None, None, problem, event.start_mark)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[Hashable] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, Hashable):
                raise yaml.constructor.ConstructorError(None, None, f"{shown(key)} is not a name", key_node.start_mark)
            if key in seen:
                raise yaml.constructor.ConstructorError(None, None, f"{shown(key)} is given twice", key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep=deep)


_PlainLoader.yaml_implicit_resolvers = {}  # those of YAML 1.1 take no for false, 1:30 for 90 and 1e-3 for text
_DIGITS = list("-+.0123456789")
for _kind, _pattern, _first in (
    ("null", r"(~|null|Null|NULL|)$", ["~", "n", "N", ""]),
    ("bool", r"(true|True|TRUE|false|False|FALSE)$", list("tTfF")),
    ("int", r"[-+]?(0|[1-9][0-9_]{0,30}|0x[0-9a-fA-F]{1,16})$", _DIGITS),  # one of more digits is text
    ("float", r"[-+]?(\.[0-9][0-9_]*|[0-9][0-9_]*\.[0-9_]*|[0-9]+(?=[eE]))([eE][-+]?[0-9]+)?$", _DIGITS),
    ("float", r"([-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN))$", _DIGITS),
):
    _PlainLoader.add_implicit_resolver(f"tag:yaml.org,2002:{_kind}", re.compile(_pattern), _first)
