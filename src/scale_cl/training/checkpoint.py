"""A checkpoint on disk: a model that can be used without its data, and how far it is in its stream.

Two files: `at-00003-00000120.safetensors` with the tensors and `at-00003-00000120.json` with everything else (3 tasks
done, 120 steps into the next). The JSON has two parts:

    model:     learner, settings, seed      what makes the same learner again
               spec                         its inputs: shape, pixel_max, scenario, boundaries
               images                       how image files become inputs: resized, or exact; null: there are no files
               tasks                        those it has met, with the names of their classes (null: unknown)
               meta, tensors                its state: plain values; size and SHA-256 of the tensor file
    position:  stream, data, config         what it is trained on: name, fingerprint and the config of the run
               streams                      it and those learnt before: name, fingerprint, here, and the tasks with
                                            their classes and numbers of training samples
               stage, step                  tasks done, and steps made in the next
               matrix, seconds_*            accuracies and time so far
               anytime, prequential         evaluations within tasks and predictions before learning, if there are any
               boundaries                   those found so far, with what decides on the next; null: none are sought

The JSON is written last and holds the checksum of the tensors and one of itself, so a checkpoint is there whole or not
at all. When a checkpoint is replaced, the old or the new one is there at every moment: the new tensors have another
name until the JSON refers to them. Reading executes nothing from the files.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar, get_args

import safetensors.torch

import scale_cl
from scale_cl import files
from scale_cl.errors import CheckpointError, shown
from scale_cl.json_format import Format, accuracy_matrix, reporting_damage, typed
from scale_cl.learners import State
from scale_cl.metrics import Evaluation, Predictions
from scale_cl.results import measured_as_dict, measured_from_dict
from scale_cl.streams import InputSpec, Scenario

SCHEMA = 2
_FOUND = "boundaries found."  # prefix of tensors that belong to boundaries found
_NEXT = ".next.safetensors"  # tensors that replace those of an existing checkpoint
_NAME = re.compile(r"(at-(\d{5,})-(\d{8,}))\.(json|safetensors|next\.safetensors)")
_LARGEST_JSON = 64 << 20  # bytes
_SCENARIOS: tuple[str, ...] = get_args(Scenario)
T = TypeVar("T")
_log = logging.getLogger("scale_cl")


class NewerCheckpointError(CheckpointError):
    """A checkpoint is of a newer version: it is good, and no older one may take its place."""


class UnusableCheckpointError(CheckpointError):
    """A seed's checkpoints cannot be used: damaged, of another run, or of an earlier version."""


class UnwrittenCheckpointError(CheckpointError):
    """A checkpoint cannot be written; those before it are untouched."""


class Position(NamedTuple):
    """How far: stages (tasks) that are trained and tested, and steps made in the next one."""

    stage: int
    step: int


@dataclass(frozen=True)
class SavedTask:
    """A task that a model knows."""

    name: str
    classes: tuple[str, ...] | None  # names of its head's outputs in order, if known


@dataclass(frozen=True)
class LearntTask:
    """A task of a stream that a learner is trained on."""

    name: str
    classes: tuple[str, ...]
    samples: int  # to train on


@dataclass(frozen=True)
class LearntStream:
    """A stream that a learner is trained on: what has to be known of it when its data is gone."""

    name: str
    data: str  # fingerprint
    here: str | None  # where a relative path of the stream begins, seen from the run's directory
    tasks: tuple[LearntTask, ...]


Images = Literal["resized", "exact"]
"""Whether image files of another size than the inputs' are resized, or refused."""


@dataclass(frozen=True)
class Model:
    """A learner with everything that is needed to use it without its data."""

    learner: str
    settings: dict[str, Any]
    seed: int
    spec: InputSpec
    tasks: tuple[SavedTask, ...]
    state: State
    images: Images | None = None  # how image files become inputs; None: the inputs are no image files


