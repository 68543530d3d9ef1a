"""SCALE, and any learner by name, as Avalanche strategies, for its benchmarks, metrics and loggers.

    from avalanche.benchmarks import SplitMNIST
    from scale_cl.integrations.avalanche import Scale

    benchmark = SplitMNIST(n_experiences=5, return_task_id=True)
    strategy = Scale(seed=0, inner_lr=0.03, outer_lr=0.01)
    for experience in benchmark.train_stream:
        strategy.train(experience)
        strategy.eval(benchmark.test_stream)

The data must have task labels. If a benchmark has none, or 0 everywhere, such as PermutedMNIST, Avalanche's
`task_incremental_benchmark(benchmark, reset_task_labels=True)` makes each experience a task.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from scale_cl.errors import ConfigError, InputError, ScaleClError
from scale_cl.integrations.avalanche_model import Collate, LearnerModule, Recipe, as_inputs, as_labels
from scale_cl.learners import Compute, Learner, registry
from scale_cl.nets.custom_backbone import BackboneLike
from scale_cl.plugins import name_references
from scale_cl.settings import build, suggest
from scale_cl.streams import catalog as streams
from scale_cl.streams.stream import Scenario
from scale_cl.training.machine import choose_device

try:
    from avalanche.benchmarks import OnlineCLExperience
    from avalanche.benchmarks.utils.data_attribute import has_task_labels
    from avalanche.training.plugins import SupervisedPlugin
    from avalanche.training.plugins.evaluation import default_evaluator
    from avalanche.training.templates import SupervisedTemplate
    from avalanche.training.templates.base import BaseTemplate
except ModuleNotFoundError as error:
    if error.name is None or error.name.partition(".")[0] != "avalanche":
        raise
    raise ScaleClError("strategies for Avalanche need the extra: pip install 'scale-cl[avalanche]'") from None

__all__ = ["CatalogStrategy", "Scale"]

_NOT_HERE = ("model", "optimizer", "criterion")  # arguments of other Avalanche strategies
_LABELLED = "task_incremental_benchmark(benchmark, reset_task_labels=True) makes each experience a task"


class CatalogStrategy(SupervisedTemplate):  # type: ignore[misc]
    """A learner, by name, as an Avalanche strategy.

    **Tasks.** A sample's task label names its task. Experiences with the same label, such as those of
    `split_online_stream`, continue the same task; another label ends it and begins the next. A label that comes back
    later continues that task with its head, its embedding and its stored samples, which are not replayed while the task
    is open; when it ends again, its stored logits are recomputed. All samples of a batch must be of one task. The last
    task stays open until `end_task` is called, which changes no prediction.

    **Classes.** In the scenario "task" each task has a head for its own classes, whatever their labels are; in "domain"
    all tasks share one head. A head is created for the classes of the experience (for an online experience of a stream
    that was split with `access_task_boundaries=True`, those of the experience it is part of), and grows when other
    classes appear. Scores have one column per label of Avalanche; classes of other tasks get scores far below. In
    evaluation, a task that was never trained gets the same score for every class.

    **Inputs.** A sample is a tensor or array [c, h, w], [h, w] or [f], or a PIL image, which becomes [1, h, w] if it is
    grey and [3, h, w] otherwise. uint8 pixels, and so PIL images, are stored as uint8 in the memory and divided by
    `pixel_max` in the step. Floats, such as the output of `ToTensor` and `Normalize`, are used and stored as float32.
    All batches must have the shape and type of the first.

    **Metrics in training** see the outputs for each batch before its step, and the loss that the step reports.

    **Limits.** The learner updates its networks itself: there is no optimizer, and plugins that act on the backward
    pass are refused. Avalanche decides the order of the data: `train(experience, shuffle=False)` keeps the order of the
    data set; otherwise PyTorch's global generator shuffles it, independently of `seed`.

    Args:
        learner: a name of `scale-cl list learners`, `module:Class`, `file.py:Class` or a subclass of `Learner`; but
            none that trains on all tasks at once.
        settings: settings of that learner by name; `scale-cl show LEARNER` explains them.
        like: a stream, such as "pmnist", whose settings are the defaults.
        scenario: "task": each task has a head for its own classes; "domain": all tasks share one.
        classes: number of outputs that a head has from the start, if the first samples of a task do not show all its
            classes; with "domain" they stand for the labels from 0 on. None: heads grow as classes appear.
        pixel_max: what uint8 pixels are divided by.
        backbone: "auto", "mlp" or "resnet18"; or a module of your own that returns features, a function that makes one,
            or a `CustomBackbone`.
        seed: decides weights and draws.
        compute: precision and other choices of how to compute.
        train_mb_size: samples per step.
        train_epochs: passes over an experience; None: the learner's setting, or one.
        eval_mb_size: samples per prediction.
        device: auto, cpu, cuda or cuda:N.
        plugins: as in Avalanche.
        evaluator: as in Avalanche.
        eval_every: as in Avalanche.
        peval_mode: as in Avalanche.
    """

    def __init__(
        self,
        *,
        learner: str | type[Learner] = "scale",
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
        """Create an untrained strategy."""
        name_references(learner=learner, backbone=backbone)
        entry = registry.entry(learner)
        if entry.kind.order == "shuffled":
            raise ConfigError(f"learner {entry.name!r} trains on all tasks at once; give one that takes them in turn")
        chosen = dict(settings or {})
        if wrong := [name for name in _NOT_HERE if name in chosen]:
            raise ConfigError(f"{wrong[0]} is not taken: the learner has its own; a network is given as backbone=...")
        if isinstance(backbone, str):
            chosen.setdefault("backbone", backbone)
        config = build(entry.kind.config_class, _preset_settings(entry, like) | chosen)
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
        self._expected: set[int] = set()  # classes of an experience before its first batch
        self._piece = False  # whether the experience is part of an online stream
        self._warned = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        # Skip Avalanche's version, which refuses constructor arguments that no signature names, such as settings.
        super(BaseTemplate, cls).__init_subclass__(**kwargs)

    @property
    def learner(self) -> Learner:
        """The learner; it exists from the first batch on."""
        if self.model.learner is None:
            raise ScaleClError("there is no learner yet: the first batch of train(...) makes it")
        learner: Learner = self.model.learner
        return learner

    def end_task(self) -> None:
        """End the current task now rather than when another begins; it may come back later."""
        self.model.end_task()

    # ---- data --------------------------------------------------------------------------------------------------------
    def train_dataset_adaptation(self, **kwargs: Any) -> None:
        """As in Avalanche, but require task labels."""
        super().train_dataset_adaptation(**kwargs)
        self._require_task_labels()

    def eval_dataset_adaptation(self, **kwargs: Any) -> None:
        """As in Avalanche, but require task labels."""
        super().eval_dataset_adaptation(**kwargs)
        self._require_task_labels()

    def _require_task_labels(self) -> None:
        if not has_task_labels(self.adapted_dataset):
            raise InputError(f"the benchmark has no task labels, which say what task a sample is of; {_LABELLED}")

    def _obtain_common_dataloader_parameters(self, **kwargs: Any) -> dict[str, Any]:
        parameters: dict[str, Any] = super()._obtain_common_dataloader_parameters(**kwargs)
        return {**parameters, "collate_fn": Collate(self.adapted_dataset.collate_fn)}

    def _unpack_minibatch(self) -> None:
        """Check and convert the batch on the host, then move it to the device."""
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
        """Before an experience: record its classes; the head is created with the first batch."""
        data, self._piece = self.adapted_dataset, isinstance(self.experience, OnlineCLExperience)
        if self._piece and self.experience.access_task_boundaries:
            data = self.experience.origin_experience.dataset
        self._expected = {int(label) for label in data.targets.uniques} if hasattr(data, "targets") else set()

    def _begin_experience(self, task: int) -> None:
        """Called with the first batch, whose labels count: attributes of a data set may be out of date."""
        book, labels, self._expected = self.model.book, self._expected, set()
        alone = not self._piece and book.tasks == [str(task)]
        if alone and not self._warned and (book.shared or labels.isdisjoint(book.classes.tolist())):
            self._warned = True
            warnings.warn(
                f"another experience has the task label {task}, as all before it, and continues that task; "
                f"if it is a task of its own, {_LABELLED}",
                stacklevel=2,
            )
        self.model.expect(task, labels)

    def model_adaptation(self, model: Any = None) -> Any:
        """Do nothing: heads grow when labels appear in training."""
        return self.model if model is None else model

    def make_optimizer(self, **kwargs: Any) -> None:
        """Do nothing: the learner updates its networks itself."""

    def training_epoch(self, **kwargs: Any) -> None:
        """One pass over the experience: for each batch, the outputs for the metrics, then the learner's step."""
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
        """Scores of the current batch, one column per label of the benchmark."""
        scores: Tensor = self.model(self.mb_x, self._host_tasks)
        return scores

    def _after_training_exp(self, **kwargs: Any) -> None:
        if self.model.learner is not None:
            self.model.learner.check_finite()
        super()._after_training_exp(**kwargs)


