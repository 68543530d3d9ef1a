"""Any learner of the catalog as a strategy of Avalanche: its loops call the learner's own step and prediction."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from avalanche.benchmarks import OnlineCLExperience
from avalanche.benchmarks.utils.data_attribute import has_task_labels
from avalanche.training.plugins import SupervisedPlugin
from avalanche.training.plugins.evaluation import default_evaluator
from avalanche.training.templates import SupervisedTemplate
from avalanche.training.templates.base import BaseTemplate
from torch import Tensor

from scale_cl.errors import ConfigError, InputError, ScaleClError
from scale_cl.integrations.avalanche_batches import Collate, as_inputs, as_labels
from scale_cl.integrations.avalanche_model import LearnerModule, Recipe
from scale_cl.learners import Compute, Joint, Learner, registry
from scale_cl.nets.custom_backbone import BackboneLike
from scale_cl.settings import build, suggest
from scale_cl.streams import catalog as streams
from scale_cl.streams.stream import Scenario
from scale_cl.training.machine import choose_device

_NOT_HERE = ("model", "optimizer", "criterion")  # what strategies of Avalanche take
_LABELLED = "task_incremental_benchmark(benchmark, reset_task_labels=True) makes each experience a task"


class CatalogStrategy(SupervisedTemplate):  # type: ignore[misc]
    """A learner of the catalog as an Avalanche strategy.

    **Tasks.** A sample's task label names its task. The same label over several experiences, such as the small ones of
    `split_online_stream`, goes on with the same task; another label ends it and begins the next. A label that comes
    back later goes on with that task as it is: its head, its embedding and its slots in the memory are its own again,
    and are not replayed while it is open; when it ends again, its stored logits are taken anew. A batch must be of one
    task. The last task stays open until `end_task` is called, which changes no prediction.

    **Classes.** In the scenario "task" each task has a head for its own classes, whatever numbers the benchmark gives
    them; in "domain" all tasks share one. A head is made for the classes of the experience (of the whole experience
    that an online one is a piece of, if the stream was split with `access_task_boundaries=True`), and grows when others
    appear. Outputs are spread over Avalanche's labels: classes of other tasks get a score far below. In evaluation a
    task that was never trained gets the same score for every class.

    **Inputs.** A sample is a tensor or array [c, h, w], [h, w] or [f], or a PIL image, grey to [1, h, w] or colours to
    [3, h, w]. uint8 pixels, and so PIL images, stay uint8 in the memory and are divided by `pixel_max` in the step.
    Floats, such as those of `ToTensor` and `Normalize`, are taken as they are, as float32, also in the memory. What the
    first batch has, all others must have.

    **Metrics in training** see each batch's outputs of before its step, and the loss that the learner's step reports.

    **Not part of it.** The learner updates its networks itself: there is no optimizer, and plugins that act on the
    backward pass are refused. The order of the data is Avalanche's: `train(experience, shuffle=False)` keeps that of
    the data set; else PyTorch's global generator shuffles, which `seed` does not touch.

    Args:
        learner: a name of `scale-cl list learners`, but not joint.
        settings: settings of that learner by name; `scale-cl show LEARNER` explains them.
        like: a stream of the paper, such as "pmnist", whose settings are taken where `settings` does not say otherwise.
        scenario: "task": each task has a head for its own classes; "domain": all tasks share one.
        classes: outputs that a head has from the start, where a task's first samples do not show all its classes; with
            "domain" they stand for the labels from 0 on. None: as classes appear.
        pixel_max: what uint8 pixels are divided by.
        backbone: "auto", "mlp" or "resnet18"; or a module of your own that returns features, a function that makes one,
            or an `CustomBackbone`.
        seed: decides weights and draws.
        compute: precision and the like.
        train_mb_size: samples of a step.
        train_epochs: passes over an experience; None: one, unless the learner has a setting for it.
        eval_mb_size: samples that are predicted together.
        device: auto, cpu, cuda or cuda:N.
        plugins: as Avalanche's.
        evaluator: as Avalanche's.
        eval_every: as Avalanche's.
        peval_mode: as Avalanche's.
    """

    def __init__(
        self,
        *,
        learner: str = "scale",
        settings: Mapping[str, object] | None = None,
        like: str | None = None,
        scenario: Scenario = "task",
        classes: int | None = None,
        pixel_max: float = 255.0,
        backbone: str | BackboneLike = "auto",
        seed: int = 0,
        compute: Compute | None = None,
        train_mb_size: int = 10,
        train_epochs: int | None = None,
        eval_mb_size: int = 256,
        device: str | torch.device = "cpu",
        plugins: Sequence[Any] | None = None,
        evaluator: Any = default_evaluator,
        eval_every: int = -1,
        peval_mode: str = "epoch",
    ) -> None:
        """A strategy that has seen nothing."""
        if issubclass(registry.entry(learner).learner(), Joint):
            raise ConfigError(f"learner {learner!r} trains on all tasks at once; give one that takes them in turn")
        chosen = dict(settings or {})
        _check_settings(chosen)
        if isinstance(backbone, str):
            chosen.setdefault("backbone", backbone)
        config = build(registry.config_class(learner), _paper_settings(learner, like) | chosen)
        whole = {"train_mb_size": train_mb_size, "eval_mb_size": eval_mb_size, "train_epochs": train_epochs}
        _check_arguments(scenario, pixel_max, {**whole, "classes": classes})
        target = choose_device(str(device))
        own = None if isinstance(backbone, str) else backbone
        recipe = Recipe(learner, config, scenario, classes or 0, float(pixel_max), seed, target, compute, own)
        super().__init__(
            model=LearnerModule(recipe),
            optimizer=None,
            train_mb_size=train_mb_size,
            train_epochs=int(getattr(config, "epochs", 1)) if train_epochs is None else train_epochs,
            eval_mb_size=eval_mb_size,
            device=target,
            plugins=plugins,
            evaluator=evaluator,
            eval_every=eval_every,
            peval_mode=peval_mode,
        )
        for plugin in self.plugins:
            _check_plugin(plugin)
        self._expected: set[int] = set()  # classes of an experience whose first batch is still to come
        self._piece = False  # whether the experience is one of an online stream
        self._warned = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        # Not Avalanche's own, which lets constructors take no name that is not in a signature, such as a setting.
        super(BaseTemplate, cls).__init_subclass__(**kwargs)

    @property
    def learner(self) -> Learner:
        """The learner itself; it is there from the first batch on."""
        if self.model.learner is None:
            raise ScaleClError("there is no learner yet: the first batch of train(...) makes it")
        learner: Learner = self.model.learner
        return learner

    def end_task(self) -> None:
        """Close the open task now, not when another begins; one that comes back goes on."""
        self.model.end_task()

    # ---- data --------------------------------------------------------------------------------------------------------

    def train_dataset_adaptation(self, **kwargs: Any) -> None:
        """As Avalanche's, for data with task labels."""
        super().train_dataset_adaptation(**kwargs)
        self._require_task_labels()

    def eval_dataset_adaptation(self, **kwargs: Any) -> None:
        """As Avalanche's, for data with task labels."""
        super().eval_dataset_adaptation(**kwargs)
        self._require_task_labels()

    def _require_task_labels(self) -> None:
        if not has_task_labels(self.adapted_dataset):
            raise InputError(f"the benchmark has no task labels, which say what task a sample is of; {_LABELLED}")

    def _obtain_common_dataloader_parameters(self, **kwargs: Any) -> dict[str, Any]:
        parameters: dict[str, Any] = super()._obtain_common_dataloader_parameters(**kwargs)
        return {**parameters, "collate_fn": Collate(self.adapted_dataset.collate_fn)}

    def _unpack_minibatch(self) -> None:
        """Check and convert the batch while it is on the host, then move it."""
        given_x, given_y, *others = self.mbatch
        x = as_inputs(given_x)
        y, tasks = as_labels(given_y, len(x)), as_labels(others[-1], len(x))
        self._host_y, self._host_tasks = y.cpu(), tasks.tolist()
        if self.is_training and len(different := set(self._host_tasks)) > 1:
            mixed = ", ".join(map(str, sorted(different)))
            raise InputError(f"a batch holds samples of the tasks {mixed}; give experiences of one task each")
        if self.is_training and self._expected:
            self._begin_experience(self._host_tasks[0])
        self.model.widen(int(self._host_y.max()))
        self.mbatch: Any = [x, y, *others]
        super()._unpack_minibatch()

    # ---- training ----------------------------------------------------------------------------------------------------

    def check_model_and_optimizer(self, **kwargs: Any) -> None:
        """Before an experience: note its classes, for which its task's head is made with the first batch."""
        data, self._piece = self.adapted_dataset, isinstance(self.experience, OnlineCLExperience)
        if self._piece and self.experience.access_task_boundaries:
            data = self.experience.origin_experience.dataset
        self._expected = {int(label) for label in data.targets.uniques} if hasattr(data, "targets") else set()

    def _begin_experience(self, task: int) -> None:
        """With its first batch; labels are taken from there, as attributes of a data set may be out of date."""
        book, labels, self._expected = self.model.book, self._expected, set()
        alone = not self._piece and book.tasks == [str(task)]
        if alone and not self._warned and (book.shared or labels.isdisjoint(book.classes.tolist())):
            self._warned = True
            warnings.warn(
                f"another experience has the task label {task} as all before it, and goes on with that task; "
                f"if it is one of its own, {_LABELLED}",
                stacklevel=2,
            )
        self.model.expect(task, labels)

    def model_adaptation(self, model: Any = None) -> Any:
        """Nothing: heads grow when their labels are seen in training."""
        return self.model if model is None else model

    def make_optimizer(self, **kwargs: Any) -> None:
        """Nothing: the learner updates its networks itself."""

    def training_epoch(self, **kwargs: Any) -> None:
        """One pass over the experience: outputs of each batch for the metrics, then the learner's step."""
        for batch in self.dataloader:
            self.mbatch = batch
            if self._stop_training:
                break
            self._unpack_minibatch()
            self._before_training_iteration(**kwargs)
            self._before_forward(**kwargs)
            self.mb_output = self.forward()
            self._after_forward(**kwargs)
            self._before_update(**kwargs)
            self.loss = self.model.learn(self.mb_x, self._host_y, self._host_tasks[0])
            self._after_update(**kwargs)
            self._after_training_iteration(**kwargs)

    def forward(self) -> Tensor:
        """Scores of the current batch, a column for each of the benchmark's labels."""
        scores: Tensor = self.model(self.mb_x, self._host_tasks)
        return scores

    def _after_training_exp(self, **kwargs: Any) -> None:
        if self.model.learner is not None:
            self.model.learner.check_finite()
        super()._after_training_exp(**kwargs)


