"""A trained model on disk, of a run or of `save`, used on image files: predictions, accuracies, and what it has learnt.

Nothing here needs the data that the model was trained on.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import scale_cl
from scale_cl import estimator, files, results
from scale_cl.errors import CheckpointError, ConfigError, DataError, UnknownTaskError
from scale_cl.estimator import model_file
from scale_cl.estimator.classifier import ContinualClassifier
from scale_cl.estimator.tasks import INFER
from scale_cl.json_format import reporting_damage
from scale_cl.streams.image_listing import images_in, labelled_in
from scale_cl.streams.images import WrongSizeError, read_images
from scale_cl.training.checkpoint import Model, described_model
from scale_cl.training.kept_model import kept_model, preprocess
from scale_cl.training.memory_editing import stored_samples

Place = str | os.PathLike[str]
Progress = Callable[[int, int], None]
"""Called with the number of images done and of all."""

AT_ONCE = 256  # images that are read and predicted together


@dataclass(frozen=True)
class Prediction:
    """What a model says of an image file."""

    path: str
    task: str | None  # that it was predicted in; None: predictions need no task
    label: Any
    probabilities: dict[Any, float]  # by class; 0 for classes that the task does not have

    @property
    def probability(self) -> float:
        """That of the label."""
        return self.probabilities[self.label]


@dataclass(frozen=True)
class TaskAccuracy:
    """How many images of a task a model classifies correctly."""

    task: str
    images: int
    right: int

    @property
    def accuracy(self) -> float:
        """In percent."""
        return 100 * self.right / self.images


def load_model(path: Place, *, seed: int | None = None) -> ContinualClassifier:
    """The model of a run's directory, or of a file that `save` wrote, as the class that wrote it."""
    if files.is_folder(path):
        return ContinualClassifier.load(path, seed=seed)
    content = model_file.read(path).content
    kind = content.get("class")
    if kind not in estimator.__all__:
        raise CheckpointError(f"{path} was written by {kind}: load it in Python with that class")
    for what, given in (("own_backbone", "backbone"), ("own_learner", "learner")):
        if content.get(what):
            raise ConfigError(f"{path} was trained with a {given} of its own: in Python, {kind}.load(..., {given}=...)")
    made: ContinualClassifier = getattr(estimator, kind).load(path, seed=seed)
    return made


# ---- image files -----------------------------------------------------------------------------------------------------
def predict(
    model: Place | ContinualClassifier,
    images: Place | Sequence[Place],
    *,
    task: str | None = None,
    seed: int | None = None,
    progress: Progress | None = None,
) -> list[Prediction]:
    """Predict the classes of image files.

        scale_cl.predict("runs/mine", "new-images", task="infer")

    Args:
        model: a run's directory, a file that `save` wrote, or a loaded model.
        images: image files, folders of them, or CSV files with a column path and perhaps one named task.
        task: name of the task of all images, or "infer": the model finds it for each; left out if there is only one
            task, or one head for all classes.
        seed: which model of a run with several seeds.
        progress: called while images are predicted.
    """
    loaded = _loaded(model, seed)
    sources = [images] if isinstance(images, str | os.PathLike) else images
    listed = [image for source in sources for image in images_in(Path(source))]
    if not listed:
        raise DataError("there are no images to predict")
    if task is not None:
        listed = [(path, task) for path, _ in listed]
    _check_tasks(loaded, {name for _, name in listed})
    return list(_predicted(loaded, listed, progress))


def evaluate(
    model: Place | ContinualClassifier,
    images: Place,
    *,
    task: str | None = None,
    seed: int | None = None,
    progress: Progress | None = None,
) -> list[TaskAccuracy]:
    """Test a model on labelled image files, per task.

        scale_cl.evaluate("runs/mine", "test-images")

    Args:
        model: a run's directory, a file that `save` wrote, or a loaded model.
        images: a folder with one folder per task, which has one folder per class; of a task with train and test
            folders, the latter. Or a CSV file with the columns path, label and task.
        task: "infer": the model is not told the task of an image.
        seed: which model of a run with several seeds.
        progress: called while images are predicted.
    """
    loaded = _loaded(model, seed)
    tasks, told = labelled_in(Path(images)), loaded.needs_task
    if task not in (None, INFER):
        raise ConfigError(f"task is {task!r}; it can only be {INFER!r}: the folders name the tasks")
    if told:
        _check_tasks(loaded, {one.name for one in tasks})
    for one in tasks:
        known = {str(label) for label in (loaded.task_classes(one.name) if told else loaded.classes_)}
        if strangers := sorted({file.label for file in one.test} - known):
            raise DataError(f"class {strangers[0]!r} of task {one.name!r} was never learnt; leave its images out")
    listed = [(file.path, task if task or not told else one.name) for one in tasks for file in one.test]
    said = _predicted(loaded, listed, progress)
    found = []
    for one in tasks:
        right = sum(str(p.label) == file.label for p, file in zip(islice(said, len(one.test)), one.test, strict=True))
        found.append(TaskAccuracy(one.name, len(one.test), right))
    return found


def _loaded(model: Place | ContinualClassifier, seed: int | None) -> ContinualClassifier:
    made = model if isinstance(model, ContinualClassifier) else load_model(model, seed=seed)
    spec = made.input_format_.spec
    if len(spec.shape) != 3 or (getattr(made, "images_", None) is None and spec.pixel_max != 255):
        shape = " x ".join(map(str, spec.shape))
        raise ConfigError(
            f"the model was not trained on image files, its inputs are {shape}: use it in Python, "
            "ContinualClassifier.load(...).predict(X)"
        )
    return made