@dataclass(frozen=True)
class Checkpoint:
    """Everything that a seed needs to continue."""

    model: Model
    stream: str
    data: str  # fingerprint of the stream
    config: dict[str, Any]
    position: Position
    matrix: list[list[float | None]]
    seconds_train: float
    seconds_eval: float
    seconds_wall: float
    evaluations: tuple[Evaluation, ...] = ()
    predictions: tuple[Predictions, ...] = ()  # the last of which may be unfinished
    skipped: int = 0  # training samples that could not be read
    boundaries: State | None = None  # of a `BoundaryFinder`
    streams: tuple[LearntStream, ...] = ()  # that it is trained on, in order

    @property
    def state(self) -> State:
        """The learner's state."""
        return self.model.state

    def with_state(self, state: State) -> Checkpoint:
        """The same checkpoint with another state of its learner."""
        return replace(self, model=replace(self.model, state=state))


def name_of(position: Position) -> str:
    """The name of a checkpoint's files, without the ending; names sort as positions do."""
    return f"at-{position.stage:05}-{position.step:08}"


# ---- folders ---------------------------------------------------------------------------------------------------------
def found(folder: Path) -> list[Path]:
    """The JSON files of the checkpoints in `folder`, the newest first; only `read` tells whether they are good."""
    try:
        inside = sorted(p for p in folder.iterdir() if _NAME.fullmatch(p.name))
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise CheckpointError(f"{folder} cannot be read: {error.strerror}") from None
    return sorted((p for p in inside if p.suffix == ".json"), key=_named_position, reverse=True)


def newest_good(folder: Path, use: Callable[[Path, Checkpoint], T], *, warn: bool = True) -> T:
    """What `use` returns for the newest checkpoint in `folder` that can be read and that it accepts.

    A checkpoint that is damaged, or that `use` refuses with a CheckpointError, is passed over for the one before it,
    with a warning. One of another version is not: continuing from an older one would overwrite it.
    """
    paths = found(folder)
    refused = CheckpointError(f"{folder} holds no checkpoint")
    for path in paths:
        try:
            return use(path, read(path))
        except (NewerCheckpointError, UnusableCheckpointError):
            raise
        except CheckpointError as error:
            refused = error
            if warn:
                _log.warning("scale-cl: warning: checkpoint refused, trying the one before: %s", error)
    if not paths:
        raise refused
    raise UnusableCheckpointError(
        f"no checkpoint of {len(paths)} in {folder} can be used, the last because: {refused}; "
        "remove the folder to begin this seed anew"
    )


def keep_newest(folder: Path, count: int) -> None:
    """Remove all but the newest `count` checkpoints, and temporary files of a writer that was killed."""
    keep_only(folder, found(folder)[:count])


def keep_only(folder: Path, paths: Sequence[Path]) -> None:
    """Remove all checkpoints but those with their JSON at `paths`, and temporary files of a writer that was killed."""
    kept = {path.stem for path in paths}
    for path in sorted(folder.iterdir()):  # .json comes before .safetensors: no JSON is left without its tensors
        ours = _NAME.fullmatch(path.name)
        if (ours and ours[1] not in kept) or (path.name.startswith(".at-") and path.name.endswith(".tmp")):
            path.unlink(missing_ok=True)


# ---- writing ---------------------------------------------------------------------------------------------------------
def write(folder: Path, checkpoint: Checkpoint) -> Path:
    """Write a checkpoint into `folder`, whole or not at all; returns the path of its JSON."""
    found: dict[str, Any] = {**(checkpoint.boundaries or {"tensors": {}, "meta": None})}
    all_tensors = {**checkpoint.state["tensors"], **{f"{_FOUND}{name}": t for name, t in found["tensors"].items()}}
    tensors = {name: t.detach().cpu().contiguous() for name, t in all_tensors.items()}
    data = safetensors.torch.save(tensors)
    model, (stage, step) = checkpoint.model, checkpoint.position
    content = {
        "schema": SCHEMA,
        "kind": "checkpoint",
        "scale_cl": scale_cl.__version__,
        "model": {
            **describe_model(model),
            "tensors": {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()},
        },
        "position": {
            "stream": checkpoint.stream,
            "data": checkpoint.data,
            "streams": [asdict(stream) for stream in checkpoint.streams],
            "config": checkpoint.config,
            "stage": stage,
            "step": step,
            "matrix": checkpoint.matrix,
            "seconds_train": checkpoint.seconds_train,
            "seconds_eval": checkpoint.seconds_eval,
            "seconds_wall": checkpoint.seconds_wall,
            **measured_as_dict(checkpoint.evaluations, checkpoint.predictions),
            "skipped": checkpoint.skipped,
            "boundaries": found["meta"],
        },
    }
    path = folder / f"{name_of(checkpoint.position)}.json"
    tensors_path = path.with_suffix(_NEXT if path.exists() else ".safetensors")
    files.write_bytes(tensors_path, data)
    files.write_json(path, {**content, "checksum": checksum(content)})  # from here on the new checkpoint counts
    if tensors_path.name.endswith(_NEXT):
        files.put_in_place(tensors_path, path.with_suffix(".safetensors"))
    return path


