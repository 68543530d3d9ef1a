"""A trained estimator taken apart and put together again: for files, and for copies in memory."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch

from scale_cl.errors import CheckpointError, ConfigError, ScaleClError
from scale_cl.estimator import storage
from scale_cl.estimator.labels import ClassBook
from scale_cl.learners import Learner
from scale_cl.streams import InputSpec

if TYPE_CHECKING:
    from scale_cl.estimator.classifier import ContinualClassifier

E = TypeVar("E", bound="ContinualClassifier")
_NOT_STORED = ("backbone", "device")


def save(estimator: ContinualClassifier, path: str | os.PathLike[str]) -> None:
    """Write everything: parameters, labels, learner."""
    params = {name: value for name, value in estimator.get_params(deep=False).items() if name not in _NOT_STORED}
    state = estimator.learner_.state_dict()
    spec = estimator._spec
    content = {
        "class": type(estimator).__name__,
        "params": {name: _json_value(name, value) for name, value in params.items()},
        "own_backbone": estimator.backbone is not None,
        "spec": {"shape": list(spec.shape), "pixel_max": spec.pixel_max, "scenario": spec.scenario},
        "seed": estimator._seed,
        "labels": estimator._book.as_json(),
        "feature_names": _names(getattr(estimator, "feature_names_in_", None)),
        "meta": state["meta"],
    }
    tensors = {f"learner.{name}": t for name, t in state["tensors"].items()}
    if estimator._origin is not None:
        tensors["origin"] = torch.from_numpy(estimator._origin)
    storage.write(path, storage.Stored(content, tensors))


def load(cls: type[E], path: str | os.PathLike[str], *, device: str, backbone: Any) -> E:
    """What `save` wrote, by the class that wrote it."""
    stored = storage.read(path)
    content, tensors = stored.content, dict(stored.tensors)
    if content.get("class") != cls.__name__:
        raise CheckpointError(f"{os.fspath(path)} was written by {content.get('class')}: load it with that class")
    if content.get("own_backbone") and backbone is None:
        raise ConfigError(f"{os.fspath(path)} was trained with a backbone of its own: give it again, backbone=...")
    try:
        estimator = cls(**content["params"])
        estimator.set_params(device=device, backbone=backbone)
        origin = tensors.pop("origin", None)
        estimator._origin = None if origin is None else origin.numpy().astype(np.float64)
        spec = content["spec"]
        pixel_max = None if spec["pixel_max"] is None else float(spec["pixel_max"])
        estimator._spec = InputSpec(tuple(int(n) for n in spec["shape"]), pixel_max, spec["scenario"])
        estimator._seed = int(content["seed"])
        estimator._book = ClassBook.from_json(content["labels"])
        if len(estimator._spec.shape) == 1:
            estimator.n_features_in_ = estimator._spec.shape[0]
        if content["feature_names"] is not None:
            estimator.feature_names_in_ = np.array(content["feature_names"], dtype=object)
        estimator.learner_ = estimator._make_learner()
        own = {name.removeprefix("learner."): t for name, t in tensors.items()}
        fresh = estimator.learner_.state_dict()["tensors"]["rng"]
        if own["rng"].shape != fresh.shape:  # of another kind of device: its draws cannot be gone on with
            own["rng"] = fresh
        estimator.learner_.load_state_dict({"tensors": own, "meta": content["meta"]})
    except ScaleClError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(f"{os.fspath(path)} is damaged: {' '.join(str(error).split())[:200]}") from None
    estimator.classes_, estimator.tasks_ = estimator._book.classes, estimator._book.tasks
    return estimator


def plain_state(state: dict[str, Any]) -> dict[str, Any]:
    """The attributes of an estimator with its learner as tensors and plain values, for copies and other processes."""
    learner = state.get("learner_")
    return {**state, "learner_": learner.state_dict()} if isinstance(learner, Learner) else state


def revive(estimator: ContinualClassifier) -> None:
    """Make the learner again of what `plain_state` left of it."""
    state: Any = estimator.__dict__.get("learner_")
    if state is not None:
        estimator.learner_ = estimator._make_learner()
        estimator.learner_.load_state_dict(state)


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


def _names(names: Any) -> list[str] | None:
    return None if names is None else [str(name) for name in names]
