"""SCALE, and any learner of the catalog, as strategies of Avalanche: with its benchmarks, its metrics, its loggers.

    from avalanche.benchmarks import SplitMNIST
    from scale_cl.integrations.avalanche import Scale

    benchmark = SplitMNIST(n_experiences=5, return_task_id=True)
    strategy = Scale(seed=0, inner_lr=0.03, outer_lr=0.01)
    for experience in benchmark.train_stream:
        strategy.train(experience)
        strategy.eval(benchmark.test_stream)

The data must have task labels. Where a benchmark has none, or 0 everywhere, such as PermutedMNIST, Avalanche's
`task_incremental_benchmark(benchmark, reset_task_labels=True)` makes each experience a task.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from scale_cl.errors import ScaleClError
from scale_cl.learners import Compute
from scale_cl.nets.custom_backbone import BackboneLike
from scale_cl.streams.stream import Scenario

try:
    from avalanche.training.plugins.evaluation import default_evaluator

    from scale_cl.integrations.avalanche_strategy import CatalogStrategy
except ModuleNotFoundError as error:
    if error.name is None or error.name.partition(".")[0] != "avalanche":
        raise
    raise ScaleClError("strategies for Avalanche need the extra: pip install 'scale-cl[avalanche]'") from None

__all__ = ["CatalogStrategy", "Scale"]


class Scale(CatalogStrategy):
    """SCALE as an Avalanche strategy.

    Tasks, classes, inputs and metrics are as `CatalogStrategy` says, and so are the arguments. All settings of SCALE
    (`scale_cl.ScaleConfig`, `scale-cl show scale`) are arguments too, by their names. Their defaults are the paper's
    for colour images; `like="pmnist"` takes those for small grey ones.
    """

    def __init__(
        self,
        *,
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
        **settings: object,
    ) -> None:
        """A strategy that has seen nothing."""
        super().__init__(
            learner="scale",
            settings=settings,
            like=like,
            scenario=scenario,
            classes=classes,
            pixel_max=pixel_max,
            backbone=backbone,
            seed=seed,
            compute=compute,
            train_mb_size=train_mb_size,
            train_epochs=train_epochs,
            eval_mb_size=eval_mb_size,
            device=device,
            plugins=plugins,
            evaluator=evaluator,
            eval_every=eval_every,
            peval_mode=peval_mode,
        )