def describe_model(model: Model) -> dict[str, Any]:
    """The part `model` as JSON values; an estimator's file has the same."""
    return {
        "learner": model.learner,
        "settings": model.settings,
        "seed": model.seed,
        "spec": asdict(model.spec),
        "images": model.images,
        "tasks": [asdict(task) for task in model.tasks],
        "meta": model.state["meta"],
    }


def described_model(part: dict[str, Any]) -> Model:
    """The model that `describe_model` described, without its tensors; KeyError, TypeError or ValueError if damaged."""
    return Model(
        learner=typed(part, "learner", str),
        settings=typed(part, "settings", dict),
        seed=typed(part, "seed", int),
        spec=_spec(typed(part, "spec", dict)),
        tasks=tuple(_task(task) for task in typed(part, "tasks", list)),
        state={"tensors": {}, "meta": typed(part, "meta", dict)},
        images=_images(part.get("images")),
    )


def checksum(content: dict[str, Any]) -> str:
    """SHA-256 of JSON content, whatever its order and spacing."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


# ---- reading ---------------------------------------------------------------------------------------------------------
def read(path: Path) -> Checkpoint:
    """Read the checkpoint with its JSON at `path`; CheckpointError if it is missing, damaged or of another version."""
    content = _content(path)
    with reporting_damage(path, CheckpointError):
        model, position = typed(content, "model", dict), typed(content, "position", dict)
        size, digest = model["tensors"]["bytes"], model["tensors"]["sha256"]
        checkpoint = Checkpoint(
            model=described_model(model),
            stream=typed(position, "stream", str),
            data=typed(position, "data", str),
            config=_config(position),
            position=Position(*(_whole_number(position, key) for key in Position._fields)),
            matrix=accuracy_matrix(position["matrix"], len(position["matrix"])),
            seconds_train=_seconds(position["seconds_train"]),
            seconds_eval=_seconds(position["seconds_eval"]),
            seconds_wall=_seconds(position["seconds_wall"]),
            streams=tuple(_stream(one) for one in position.get("streams", [])),
            skipped=_whole_number({"skipped": 0, **position}, "skipped"),  # earlier versions did not count
            **measured_from_dict(position),
        )
    if name_of(checkpoint.position) != path.stem:
        raise CheckpointError(f"{path} is foreign: it says that it is {name_of(checkpoint.position)}")
    try:
        tensors = _tensors(path.with_suffix(".safetensors"), size, digest)
    except CheckpointError:
        if not path.with_suffix(_NEXT).exists():
            raise
        tensors = _tensors(path.with_suffix(_NEXT), size, digest)  # the writer was killed before it renamed them
    meta = position.get("boundaries")
    if meta is not None:
        own = {name.removeprefix(_FOUND): tensors.pop(name) for name in list(tensors) if name.startswith(_FOUND)}
        checkpoint = replace(checkpoint, boundaries={"tensors": own, "meta": meta})
    return checkpoint.with_state({"tensors": tensors, "meta": checkpoint.state["meta"]})


def _content(path: Path) -> dict[str, Any]:
    """The JSON, of this version's schema and checked against its own checksum."""
    expected = Format("a checkpoint", "checkpoint", SCHEMA, CheckpointError, _LARGEST_JSON, newer=NewerCheckpointError)
    content = expected.read(path)
    if content["schema"] < SCHEMA:
        raise UnusableCheckpointError(
            f"{path} was written by an earlier version of scale-cl and cannot be read by this one; use that version, "
            "or run it again into another directory"
        )
    stored = content.pop("checksum", None)
    try:
        right = stored == checksum(content)
    except (ValueError, RecursionError):  # NaN, which Python's reader accepts
        right = False
    if not right:
        raise CheckpointError(f"{path} is damaged: its checksum is another")
    return content