class Scale(CatalogStrategy):
    """SCALE as an Avalanche strategy.

    Tasks, classes, inputs, metrics and arguments are those of `CatalogStrategy`. All settings of SCALE
    (`scale_cl.ScaleConfig`, `scale-cl show scale`) are arguments too, by their names. Their defaults are for colour
    images; `like="pmnist"` takes those for small grey images.
    """

    def __init__(self, **arguments: Any) -> None:
        """Create an untrained strategy from arguments of `CatalogStrategy` and settings of SCALE, by name."""
        ours = inspect.signature(CatalogStrategy).parameters.keys() - {"learner", "settings"}
        settings = {name: value for name, value in arguments.items() if name not in ours}
        others = {name: value for name, value in arguments.items() if name in ours}
        super().__init__(learner="scale", settings=settings, **others)


def _preset_settings(entry: registry.LearnerEntry, like: str | None) -> dict[str, object]:
    if like is not None and like not in streams.names():
        raise ConfigError(f"like: unknown stream {like!r}; {suggest(like, streams.names())}")
    return entry.settings(like or "")


def _check_arguments(scenario: str, pixel_max: float, whole: Mapping[str, int | None]) -> None:
    if scenario not in ("task", "domain"):
        raise ConfigError(f"scenario is {scenario!r}; it must be 'task' or 'domain'")
    if not 0 < pixel_max < float("inf"):
        raise ConfigError(f"pixel_max is {pixel_max!r}; it must be a positive number such as 255")
    for name, value in whole.items():
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise ConfigError(f"{name} is {value!r}; it must be a whole number of at least 1")


def _check_plugin(plugin: Any) -> None:
    for callback in ("before_backward", "after_backward"):
        own = getattr(type(plugin), callback, None)
        if own not in (None, getattr(SupervisedPlugin, callback)):
            raise ConfigError(
                f"plugin {type(plugin).__name__} acts on the backward pass ({callback}), "
                "but the learner makes its updates itself; leave it out"
            )