def _check_tasks(model: ContinualClassifier, named: set[str | None]) -> None:
    """Refuse unknown tasks, and none where one is needed."""
    seen = ", ".join(map(repr, model.tasks_))
    for name in sorted(name for name in named if name not in (None, INFER)):
        if name not in model.tasks_:
            hint = "" if model.needs_task else "; its predictions need no task"
            raise UnknownTaskError(f"task {name!r} was never learnt; the model knows {seen}{hint}")
    if None in named and model.needs_task and len(model.tasks_) > 1:
        raise ConfigError(
            f"the model knows several tasks ({seen}); say which one the images are of, --task NAME, or --task {INFER} "
            "to have it found (in Python task=...)"
        )


def _predicted(
    model: ContinualClassifier, listed: Sequence[tuple[str, str | None]], progress: Progress | None
) -> Iterator[Prediction]:
    """Predictions of files and their tasks, in order."""
    channels, *size = model.input_format_.spec.shape
    resize, told = getattr(model, "images_", None) == "resized", model.needs_task
    labels = model.classes_.tolist()
    for start in range(0, len(listed), AT_ONCE):
        part = listed[start : start + AT_ONCE]
        try:
            pixels = read_images([path for path, _ in part], (size[0], size[1]), channels=channels, resize=resize)
        except WrongSizeError as error:
            advice = "it was trained without stream.size, so it resizes none"
            raise DataError(f"{error.found}, the model takes {size[0]} x {size[1]}; {advice}") from None
        x: NDArray[Any] = pixels.transpose(0, 2, 3, 1) if model.layout == "NHWC" else pixels
        names: list[str | None] = [None] * len(part)
        if told:
            names = _tasks_of(model, x, [name for _, name in part])
        proba = model.predict_proba(x, task=names if told else None)
        if progress is not None:
            progress(start + len(part), len(listed))
        for (path, _), name, row in zip(part, names, proba, strict=True):
            each = dict(zip(labels, map(float, row), strict=True))
            yield Prediction(path, name, labels[int(row.argmax())], each)


def _tasks_of(model: ContinualClassifier, x: NDArray[Any], named: Sequence[str | None]) -> list[str | None]:
    """The task of each image: the one named, the inferred one, or the only one."""
    names = [model.tasks_[0] if name is None else name for name in named]
    rows = np.flatnonzero([name == INFER for name in names])
    if len(rows):
        for row, name in zip(rows.tolist(), model.infer_task(x[rows]).tolist(), strict=True):
            names[row] = name
    return list(names)


# ---- what it has learnt ----------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class LearntTaskInfo:
    """A task that a model has learnt."""

    name: str
    classes: tuple[str, ...]
    accuracy: float | None = None  # in percent, at the end of training; None: unknown
    accuracy_then: float | None = None  # right after it was learnt


@dataclass(frozen=True)
class ModelInfo:
    """What a model has learnt, with what, and how well."""

    file: str
    bytes: int
    learner: str
    settings: dict[str, Any]
    seed: int
    scenario: str
    streams: tuple[tuple[str, int], ...]  # names, and numbers of tasks
    tasks: tuple[LearntTaskInfo, ...]
    input_shape: tuple[int, ...]
    preprocess: str | None  # how an image file becomes an input
    stored_samples: int  # training samples that the file holds
    learning: str | None  # the stream that the run has begun to learn and not finished
    scale_cl: str = scale_cl.__version__


def info(model: Place, *, seed: int | None = None) -> ModelInfo:
    """What a model has learnt, with what, and how well; of a run's directory or a file that `save` wrote.

    print(scale_cl.info("runs/mine").tasks)
    """
    return _info_of_run(Path(model), seed) if files.is_folder(model) else _info_of_file(Path(model), seed)


def _info_of_file(path: Path, seed: int | None) -> ModelInfo:
    if seed is not None:
        raise ConfigError(f"{path} is a file, which has one seed: leave out the seed")
    stored = model_file.read(path)
    with reporting_damage(path, CheckpointError):
        described = described_model(stored.content["model"])
    tensors = {name.removeprefix("learner."): t for name, t in stored.tensors.items()}
    count = stored_samples({"tensors": tensors, "meta": described.state["meta"]})
    learnt = tuple(LearntTaskInfo(task.name, task.classes or ()) for task in described.tasks)
    return _described(described, path, learnt, (), count, None)


def _info_of_run(directory: Path, seed: int | None) -> ModelInfo:
    kept = kept_model(directory, seed=seed)
    by_seed = {result.seed: result for result in results.read(directory).seeds}
    if kept.model.seed not in by_seed:
        raise CheckpointError(f"{kept.path} is foreign: the result has no seed {kept.model.seed}")
    one = by_seed[kept.model.seed]
    measured = zip(one.tasks, one.matrix[-1], (one.matrix[k][k] for k in range(len(one.tasks))), strict=True)
    classes = {task.name: task.classes for stream in kept.saved.streams for task in stream.tasks}
    learnt = tuple(LearntTaskInfo(name, classes.get(name, ()), now, then) for name, now, then in measured)
    streams = tuple((part.name, part.tasks) for part in one.streams)
    file = kept.path.with_suffix(".safetensors")
    return _described(kept.model, file, learnt, streams, kept.stored_samples, kept.learning)


def _described(
    model: Model,
    file: Path,
    tasks: tuple[LearntTaskInfo, ...],
    streams: tuple[tuple[str, int], ...],
    stored: int,
    learning: str | None,
) -> ModelInfo:
    return ModelInfo(
        file=str(file),
        bytes=file.stat().st_size,
        learner=model.learner,
        settings=model.settings,
        seed=model.seed,
        scenario=model.spec.scenario,
        streams=streams,
        tasks=tasks,
        input_shape=model.spec.shape,
        preprocess=preprocess(model.spec, model.images),
        stored_samples=stored,
        learning=learning,
    )
