"""A trained estimator as one safetensors file, with everything that is not a tensor as JSON in its header.

The header's part `model` is that of a run's checkpoint (see `scale_cl.training.checkpoint`). The file is written whole
or not at all, and a checksum covers tensors and header. Reading runs no code of the file.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_args

import numpy as np
import safetensors
import safetensors.torch
import torch
from numpy.typing import NDArray
from torch import Tensor

import scale_cl
from scale_cl import files
from scale_cl.engine import State
from scale_cl.engine.weightless import check_before_making
from scale_cl.errors import CheckpointError, ConfigError, ScaleClError, one_line
from scale_cl.estimator.samples import InputFormat
from scale_cl.estimator.tasks import ClassBook
from scale_cl.json_format import parsed
from scale_cl.learners import registry
from scale_cl.plugins import is_reference, name_references, reference_to
from scale_cl.settings import as_dict
from scale_cl.streams import InputSpec
from scale_cl.streams.from_arrays import Layout
from scale_cl.training.checkpoint import Images, Model, SavedTask, describe_model, described_model
from scale_cl.training.checkpointing import on_this_device
from scale_cl.training.kept_model import kept_model

if TYPE_CHECKING:
    from scale_cl.estimator.classifier import ContinualClassifier
    from scale_cl.learners import Learner

E = TypeVar("E", bound="ContinualClassifier")
SCHEMA = 2
_KEY = "scale_cl_estimator"
_NOT_STORED = ("device", "threads")  # they belong to the machine
_DAMAGE = (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError, RuntimeError, MemoryError)


def save(estimator: ContinualClassifier, path: str | os.PathLike[str]) -> None:
    """Write a fitted estimator: its parameters, labels and learner."""
    params = {name: value for name, value in estimator.get_params(deep=False).items() if name not in _NOT_STORED}
    own_backbone = not isinstance(estimator.backbone, str | None)
    if own_backbone:
        params.pop("backbone")
    own_learner = None
    if isinstance(params.get("learner"), type):
        own_learner = reference_to(params.pop("learner"))
    learner, labels, inputs = estimator.learner_, estimator.labels_, estimator.input_format_
    names = getattr(estimator, "feature_names_in_", None)
    tasks = tuple(SavedTask(task, tuple(map(str, labels.classes[labels.columns(task)]))) for task in labels.tasks)
    state = learner.state_dict()
    found = estimator.finder_.state_dict() if hasattr(estimator, "finder_") else None
    images: Images | None = getattr(estimator, "images_", None)
    model = Model(learner.name, as_dict(learner.config), estimator.seed_, inputs.spec, tasks, state, images)
    content = {
        "class": type(estimator).__name__,
        "params": {name: _json_value(name, value) for name, value in params.items()},
        "own_backbone": own_backbone,
        "own_learner": own_learner,
        "labels": labels.as_json(),
        "feature_names": None if names is None else [str(name) for name in names],
        "model": describe_model(model),
        "boundaries": None if found is None else found["meta"],
    }
    tensors = {f"learner.{name}": t for name, t in state["tensors"].items()}
    tensors |= {f"boundaries.{name}": t for name, t in (found["tensors"] if found is not None else {}).items()}
    if inputs.origin is not None:
        tensors["origin"] = torch.from_numpy(inputs.origin)
    write(path, Stored(content, tensors))


def load(
    cls: type[E],
    path: str | os.PathLike[str],
    *,
    device: str,
    backbone: Any,
    learner: type[Learner] | str | None,
    seed: int | None = None,
) -> E:
    """The estimator that `save` wrote, by the class that wrote it; or the model that a run has kept."""
    name_references(learner=learner, backbone=backbone)
    if isinstance(learner, str) and is_reference(learner):
        learner = None  # it serves for the one that is recorded
    if files.is_folder(path):
        return _of_run(cls, path, device=device, backbone=backbone, learner=learner, seed=seed)
    if seed is not None:
        raise ConfigError(f"{os.fspath(path)} is a file, which has one seed: leave out seed=...")
    stored = read(path)
    content, tensors = stored.content, dict(stored.tensors)
    if content.get("class") != cls.__name__:
        raise CheckpointError(
            f"{os.fspath(path)} was written by {str(content.get('class'))[:100]}: load it with that class"
        )
    if content.get("own_backbone") and backbone is None:
        raise ConfigError(f"{os.fspath(path)} was trained with a backbone of its own: give it again, backbone=...")
    _check_learner(os.fspath(path), content.get("own_learner"), learner)
    try:
        params = dict(content["params"])
        params |= params.pop("settings", None) or {}  # a file of before settings were parameters
        given = {"device": device, "backbone": backbone, "learner": learner}
        estimator = cls(**(params | {name: value for name, value in given.items() if value is not None}))
        origin, model = tensors.pop("origin", None), described_model(content["model"])
        centre = None if origin is None else origin.numpy().astype(np.float64)
        _check_inputs(content, model.spec, centre)
        estimator.input_format_, estimator.seed_ = InputFormat(model.spec, centre), model.seed
        estimator.images_ = model.images
        estimator.labels_ = ClassBook.from_json(content["labels"])
        if len(model.spec.shape) == 1:
            estimator.n_features_in_ = model.spec.shape[0]
        if content["feature_names"] is not None:
            estimator.feature_names_in_ = np.array(content["feature_names"], dtype=object)
        own, recent = (
            {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}
            for prefix in ("learner.", "boundaries.")
        )
        state: State = {"tensors": own, "meta": model.state["meta"]}
        estimator.learner_ = _new_learner(estimator, model, state)
        estimator.learner_.load_state_dict(on_this_device(state, estimator.learner_))
        _check_labels(estimator.labels_, model, estimator.learner_)
        if content.get("boundaries") is not None:
            estimator.finder_ = estimator.new_finder()
            estimator.finder_.load_state_dict({"tensors": recent, "meta": content["boundaries"]})
    except CheckpointError as error:
        raise CheckpointError(f"{os.fspath(path)} cannot be loaded: {error}") from None
    except ScaleClError:
        raise
    except _DAMAGE as error:
        raise CheckpointError(f"{os.fspath(path)} is damaged: {one_line(error)}") from None
    estimator.classes_, estimator.tasks_ = estimator.labels_.classes, estimator.labels_.tasks
    return estimator


def _of_run(
    cls: type[E],
    path: str | os.PathLike[str],
    *,
    device: str,
    backbone: Any,
    learner: type[Learner] | str | None,
    seed: int | None,
) -> E:
    """The model that a run has kept, as an estimator; its labels are the names of the classes."""
    kept = kept_model(path, seed=seed)
    model = kept.model
    params: dict[str, Any] = {
        **model.settings,
        "learner": learner or model.learner,
        "scenario": model.spec.scenario,
        "random_state": model.seed,
        "device": device,
        "backbone": model.settings.get("backbone") if backbone is None else backbone,
    }
    if "learner" not in cls().get_params():
        raise CheckpointError(f"{os.fspath(path)} is a run's directory: load it with ContinualClassifier")
    if model.spec.pixel_max is not None:
        params["pixel_max"] = model.spec.pixel_max
    if isinstance(size := kept.saved.config.get("run", {}).get("batch_size"), int):
        params["batch_size"] = size
    estimator = cls(**params)
    estimator.input_format_, estimator.seed_ = InputFormat(model.spec, None), model.seed
    estimator.images_ = model.images
    own = {task.name: list(task.classes or ()) for task in model.tasks}
    labels = list(dict.fromkeys(label for classes in own.values() for label in classes))
    if not labels:
        raise CheckpointError(f"{kept.path} does not name the classes of its tasks")
    estimator.labels_ = ClassBook(shared=model.spec.scenario != "task", labels=labels, tasks=own)
    estimator.labels_.classes = np.unique(np.array(labels))
    estimator.learner_ = _new_learner(estimator, model, model.state)
    estimator.learner_.load_state_dict(on_this_device(model.state, estimator.learner_))
    estimator.classes_, estimator.tasks_ = estimator.labels_.classes, estimator.labels_.tasks
    return estimator


def _new_learner(estimator: ContinualClassifier, model: Model, state: State) -> Learner:
    """The learner that the estimator's parameters make, if it would have the tensors of the state."""
    learner, backbone = getattr(estimator, "learner", None), estimator.backbone
    kind = learner if isinstance(learner, type) else registry.entry(model.learner).kind
    named = model.settings.get("backbone") if backbone is None else backbone
    check_before_making(estimator.new_learner, state, kind=kind, backbone=named)
    return estimator.new_learner()