def _tensors(path: Path, size: object, digest: object) -> dict[str, Any]:
    try:
        actual = files.check_plain(path)
        if actual != size:
            raise CheckpointError(f"{path} is damaged: it has {actual} bytes, expected {shown(size)}")
        data = files.read_plain(path, actual)
    except FileNotFoundError:
        raise CheckpointError(f"{path} does not exist, but its checkpoint's other half does") from None
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from None
    if hashlib.sha256(data).hexdigest() != digest:
        raise CheckpointError(f"{path} is damaged: its checksum is another")
    try:
        tensors: dict[str, Any] = safetensors.torch.load(data)
    except Exception as error:  # of many kinds; the checksum is right, so the file was made wrong
        reason = " ".join(str(error).split())[:200]
        raise CheckpointError(f"{path} is not a safetensors file: {reason}") from None
    return tensors


def _named_position(path: Path) -> tuple[int, int]:
    match = _NAME.fullmatch(path.name)
    assert match
    return int(match[2]), int(match[3])


def _whole_number(content: dict[str, Any], key: str) -> int:
    value: int = typed(content, key, int)
    if value < 0:
        raise ValueError(f"{key!r} is {str(value)[:40]}, which is less than 0")
    return value


def _config(position: dict[str, Any]) -> dict[str, Any]:
    config: dict[str, Any] = typed(position, "config", dict)
    for section in ("stream", "learner", "run"):
        if not isinstance(config.get(section, {}), dict):
            raise ValueError(f"'config.{section}' does not hold settings by name")
    return config


def _spec(content: dict[str, Any]) -> InputSpec:
    shape, pixel_max, scenario = (content[key] for key in ("shape", "pixel_max", "scenario"))
    if not isinstance(shape, list) or not shape or any(type(n) is not int or n < 1 for n in shape):
        raise ValueError(f"'shape' is {str(shape)[:40]!r}, which is not a list of sizes")
    if pixel_max is not None and (type(pixel_max) not in (int, float) or not 1e-30 < pixel_max < 1e30):
        raise ValueError(f"'pixel_max' is {str(pixel_max)[:40]!r}, which is neither null nor a brightness above 0")
    if scenario not in _SCENARIOS:
        raise ValueError(f"'scenario' is {str(scenario)[:40]!r}; known are {', '.join(_SCENARIOS)}")
    boundaries = content.get("boundaries", True)
    if type(boundaries) is not bool:
        raise ValueError(f"'boundaries' is {str(boundaries)[:40]!r}, which is neither true nor false")
    return InputSpec(tuple(shape), None if pixel_max is None else float(pixel_max), scenario, boundaries)


def _task(content: Any) -> SavedTask:
    if not isinstance(content, dict):
        raise ValueError(f"a task is {str(content)[:40]!r}, which has no name")
    classes = content["classes"]
    if classes is not None:
        classes = tuple(map(str, typed(content, "classes", list)))
    return SavedTask(typed(content, "name", str), classes)


def _images(value: Any) -> Images | None:
    if value not in (None, *get_args(Images)):
        raise ValueError(f"'images' is {str(value)[:40]!r}; known are {', '.join(get_args(Images))}")
    found: Images | None = value
    return found


def _stream(content: Any) -> LearntStream:
    if not isinstance(content, dict):
        raise ValueError(f"a stream is {str(content)[:40]!r}, which has no name")
    here = content["here"] if content["here"] is None else typed(content, "here", str)
    tasks = []
    for one in typed(content, "tasks", list):
        task = _task(one)
        tasks.append(LearntTask(task.name, task.classes or (), _whole_number(one, "samples")))
    return LearntStream(typed(content, "name", str), typed(content, "data", str), here, tuple(tasks))


def _seconds(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        raise ValueError(f"{str(value)[:40]!r} is not a number of seconds")
    return float(value)
