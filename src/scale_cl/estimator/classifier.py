"""Any learner of the catalog as a scikit-learn classifier that goes on learning, task after task."""

from __future__ import annotations

import os
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin
from sklearn.metrics import accuracy_score
from torch import Tensor

from scale_cl.errors import InputError
from scale_cl.estimator import persistence, tasks
from scale_cl.estimator.labels import read_labels
from scale_cl.estimator.reading import ReadingEstimator
from scale_cl.estimator.samples import Layout, batches_of, is_loader
from scale_cl.estimator.task_inference import task_evidence
from scale_cl.learners import Joint
from scale_cl.nets.custom_backbone import BackboneLike
from scale_cl.streams import TaskInfo

_AT_ONCE = 1024  # samples of a prediction that are computed together


class ContinualClassifier(ClassifierMixin, ReadingEstimator):  # type: ignore[misc]
    """A classifier for tasks that arrive one after another, by any learner of the catalog.

    Settings of the learner go into `settings`, as in ContinualClassifier("er", settings={"lr": 0.05}).
    Tasks and labels may have any name and appear whenever they do; a task may come back later, with more classes.
    Inputs are feature vectors [n, f] or images [n, h, w], [n, h, w, c] or [n, c, h, w] (uint8 pixels, or floats), as
    numpy arrays, tensors, pandas tables or a DataLoader that gives (X, y).

    Parameters:
        learner: a name of `scale-cl list learners`.
        settings: settings of that learner by name, such as {"lr": 0.05}; `scale-cl show LEARNER` explains them.
        scenario: "task": each task has a head for its own classes; "domain": all tasks share one.
        batch_size: samples of a step, except with a loader, whose batches are steps.
        epochs: passes that `fit` makes; `partial_fit` makes one, as the data of a stream is seen once.
        standardise: by the running mean and deviation of all that was seen; "auto": floats yes, pixels no.
        layout: of images with four dimensions: "NHWC", "NCHW", or "auto" where the shape tells.
        pixel_max: what uint8 pixels are divided by.
        backbone: a module of your own that returns features, a function that makes one, or an `CustomBackbone`.
        device: auto, cpu, cuda or cuda:N.
        random_state: decides weights and draws: the same data in the same order then give the same model.

    Attributes:
        classes_: all labels seen, sorted; the columns of `predict_proba`.
        tasks_: names of all tasks seen, in order of arrival.
        learner_: the learner itself.
        n_features_in_: number of features, of feature vectors.
        feature_names_in_: their names, of tables.

    Examples:
        >>> from sklearn.datasets import load_iris
        >>> from scale_cl import ContinualClassifier
        >>> X, y = load_iris(return_X_y=True)
        >>> model = ContinualClassifier("er").fit(X, y)
        >>> bool(model.score(X, y) > 0.9)
        True
    """

    def __init__(
        self,
        learner: str = "er",
        *,
        settings: dict[str, object] | None = None,
        scenario: str = "task",
        batch_size: int = 10,
        epochs: int = 10,
        standardise: bool | str = "auto",
        layout: Layout = "auto",
        pixel_max: float = 255.0,
        backbone: BackboneLike | None = None,
        device: str = "cpu",
        random_state: Any = 0,
    ) -> None:
        self.learner = learner
        self.settings = settings
        self.scenario = scenario
        self.batch_size = batch_size
        self.epochs = epochs
        self.standardise = standardise
        self.layout = layout
        self.pixel_max = pixel_max
        self.backbone = backbone
        self.device = device
        self.random_state = random_state

    # ---- learning ----------------------------------------------------------------------------------------------------

    def fit(self, X: Any, y: Any = None, *, task: Any = None) -> Self:
        """Forget everything and learn this: one task, or several in turn where `task` names that of each sample."""
        self._check_parameters()
        self._forget()
        if is_loader(X):
            for _ in range(self.epochs):
                self._learn_batches(X, y, tasks.name_to_learn(task, []))
        else:
            x, labels = self._read(X, y, first=True)
            groups = tasks.groups_to_learn(task, len(x), [])
            self._learn_groups(x, labels, groups)
        if self._is_fitted():
            self.learner_.end_task()
        return self

    def partial_fit(self, X: Any, y: Any = None, classes: Any = None, *, task: Any = None) -> Self:
        """Learn from samples of one task, seen once, in the order in which they are.

        Args:
            X: any number of samples, or a loader that gives batches (X, y).
            y: their labels.
            classes: labels that the task has or will have, where they are known beforehand; `y` may have no others.
            task: its name; may be left out while there is only one task. A name seen before goes on with that task.
        """
        self._check_parameters()
        seen = self.tasks_ if self._is_fitted() else []
        name = tasks.name_to_learn(task, seen)
        known = None if classes is None else read_labels(classes, name=type(self).__name__)
        if is_loader(X):
            self._learn_batches(X, y, name, known)
            return self
        x, labels = self._read(X, y, first=not self._is_fitted())
        outputs = self._begin(name, labels, known)
        for _ in range(self.learner_.epochs):
            self._steps(x, outputs, torch.arange(len(x)), self.batch_size)
        return self

    def _learn_batches(self, loader: Any, y: Any, name: str, known: NDArray[Any] | None = None) -> None:
        if y is not None:
            raise InputError("X is a loader, which gives the labels itself; leave y out")
        for batch in batches_of(loader, labelled=True):
            x, labels = self._read(batch.x, batch.y, first=not self._is_fitted())
            self._steps(x, self._begin(name, labels, known), torch.arange(len(x)), len(x))

    def _learn_groups(self, x: Tensor, labels: NDArray[Any], groups: list[tuple[str, NDArray[np.int64]]]) -> None:
        """Task after task, `epochs` times each; joint training gets all of them shuffled together."""
        random = np.random.default_rng(self._seed)
        if isinstance(self.learner_, Joint) and len(groups) > 1:
            self._learn_together(self.learner_, x, labels, groups, random)
            return
        for name, rows in groups:
            outputs, own = self._begin(name, labels[rows], None), x[torch.from_numpy(rows)]
            for _ in range(self.epochs):
                self._steps(own, outputs, torch.from_numpy(random.permutation(len(rows))), self.batch_size)

    def _learn_together(
        self,
        learner: Joint,
        x: Tensor,
        labels: NDArray[Any],
        groups: list[tuple[str, NDArray[np.int64]]],
        random: np.random.Generator,
    ) -> None:
        outputs, task = torch.empty(len(x), dtype=torch.int64), torch.empty(len(x), dtype=torch.int64)
        for number, (name, rows) in enumerate(groups):
            outputs[rows] = self._begin(name, labels[rows], None)
            task[rows] = number
        for _ in range(self.epochs):
            for rows in torch.from_numpy(random.permutation(len(x))).split(self.batch_size):
                learner.observe_mixed(x[rows], outputs[rows], task[rows])

    def _begin(self, name: str, labels: NDArray[Any], known: NDArray[Any] | None) -> Tensor:
        """Open the task, its head as large as it must be; the labels as its outputs."""
        if known is not None and len(strangers := np.setdiff1d(labels, known)):
            raise InputError(f"label {strangers.tolist()[0]!r} is not one of `classes`; add it there or leave that out")
        grown = self._book.add(name, labels if known is None else known)
        if grown or self.learner_.current_task != name:
            self.learner_.begin_task(TaskInfo(name, self._book.size(name)))
        self.classes_, self.tasks_ = self._book.classes, self._book.tasks
        return self._book.outputs(name, labels)

    def _steps(self, x: Tensor, y: Tensor, order: Tensor, size: int) -> None:
        for rows in order.split(size):
            self.learner_.observe(x[rows], y[rows])
        self.learner_.check_finite()

    # ---- prediction --------------------------------------------------------------------------------------------------

    def predict(self, X: Any, *, task: Any = None) -> NDArray[Any]:
        """The label of each sample.

        Args:
            X: samples, or a loader of them.
            task: the task they are of, or one for each; "infer" lets the model find it for each sample; may be left
                out while there is only one.
        """
        return np.concatenate([labels for labels, _ in self._answers(X, task)])

    def predict_proba(self, X: Any, *, task: Any = None) -> NDArray[np.float32]:
        """Probabilities [n, len(classes_)]; labels that a sample's task does not have get 0."""
        return np.concatenate([proba for _, proba in self._answers(X, task)])

    def score(self, X: Any, y: Any = None, sample_weight: Any = None, *, task: Any = None) -> float:
        """Share of samples that get their label; with a loader, `y` is left out."""
        if is_loader(X) and y is None:
            pairs = list(batches_of(X, labelled=True))
            predicted = np.concatenate([self.predict(batch.x, task=task) for batch in pairs])
            y = np.concatenate([read_labels(batch.y, name=type(self).__name__) for batch in pairs])
        else:
            predicted = self.predict(X, task=task)
            y = y.detach().cpu().numpy() if isinstance(y, Tensor) else y
        return float(accuracy_score(y, predicted, sample_weight=sample_weight))

    def infer_task(self, X: Any) -> NDArray[Any]:
        """The name of the task that each sample seems to be of, by the model's own evidence."""
        x = self._inputs(X, first=False)
        parts = [task_evidence(self.learner_, part).argmax(1) for part in x.split(_AT_ONCE)]
        names: NDArray[Any] = np.array(self.tasks_)[torch.cat(parts).cpu().numpy()]
        return names

    def _answers(self, X: Any, task: Any) -> list[tuple[NDArray[Any], NDArray[np.float32]]]:
        """Labels and probabilities, a piece for each batch of a loader."""
        if is_loader(X):
            pieces = [self._answer(batch.x, task) for batch in batches_of(X, labelled=False)]
            if not pieces:
                raise InputError("the loader gave no batch; at least one sample is needed")
            return pieces
        return [self._answer(X, task)]

    def _answer(self, X: Any, task: Any) -> tuple[NDArray[Any], NDArray[np.float32]]:
        x = self._inputs(X, first=False)
        if tasks.asks_to_infer(task) and len(self.tasks_) > 1:
            task = self.infer_task(X)
        elif tasks.asks_to_infer(task):
            task = None
        proba = np.zeros((len(x), len(self.classes_)), dtype=np.float32)
        for name, rows in tasks.groups_to_predict(task, len(x), self.tasks_):
            pieces = x[torch.from_numpy(rows)].split(_AT_ONCE)
            logits = torch.cat([self.learner_.predict(piece, name) for piece in pieces])
            proba[np.ix_(rows, self._book.columns(name))] = logits.softmax(1).cpu().numpy()
        return self.classes_[proba.argmax(1)], proba

    # ---- files -------------------------------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the trained estimator, memory and all, as one safetensors file, whole or not at all."""
        self._require_fitted()
        persistence.save(self, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, device: str = "cpu", backbone: BackboneLike | None = None) -> Self:
        """What `save` wrote, ready to predict and to go on learning; a backbone of your own must be given again."""
        return persistence.load(cls, path, device=device, backbone=backbone)

    def __getstate__(self) -> dict[str, Any]:
        return persistence.plain_state(super().__getstate__())

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        persistence.revive(self)