def _check_inputs(content: dict[str, Any], spec: InputSpec, origin: NDArray[np.float64] | None) -> None:
    """What is said of the inputs in several places agrees."""
    names, params = content["feature_names"], content["params"]
    if names is not None and (not isinstance(names, list) or len(names) != spec.shape[0] or len(spec.shape) > 1):
        raise ValueError(f"its feature names are not those of inputs of shape {list(spec.shape)}")
    if not all(isinstance(name, str) for name in names or ()):
        raise ValueError("a feature name is no text")
    if origin is not None and (origin.shape != spec.shape or not np.isfinite(origin).all()):
        raise ValueError(f"its origin is not one of inputs of shape {list(spec.shape)}")
    if params.get("layout") not in get_args(Layout) or type(params.get("pixel_max")) not in (int, float):
        raise ValueError("'layout' or 'pixel_max' is none")


def _check_labels(book: ClassBook, model: Model, learner: Learner) -> None:
    """The labels, the tasks of the header and the learner's heads agree."""
    engine = learner.engine
    sizes = {task: book.size(task) for task in book.tasks}
    named = {task.name: len(task.classes or ()) for task in model.tasks}
    heads = dict(zip(engine.tasks, engine.classes, strict=True))
    if engine.translates:  # a head has the classes that its task brought, the book all so far
        heads = sizes if engine.tasks == book.tasks and len(engine.labels.owners) <= len(book.classes) else {}
    if not sizes or sizes != named or sizes != heads or book.shared != (learner.spec.scenario != "task"):
        raise ValueError("its labels, tasks and heads do not agree")


