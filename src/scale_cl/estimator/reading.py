"""The side of an estimator that users do not see: its parameters checked, its inputs read, its learner made."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.exceptions import NotFittedError
from sklearn.utils import check_consistent_length, check_random_state
from sklearn.utils.validation import validate_data
from torch import Tensor

from scale_cl.errors import ConfigError, InputError, UnknownTaskError
from scale_cl.estimator.labels import ClassBook, read_labels
from scale_cl.estimator.samples import as_images, plain, writable
from scale_cl.learners import Learner, registry
from scale_cl.settings import build
from scale_cl.streams import InputSpec
from scale_cl.training.machine import choose_device

# The paper's rate for permuted streams, 0.1, is the best for digits, but lets SCALE diverge on split MNIST.
_STEADY: dict[str, dict[str, object]] = {name: {"inner_lr": 0.03} for name in ("scale", "scale-ema")}
_FITTED = ("learner_", "classes_", "tasks_", "n_features_in_", "feature_names_in_")


class ReadingEstimator(BaseEstimator):  # type: ignore[misc]
    """What an estimator does before its learner sees anything."""

    learner_: Learner
    classes_: NDArray[Any]
    tasks_: list[str]
    _book: ClassBook
    _spec: InputSpec
    _origin: NDArray[np.float64] | None  # what is subtracted from features before they lose half their digits
    _seed: int

    def _learner_name(self) -> str:
        return str(self.learner)

    def _learner_settings(self) -> dict[str, object]:
        """Settings that the user has chosen."""
        return dict(self.settings or {})

    def _check_parameters(self) -> None:
        whole = {"batch_size": self.batch_size, "epochs": self.epochs}
        for name, value in whole.items():
            if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
                raise ConfigError(f"{name} is {value!r}; it must be a whole number of at least 1")
        if self.scenario not in ("task", "domain"):
            raise ConfigError(f"scenario is {self.scenario!r}; it must be 'task' or 'domain'")
        if self.standardise not in (True, False, "auto"):
            raise ConfigError(f"standardise is {self.standardise!r}; it must be True, False or 'auto'")
        registry.entry(self._learner_name())

    def _forget(self) -> None:
        for name in _FITTED:
            if hasattr(self, name):
                delattr(self, name)

    def _is_fitted(self) -> bool:
        return hasattr(self, "classes_")

    def __sklearn_is_fitted__(self) -> bool:
        return self._is_fitted()

    def _require_fitted(self) -> None:
        if not self._is_fitted():
            raise NotFittedError(
                f"This {type(self).__name__} instance is not fitted yet: call fit or partial_fit before this method"
            )

    def task_classes(self, task: Any) -> NDArray[Any]:
        """The labels of a task in the order of its head's outputs, as an exported model has them."""
        self._require_fitted()
        if str(task) not in self.tasks_:
            raise UnknownTaskError(
                f"task {str(task)!r} was never seen; tasks seen: {', '.join(map(repr, self.tasks_))}"
            )
        labels: NDArray[Any] = self.classes_[self._book.columns(str(task))]
        return labels

    @property
    def input_origin(self) -> NDArray[np.float64] | None:
        """What is subtracted from feature vectors before anything else; None: nothing."""
        self._require_fitted()
        return self._origin

    # ---- inputs ------------------------------------------------------------------------------------------------------

    def _read(self, X: Any, y: Any, *, first: bool) -> tuple[Tensor, NDArray[Any]]:
        """Inputs and labels of one call; the `first` decides what inputs look like and makes the learner."""
        if y is None:
            read_labels(y, name=f"This {type(self).__name__} estimator")
        x = self._inputs(X, first=first)
        labels = read_labels(y, name=type(self).__name__)
        check_consistent_length(x, labels)
        if first:
            self._seed = int(check_random_state(self.random_state).randint(2**31 - 1))
            if isinstance(self.random_state, int | np.integer):
                self._seed = int(self.random_state)
            self._book = ClassBook(shared=self.scenario == "domain")
            self.learner_ = self._make_learner()
        return x, labels

    def _inputs(self, X: Any, *, first: bool) -> Tensor:
        """[n, *shape] uint8 pixels or float32 values."""
        if not first:
            self._require_fitted()
        array = plain(X)
        if isinstance(array, np.ndarray) and array.ndim in (3, 4):
            values = as_images(array, self._layout_of(array.shape, first=first))
            spec = InputSpec(values.shape[1:], float(self.pixel_max) if values.dtype == np.uint8 else None, "task")
            origin = None
        else:
            values = validate_data(self, array, reset=first, dtype="numeric")
            spec = InputSpec(values.shape[1:], None, "task")
            origin = self._origin_of(values) if first else self._origin
            values = _shifted(values, origin)
        spec = replace(spec, scenario=self.scenario)
        if first:
            self._spec, self._origin = spec, origin
        elif spec != self._spec:
            raise InputError(f"inputs are {_described(spec)}; this estimator was trained on {_described(self._spec)}")
        return writable(values)

    def _layout_of(self, shape: tuple[int, ...], *, first: bool) -> Any:
        """The layout of images; after the first ones, that of their shape."""
        if self.layout != "auto" or first or len(shape) < 4:
            return self.layout
        if shape[1:] == self._spec.shape:
            return "NCHW"
        return "NHWC" if (shape[3], *shape[1:3]) == self._spec.shape else "auto"

    def _origin_of(self, values: NDArray[Any]) -> NDArray[np.float64] | None:
        return values[0].astype(np.float64) if self.standardise else None

    # ---- the learner -------------------------------------------------------------------------------------------------

    def _make_learner(self) -> Learner:
        name, spec = self._learner_name(), self._spec
        colour = len(spec.shape) == 3 and spec.shape[0] == 3
        values = registry.paper_settings(name, registry.USER_IMAGES[0] if colour else "digits")
        values |= {} if colour else _STEADY.get(name, {})
        standardise = spec.pixel_max is None if self.standardise == "auto" else bool(self.standardise)
        values |= {"standardise": standardise, **self._learner_settings()}
        config = build(registry.config_class(name), values, section="settings")
        device = choose_device(self.device)
        learner = registry.make(name, spec, config, seed=self._seed, device=device, backbone=self.backbone)
        learner.advice = "lower the rate"
        return learner


def _shifted(values: NDArray[Any], origin: NDArray[np.float64] | None) -> NDArray[np.float32]:
    """Features as float32, differences from `origin`: a clock's seconds keep their digits."""
    with np.errstate(over="ignore"):
        narrow = (values if origin is None else values - origin).astype(np.float32)
    if not np.isfinite(narrow).all():
        raise InputError("features are beyond the range of 32-bit floats; scale them down")
    return narrow


def _described(spec: InputSpec) -> str:
    kind = "floats" if spec.pixel_max is None else f"pixels of 0 to {spec.pixel_max:g}"
    return f"{kind} of shape {list(spec.shape)} each"
