"""SCALE as a scikit-learn classifier, with its main settings as parameters."""

from __future__ import annotations

from typing import Any

from scale_cl.estimator.classifier import ContinualClassifier
from scale_cl.learners import registry
from scale_cl.nets.custom_backbone import BackboneLike
from scale_cl.streams.from_arrays import Layout

_PARAMETERS = ("inner_lr", "outer_lr", "memory", "replay", "weight_average")


class ScaleClassifier(ContinualClassifier):
    """A classifier for tasks that arrive one after another, with SCALE as its learner.

    Every setting of SCALE is a parameter, as in ScaleClassifier(memory=100, inner_steps=3).

    Parameters:
        inner_lr: learning rate of the trunk and the heads; None: a default for the kind of inputs.
        outer_lr: learning rate of the parameter generator; None: a default for the kind of inputs.
        memory: number of samples stored per task, or in total for a stream without tasks; none: 50, or 500.
        replay: number of samples replayed per batch.
        weight_average: decay of the weight average used for prediction; 0: no average.
        others: as in `ContinualClassifier`.
        settings: further settings of SCALE, each by its name; `scale-cl show scale` explains them.

    Examples:
        >>> from sklearn.datasets import load_digits
        >>> from scale_cl import ScaleClassifier
        >>> X, y = load_digits(return_X_y=True)
        >>> model = ScaleClassifier()
        >>> for task in range(5):  # tasks of two digits each, seen once
        ...     rows = y // 2 == task
        ...     model = model.partial_fit(X[rows], y[rows], task=f"digits {2 * task} and {2 * task + 1}")
        >>> rows = y // 2 == 0
        >>> bool(model.score(X[rows], y[rows], task="digits 0 and 1") > 0.9)
        True
    """

    def __init__(
        self,
        *,
        inner_lr: float | None = None,
        outer_lr: float | None = None,
        memory: int | None = None,
        replay: int = 64,
        weight_average: float = 0.0,
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
        self.inner_lr, self.outer_lr, self.memory, self.replay = inner_lr, outer_lr, memory, replay
        self.weight_average, self.scenario, self.batch_size, self.epochs = weight_average, scenario, batch_size, epochs
        self.detection, self.standardise, self.layout, self.pixel_max = detection, standardise, layout, pixel_max
        self.backbone, self.device, self.threads, self.random_state = backbone, device, threads, random_state
        self._settings = settings

    def _learner_entry(self) -> registry.LearnerEntry:
        return registry.entry("scale")

    def _learner_settings(self) -> dict[str, object]:
        main = {name: value for name in _PARAMETERS if (value := getattr(self, name)) is not None}
        return main | super()._learner_settings()