def _check_learner(path: str, recorded: Any, given: type[Learner] | str | None) -> None:
    """A learner class is never imported because a file names it: the user gives it again, and its name must agree."""
    if recorded is None:
        if given is not None:
            raise ConfigError(f"{path} was trained with a learner of the catalog: leave learner=... out")
        return
    name = str(recorded).rpartition(":")[2]
    if given is None or not isinstance(given, type) or given.__qualname__ != name:
        what = "" if given is None else f", not {getattr(given, '__qualname__', given)!s}"
        raise ConfigError(f"{path} was trained with the learner {recorded}{what}: give that class again, learner=...")


def _json_value(name: str, value: Any) -> Any:
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, dict):
        return {str(key): _json_value(name, inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_json_value(name, inner) for inner in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise ConfigError(f"{name} is a {type(value).__name__}, which cannot be saved; give a plain value")


@dataclass(frozen=True)
class Stored:
    """The content of a file: JSON values and tensors."""

    content: dict[str, Any]
    tensors: dict[str, Tensor]


def write(path: str | os.PathLike[str], stored: Stored) -> None:
    """Write a file, whole or not at all."""
    tensors = {name: t.detach().cpu().contiguous() for name, t in stored.tensors.items()}
    content = {"schema": SCHEMA, "scale_cl": scale_cl.__version__, **stored.content}
    content["sha256"] = _checksum(content, tensors)
    header = json.dumps(content, allow_nan=False)
    files.write_bytes(path, safetensors.torch.save(tensors, metadata={_KEY: header}))


def read(path: str | os.PathLike[str]) -> Stored:
    """The content of a file; CheckpointError if it is missing, damaged, foreign or newer than this version."""
    file = Path(path)
    if files.is_folder(file):
        raise CheckpointError(f"{file} is a directory; give the file that save() wrote")
    try:
        files.check_plain(file)
        with safetensors.safe_open(file, framework="pt") as opened:
            header = (opened.metadata() or {}).get(_KEY)
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 - not a dict
    except FileNotFoundError:
        raise CheckpointError(f"{file} does not exist; name a run's directory, or a file that save() wrote") from None
    except OSError as error:
        raise CheckpointError(f"{file} cannot be read: {error.strerror or error}") from None
    except (safetensors.SafetensorError, ValueError, TypeError, RuntimeError, KeyError, AttributeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise CheckpointError(f"{file} is damaged or no safetensors file: {reason}") from None
    if header is None:
        raise CheckpointError(f"{file} was not written by an estimator of scale-cl")
    try:
        content = parsed(header)
        schema = content["schema"]
        if not isinstance(schema, int) or schema < 1:
            raise ValueError("schema")
        if schema > SCHEMA:
            newer = f"has schema {schema}, this version reads up to {SCHEMA}: use a newer scale-cl"
            raise CheckpointError(f"{file} {newer}")
        if schema < SCHEMA:
            older = "was written by an earlier version of scale-cl and cannot be loaded by this one: fit it again"
            raise CheckpointError(f"{file} {older}")
        right = content.pop("sha256") == _checksum(content, tensors)
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(f"{file} is damaged: its header cannot be read") from None
    if not right:
        raise CheckpointError(f"{file} is damaged: its checksum is another")
    return Stored(content, tensors)


def _checksum(content: dict[str, Any], tensors: dict[str, Tensor]) -> str:
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
    digest = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        t = tensors[name]
        digest.update(f"{name} {t.dtype} {list(t.shape)}".encode())
        digest.update(t.contiguous().flatten().view(-1).numpy().tobytes())
    return digest.hexdigest()