def _paper_settings(learner: str, like: str | None) -> dict[str, object]:
    if like is not None and like not in streams.names():
        raise ConfigError(f"like: unknown stream {like!r}; {suggest(like, streams.names())}")
    return registry.paper_settings(learner, like or "")


def _check_arguments(scenario: str, pixel_max: float, whole: Mapping[str, int | None]) -> None:
    if scenario not in ("task", "domain"):
        raise ConfigError(f"scenario is {scenario!r}; it must be 'task' or 'domain'")
    if not 0 < pixel_max < float("inf"):
        raise ConfigError(f"pixel_max is {pixel_max!r}; it must be a positive number such as 255")
    for name, value in whole.items():
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise ConfigError(f"{name} is {value!r}; it must be a whole number of at least 1")


def _check_settings(chosen: Mapping[str, object]) -> None:
    for name in _NOT_HERE:
        if name in chosen:
            raise ConfigError(f"{name} is not taken: the learner has its own; a network is given as backbone=...")


def _check_plugin(plugin: Any) -> None:
    for callback in ("before_backward", "after_backward"):
        own = getattr(type(plugin), callback, None)
        if own not in (None, getattr(SupervisedPlugin, callback)):
            raise ConfigError(
                f"plugin {type(plugin).__name__} acts on the backward pass ({callback}), "
                "but the learner makes its updates itself; leave it out"
            )
