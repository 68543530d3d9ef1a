"""Any learner as a scikit-learn classifier that continues to learn, task after task."""

from __future__ import annotations

import copy
import logging
import os
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Self, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.exceptions import NotFittedError
from sklearn.metrics import accuracy_score
from sklearn.utils import check_consistent_length, check_random_state
from torch import Tensor

from scale_cl.engine import LearnerConfig, Turns, in_turn
from scale_cl.errors import ConfigError, InputError, UnknownTaskError
from scale_cl.estimator import model_file, tasks
from scale_cl.estimator.samples import InputFormat, batches_of, is_loader, read_ahead, read_inputs, read_labels
from scale_cl.learners import Learner, registry
from scale_cl.learners.boundaries import Detection
from scale_cl.learners.presets import USER_FEATURES, USER_IMAGES
from scale_cl.nets.custom_backbone import BackboneLike
from scale_cl.plugins import name_references
from scale_cl.settings import build, field_names, suggest
from scale_cl.streams import Scenario, TaskInfo
from scale_cl.streams.from_arrays import Layout
from scale_cl.training.checkpoint import Images
from scale_cl.training.machine import choose_device, threads_in_use
from scale_cl.training.memory_check import Work, check_task_fits

_AT_ONCE = 1024  # samples that are predicted together
_NAMED = 5  # at most so many labels are named in a warning
_log = logging.getLogger("scale_cl")
_FITTED = frozenset({"learner_", "finder_", "images_", "classes_", "tasks_", "n_features_in_", "feature_names_in_"})


class ContinualClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A classifier for tasks that arrive one after another, with any learner.

    Every setting of the learner is a parameter, as in ContinualClassifier("er", lr=0.05, memory=500).
    Tasks and labels may have any name and appear at any time; a task may come back later, with more classes.
    Inputs are feature vectors [n, f] or images [n, h, w], [n, h, w, c] or [n, c, h, w] (uint8 pixels, or floats), as
    numpy arrays, tensors, pandas tables or a DataLoader that gives (X, y). One thread may train while others predict.

    Parameters:
        learner: a name of `scale-cl list learners`, or a subclass of `scale_cl.learners.Learner`.
        scenario: "task": each task has a head for its own classes, and predictions need the task; "domain": all tasks
            have the same classes and share one head; "class": one head for all classes seen, predictions need no task.
        batch_size: samples per step; with a loader, each of its batches is one step.
        epochs: passes that `fit` makes; `partial_fit` makes one, because the data of a stream is seen once.
        detection: how `partial_fit(..., task="auto")` finds tasks, such as {"detector": "kswin"}: settings of
            `scale_cl.learners.boundaries.Detection` by name.
        standardise: by the running mean and deviation of all inputs seen; "auto": floats yes, pixels no.
        layout: layout of images with four dimensions: "NHWC", "NCHW", or "auto" if the shape tells.
        pixel_max: what uint8 pixels are divided by.
        backbone: a name, such as "mlp-128-128"; a module of your own that returns features, a function that makes one,
            or a `CustomBackbone`.
        device: auto, cpu, cuda or cuda:N.
        threads: of the processor, used while the estimator learns or predicts; torch's own number is left as it is.
        random_state: decides weights and draws; the same data in the same order then gives the same model.
        settings: settings of that learner, each by its name; `scale-cl show LEARNER` explains them.

    Attributes:
        classes_: all labels seen, sorted; the columns of `predict_proba`.
        tasks_: names of all tasks seen, in order of arrival.
        learner_: the learner itself.
        labels_: the labels of each task's head.
        input_format_: shape and type of the inputs.
        seed_: the seed of the learner, from `random_state`.
        images_: how image files become inputs, if the model is of a run on image files: resized, or exact.
        finder_: finds the boundaries of tasks, once `task="auto"` was given; `finder_.found` lists them.
        n_features_in_: number of features, for feature vectors.
        feature_names_in_: their names, for tables.

    Examples:
        >>> from sklearn.datasets import load_iris
        >>> from scale_cl import ContinualClassifier
        >>> X, y = load_iris(return_X_y=True)
        >>> model = ContinualClassifier("er").fit(X, y)
        >>> bool(model.score(X, y) > 0.9)
        True
    """

    classes_: NDArray[Any]
    tasks_: list[str]
    learner_: Learner
    labels_: tasks.ClassBook
    input_format_: InputFormat
    seed_: int
    finder_: tasks.FoundTasks
    images_: Images | None
    _turns: Turns

    def __init__(
        self,
        learner: str | type[Learner] = "er",
        *,
        scenario: str = "task",
        batch_size: int = 10,
        epochs: int = 10,
        detection: dict[str, object] | None = None,
        standardise: bool | str = "auto",
        layout: Layout = "auto",
        pixel_max: float = 255.0,
        backbone: str | BackboneLike | None = None,
        device: str = "cpu",
        threads: int = 1,
        random_state: Any = 0,
        **settings: Any,
    ) -> None:
        self.learner, self.scenario, self.batch_size, self.epochs = learner, scenario, batch_size, epochs
        self.detection, self.standardise, self.layout, self.pixel_max = detection, standardise, layout, pixel_max
        self.backbone, self.device, self.threads, self.random_state = backbone, device, threads, random_state
        self._settings = settings

    # ---- learning ----------------------------------------------------------------------------------------------------
    def fit(self, X: Any, y: Any = None, *, task: Any = None) -> Self:
        """Learn from scratch: one task, or several in turn if `task` names the task of each sample."""
        self._check_parameters()
        with threads_in_use(self.threads):
            batches = read_ahead(X, labelled=True) if is_loader(X) else None  # what gives nothing changes nothing
            self._forget()
            if batches is not None:
                self._learn_batches(batches, y, task)
                for _ in range(self.epochs - 1):
                    self._learn_batches(batches_of(X, labelled=True), y, task)
            else:
                x, labels = self._read(X, y, first=True, task=task)
                self._learn_groups(x, labels, self._groups(task, len(x)))
            if self.__sklearn_is_fitted__():
                self.learner_.end_task()
        return self

    @in_turn
    def _forget(self) -> None:
        for name in _FITTED & vars(self).keys():
            delattr(self, name)

    def partial_fit(self, X: Any, y: Any = None, classes: Any = None, *, task: Any = None) -> Self:
        """Learn from more samples, in one pass and in the given order.

        Without a task, the data is a stream without tasks: everything stored is replayed, and labels may be new at any
        time. Name tasks where you know them, and where you can name them again for predictions.

        Args:
            X: any number of samples, or a loader that gives batches (X, y).
            y: their labels.
            classes: all labels of the task, if they are known beforehand; `y` may have no others.
            task: name of the task, or of the task of each sample; left out for a stream without tasks. A name seen
                before continues that task; once one was named, it is optional while it is the only one. "auto": find
                out where tasks begin (extra `drift`); they are called found-1, found-2 and so on.
        """
        self._check_parameters()
        self._check_learns_in_parts(task)
        known = None if classes is None else read_labels(classes, name=type(self).__name__)
        with threads_in_use(self.threads):
            if tasks.asks_to_find(task) or hasattr(self, "finder_"):
                self._find(X, y, task, known)
            elif is_loader(X):
                self._learn_batches(read_ahead(X, labelled=True), y, task, known)
            else:
                self._learn_once(X, y, task, known)
        return self

    def _check_learns_in_parts(self, task: Any) -> None:
        """Raise ConfigError if the learner cannot learn the data of several calls one after another."""
        entry = self._learner_entry()
        if entry.kind.order == "shuffled":
            raise ConfigError(
                f"{entry.name} learns all tasks shuffled together; give them at once, fit(X, y, task=...), or take "
                "another learner"
            )
        if task is None and entry.kind.needs_boundaries and not self.__sklearn_is_fitted__():
            raise ConfigError(
                f"{entry.name} must be told where tasks begin and end; name them, task=..., have them found, "
                f"task={tasks.AUTO!r}, or take a learner that needs none (`scale-cl list learners` says which)"
            )

    def _learn_once(self, X: Any, y: Any, task: Any, known: NDArray[Any] | None) -> None:
        """Learn from arrays in one pass, task after task."""
        x, labels = self._read(X, y, first=not self.__sklearn_is_fitted__(), task=task)
        for name, rows in self._groups(task, len(x)):
            outputs, own = self.begin(name, labels[rows], known), x[torch.from_numpy(rows)]
            for _ in range(self.learner_.epochs):
                self._steps(own, outputs, torch.arange(len(own)), self.batch_size)

    def _find(self, X: Any, y: Any, task: Any, known: NDArray[Any] | None) -> None:
        """Learn from samples whose tasks are to be found."""
        first = not self.__sklearn_is_fitted__()
        if known is not None:
            raise InputError(f"task={tasks.AUTO!r} finds out which classes a task has; leave classes out")
        if not first and hasattr(self, "finder_") != tasks.asks_to_find(task):
            raise InputError(f"tasks are either named or found: give task={tasks.AUTO!r} in every call or in none")
        for raw_x, raw_y in read_ahead(X, labelled=True) if is_loader(X) else [(X, y)]:
            x, labels = self._read(raw_x, raw_y, first=first, task=task)
            if first:
                self.finder_, first = self.new_finder(), False
            size = len(x) if is_loader(X) else self.batch_size
            for rows in (slice(start, start + size) for start in range(0, len(x), size)):
                self._find_step(x[rows], labels[rows])
            self.learner_.check_finite()

    @in_turn
    def _find_step(self, x: Tensor, labels: NDArray[Any]) -> None:
        self.labels_.meet(labels)
        self.finder_.observe(x, self.labels_.outputs(None, labels))

    def _groups(self, task: Any, samples: int) -> list[tuple[str, NDArray[np.int64]]]:
        """The tasks of training data, each with its rows."""
        seen = self.tasks_ if self.__sklearn_is_fitted__() else []
        return tasks.groups_to_learn(task, samples, seen, boundaries=self.learner_.spec.boundaries)

    def _learn_batches(
        self, batches: Iterable[tuple[Any, Any]], y: Any, task: Any, known: NDArray[Any] | None = None
    ) -> None:
        """Learn from the batches of a loader, each in one step."""
        if y is not None:
            raise InputError("X is a loader, which gives the labels itself; leave y out")
        tasks.check_for_loader(task)
        for raw_x, raw_y in batches:
            x, labels = self._read(raw_x, raw_y, first=not self.__sklearn_is_fitted__(), task=task)
            name = self._groups(task, len(x))[0][0]
            self._steps(x, self.begin(name, labels, known), torch.arange(len(x)), len(x))

    def _learn_groups(self, x: Tensor, labels: NDArray[Any], groups: list[tuple[str, NDArray[np.int64]]]) -> None:
        """Learn task after task, `epochs` times each, or all together if the learner's order is "shuffled"."""
        random = np.random.default_rng(self.seed_)
        if self.learner_.order == "shuffled" and len(groups) > 1:
            outputs, task = torch.empty(len(x), dtype=torch.int64), torch.empty(len(x), dtype=torch.int64)
            for number, (name, rows) in enumerate(groups):
                outputs[rows], task[rows] = self.begin(name, labels[rows], None), number
            for _ in range(self.epochs):
                for batch in torch.from_numpy(random.permutation(len(x))).split(self.batch_size):
                    self.learner_.observe(x[batch], outputs[batch], task[batch])
            return
        for name, rows in groups:
            outputs, own = self.begin(name, labels[rows], None), x[torch.from_numpy(rows)]
            for _ in range(self.epochs):
                self._steps(own, outputs, torch.from_numpy(random.permutation(len(rows))), self.batch_size)

    @in_turn
    def begin(self, name: str, labels: NDArray[Any], known: NDArray[Any] | None = None) -> Tensor:
        """Open the task with a head for all its labels; returns the labels as outputs of the head."""
        if known is not None and len(strangers := np.setdiff1d(labels, known)):
            raise InputError(f"label {strangers.tolist()[0]!r} is not one of `classes`; add it there or leave that out")
        is_new = name not in self.labels_.tasks
        book = copy.deepcopy(self.labels_) if is_new else self.labels_  # a task that is refused leaves nothing behind
        grown = book.add(name, labels if known is None else known)
        if is_new and self.labels_.tasks:
            self._check_fits((*self.learner_.engine.classes, book.size(name)), self.learner_)
        if grown or self.learner_.current_task != name:
            self.learner_.begin_task(TaskInfo(name, book.size(name)))
        self.labels_, self.classes_, self.tasks_ = book, book.classes, book.tasks
        return book.outputs(name, labels)

    def _check_fits(self, classes: tuple[int, ...], learner: Learner | None) -> None:
        """Raise ConfigError if the last of these tasks will not fit; a class or backbone of the user's is not tried."""
        entry, device = self._learner_entry(), choose_device(self.device)
        listed = entry.name in registry.names() and registry.entry(entry.name).kind is entry.kind
        if listed and isinstance(self.backbone, str | None):
            work = Work(self.input_format_.spec, classes, int(self.batch_size), _AT_ONCE, device.type == "cuda")
            check_task_fits(entry.name, self._config(), work, device, learner=learner)

    def _steps(self, x: Tensor, y: Tensor, order: Tensor, size: int) -> None:
        for rows in order.split(size):
            self.learner_.observe(x[rows], y[rows])
        self.learner_.check_finite()

    # ---- prediction --------------------------------------------------------------------------------------------------
    def predict(self, X: Any, *, task: Any = None) -> NDArray[Any]:
        """Predict the label of each sample.

        Args:
            X: samples, or a loader of them.
            task: the task of all samples, or one per sample; "infer" lets the model infer it per sample; optional while
                there is only one task.
        """
        return np.concatenate([labels for labels, _ in self._answers(X, task)])

    def predict_proba(self, X: Any, *, task: Any = None) -> NDArray[np.float32]:
        """Probabilities [n, len(classes_)]; 0 for labels that the sample's task does not have."""
        return np.concatenate([proba for _, proba in self._answers(X, task)])

    def score(self, X: Any, y: Any = None, sample_weight: Any = None, *, task: Any = None) -> float:
        """Accuracy of `predict`; leave `y` out for a loader.

        A label that was never learnt counts as wrong, and a warning names it.
        """
        if is_loader(X) and y is None:
            tasks.check_for_loader(task)
            pairs = list(read_ahead(X, labelled=True))
            predicted = np.concatenate([self.predict(x, task=task) for x, _ in pairs])
            y = np.concatenate([read_labels(labels, name=type(self).__name__) for _, labels in pairs])
        else:
            predicted = self.predict(X, task=task)
            y = y.detach().cpu().numpy() if isinstance(y, Tensor) else y
        found = float(accuracy_score(y, predicted, sample_weight=sample_weight))
        if strangers := sorted(set(np.asarray(y).tolist()) - set(self.classes_.tolist()), key=str):
            named = ", ".join(map(repr, strangers[:_NAMED])) + (", ..." if len(strangers) > _NAMED else "")
            _log.warning("scale-cl: warning: never learnt: %s; samples with such labels count as wrong", named)
        return found

    @in_turn
    def infer_task(self, X: Any) -> NDArray[Any]:
        """The inferred task of each sample."""
        x = self._inputs(X)
        joint = self.learner_.engine.joint_scores
        with threads_in_use(self.threads):
            parts = [joint(part).logsumexp(2).argmax(1) for part in x.split(_AT_ONCE)]
        names: NDArray[Any] = np.array(self.tasks_)[torch.cat(parts).cpu().numpy()]
        return names

    def _answers(self, X: Any, task: Any) -> list[tuple[NDArray[Any], NDArray[np.float32]]]:
        """Labels and probabilities, one pair per batch of a loader."""
        with threads_in_use(self.threads):
            if not is_loader(X):
                return [self._answer(X, task)]
            tasks.check_for_loader(task)
            return [self._answer(x, task) for x, _ in read_ahead(X, labelled=False)]

    @in_turn
    def _answer(self, X: Any, task: Any) -> tuple[NDArray[Any], NDArray[np.float32]]:
        x = self._inputs(X)
        if tasks.asks_to_infer(task):
            needed = len(self.tasks_) > 1 and self.input_format_.spec.scenario != "class"
            task = self.infer_task(X) if needed else None
        proba = np.zeros((len(x), len(self.classes_)), dtype=np.float32)
        if task is None and not self.needs_task:
            scores = torch.cat([self.learner_.predict(piece) for piece in x.split(_AT_ONCE)])
            proba[:, self.labels_.all_columns()[: scores.shape[1]]] = scores.softmax(1).cpu().numpy()
            return self.classes_[proba.argmax(1)], proba
        for name, rows in tasks.groups_to_predict(task, len(x), self.tasks_):
            pieces = x[torch.from_numpy(rows)].split(_AT_ONCE)
            logits = torch.cat([self.learner_.predict(piece, name) for piece in pieces])
            proba[np.ix_(rows, self._columns(name))] = logits.softmax(1).cpu().numpy()
        return self.classes_[proba.argmax(1)], proba

    def _columns(self, task: str) -> NDArray[np.int64]:
        """The index in `classes_` of the label of each output of a task's head."""
        engine = self.learner_.engine
        if not engine.translates:
            return self.labels_.columns(task)
        return self.labels_.all_columns()[engine.labels.of(engine.numbers[task])]

    @property
    def needs_task(self) -> bool:
        """Whether a prediction depends on the task of a sample."""
        self._require_fitted()
        return self.input_format_.spec.scenario != "class" and self.learner_.engine.task_matters

    # ---- files -------------------------------------------------------------------------------------------------------
    @in_turn
    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the trained estimator with its memory as one safetensors file, whole or not at all."""
        self._require_fitted()
        model_file.save(self, path)

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        *,
        device: str = "cpu",
        backbone: BackboneLike | None = None,
        learner: type[Learner] | str | None = None,
        seed: int | None = None,
    ) -> Self:
        """The estimator that `save` wrote, or the model that a run has kept, ready to predict and to continue learning.

        A run is not changed by what its estimator learns; `scale_cl.learn` teaches the run itself.

        Args:
            path: the file, or the directory of the run.
            device: auto, cpu, cuda or cuda:N.
            backbone: the backbone, if the estimator was made with one of your own.
            learner: the learner's class, if the estimator was made with a class instead of a name; its reference, if
                it was made with one, such as `file.py:Class`.
            seed: which model of a run with several seeds.
        """
        return model_file.load(cls, path, device=device, backbone=backbone, learner=learner, seed=seed)

    @in_turn
    def __getstate__(self) -> dict[str, Any]:
        """All attributes, with the learner as tensors and plain values, for copies and other processes."""
        state: dict[str, Any] = dict(super().__getstate__())
        state.pop("_turns", None)
        if "labels_" in state:
            state["labels_"] = copy.deepcopy(self.labels_)  # training may go on before the state is copied further
        for name in {"learner_", "finder_"} & state.keys():
            found = state[name].state_dict()  # of the very tensors that the next step changes
            state[name] = {"tensors": {key: t.clone() for key, t in found["tensors"].items()}, "meta": found["meta"]}
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._name_references()  # what comes from a pickle may run code anyway
        saved: Any = self.__dict__.get("learner_")
        if saved is not None:
            self.learner_ = self.new_learner()
            self.learner_.load_state_dict(saved)
        if "finder_" in self.__dict__:
            found: Any = self.finder_
            self.finder_ = self.new_finder()
            self.finder_.load_state_dict(found)

    # ---- parameters, inputs and the learner --------------------------------------------------------------------------
    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The parameters, and the settings of the learner that were given."""
        params: dict[str, Any] = super().get_params(deep)
        return params | self._settings

    def set_params(self, **params: Any) -> Self:
        """Set parameters and settings of the learner; like those of the constructor, they are checked when used."""
        own = set(self._get_param_names())
        super().set_params(**{name: value for name, value in params.items() if name in own})
        self._settings = self._settings | {name: value for name, value in params.items() if name not in own}
        return self

    @property
    def turns(self) -> Turns:
        """Those of the learner: what it has learnt changes while no prediction is being made."""
        if "_turns" not in vars(self):
            self.__dict__.setdefault("_turns", Turns())  # another thread may have been faster
        return self._turns

    def new_learner(self) -> Learner:
        """A new learner with this estimator's parameters, for inputs such as those seen."""
        entry, backbone = self._learner_entry(), None if isinstance(self.backbone, str) else self.backbone
        spec, device = self.input_format_.spec, choose_device(self.device)
        learner = registry.make(entry, spec, self._config(), seed=self.seed_, device=device, backbone=backbone)
        learner.engine.turns = self.turns
        learner.engine.advice = ""
        return learner

    def _config(self) -> LearnerConfig:
        """All settings of the learner."""
        spec, entry = self.input_format_.spec, self._learner_entry()
        colour = len(spec.shape) == 3 and spec.shape[0] == 3
        like = USER_IMAGES[0] if colour else USER_FEATURES
        values = entry.settings(like, boundaries=spec.boundaries)
        standardise = spec.pixel_max is None if self.standardise == "auto" else bool(self.standardise)
        values |= {"standardise": standardise, **self._learner_settings()}
        if isinstance(self.backbone, str):
            values["backbone"] = self.backbone
        plain = {name: value.item() if isinstance(value, np.generic) else value for name, value in values.items()}
        return build(entry.kind.config_class, plain)

    def new_finder(self) -> tasks.FoundTasks:
        """A new finder of tasks for this estimator's learner, with its parameters."""
        given = {} if self.detection is None else self.detection
        if not isinstance(given, dict):
            raise ConfigError(f"detection is {given!r}; give settings by name, such as {{'detector': 'kswin'}}")
        return tasks.FoundTasks(self, build(Detection, given, section="detection"))

    def task_classes(self, task: Any) -> NDArray[Any]:
        """The labels of a task in the order of its head's outputs, as an exported model has them."""
        self._require_fitted()
        name = tasks.name_of(task)
        if name not in self.tasks_:
            seen = ", ".join(map(repr, self.tasks_))
            raise UnknownTaskError(f"task {name!r} was never seen; tasks seen: {seen}")
        labels: NDArray[Any] = self.classes_[self.labels_.columns(name)]
        return labels

    @property
    def input_origin(self) -> NDArray[np.float64] | None:
        """What is subtracted from feature vectors first; None: nothing."""
        self._require_fitted()
        return self.input_format_.origin

    def _name_references(self) -> None:
        """Let learner and backbone be imported, as the user has named them; `load` does not come here."""
        name_references(learner=getattr(self, "learner", None), backbone=self.backbone)

    def _learner_entry(self) -> registry.LearnerEntry:
        """The learner's class, name and presets."""
        if isinstance(self.learner, str) or (isinstance(self.learner, type) and issubclass(self.learner, Learner)):
            return registry.entry(self.learner)
        allowed = "a name of `scale-cl list learners` or a subclass of Learner"
        raise ConfigError(f"learner is {self.learner!r}; give {allowed}")

    def _learner_settings(self) -> dict[str, object]:
        """The settings that the user has chosen."""
        return dict(self._settings)

    def _check_parameters(self) -> None:
        self._name_references()
        for name, value in (("batch_size", self.batch_size), ("epochs", self.epochs)):
            if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
                raise ConfigError(f"{name} is {value!r}; it must be a whole number of at least 1")
        if self.scenario not in get_args(Scenario):
            raise ConfigError(f"scenario is {self.scenario!r}; it must be 'task', 'domain' or 'class'")
        if self.standardise not in (True, False, "auto"):
            raise ConfigError(f"standardise is {self.standardise!r}; it must be True, False or 'auto'")
        self._check_settings()

    def _check_settings(self) -> None:
        entry = self._learner_entry()
        known, own = field_names(entry.kind.config_class), self._get_param_names()
        for name, value in self._settings.items():
            if name == "settings" and isinstance(value, dict):
                given = ", ".join(f"{key}={inner!r}" for key, inner in value.items()) or "name=value"
                raise ConfigError(f"settings are parameters of their own: write {given}, without settings=")
            if name not in known:
                near = suggest(name, [*own, *known])
                hint = f"{near} " if near.endswith("?") else ""
                raise ConfigError(f"{entry.name} has no setting {name!r}; {hint}its settings are {', '.join(known)}")

    def _read(self, X: Any, y: Any, *, first: bool, task: Any) -> tuple[Tensor, NDArray[Any]]:
        """Inputs and labels of one call; the first call decides the format of the inputs and makes the learner.

        Without a task in the first call, the learner has no boundaries, unless it needs them: then there is one task.
        """
        if y is None:
            read_labels(y, name=f"This {type(self).__name__} estimator")
        x, inputs = read_inputs(self, X, None if first else self.input_format_)
        labels = read_labels(y, name=type(self).__name__)
        check_consistent_length(x, labels)
        if first:
            self.input_format_ = inputs
            self.seed_ = int(check_random_state(self.random_state).randint(2**31 - 1))
            if isinstance(self.random_state, int | np.integer):
                self.seed_ = int(self.random_state)
            if task is None and not self._learner_entry().kind.needs_boundaries:
                spec = replace(inputs.spec, scenario="class", boundaries=False)
                self.input_format_ = replace(inputs, spec=spec)
            self.labels_ = tasks.ClassBook(shared=self.input_format_.spec.scenario != "task")
            self._check_fits((len(np.unique(labels)),), None)
            self.learner_ = self.new_learner()
        return x, labels

    def _inputs(self, X: Any) -> Tensor:
        self._require_fitted()
        return read_inputs(self, X, self.input_format_)[0]

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "classes_")

    def _require_fitted(self) -> None:
        if not self.__sklearn_is_fitted__():
            raise NotFittedError(
                f"This {type(self).__name__} instance is not fitted yet: call fit or partial_fit before this method"
            )
