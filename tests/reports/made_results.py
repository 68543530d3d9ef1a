"""Results made up for the tests: matrices by a rule, written as a run would write them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from scale_cl.results import RunResult, SeedResult

ENVIRONMENT = {
    "scale_cl": "0.1.0",
    "python": "3.11.7",
    "torch": "2.13.0",
    "numpy": "2.4.6",
    "platform": "Linux",
    "device": "cpu",
    "device_name": "Abacus 9",
    "threads": 1,
    "git_revision": "0123abcd",
    "git_changed": False,
    "command": "scale-cl run --stream digits",
}


def matrix(tasks: int, level: float, loss: float) -> list[list[float | None]]:
    """Every task is learnt to `level` and loses `loss` points with each task after it."""
    return [[max(0.0, level - loss * (i - j)) if j <= i else None for j in range(tasks)] for i in range(tasks)]


def only_the_end(tasks: int, level: float) -> list[list[float | None]]:
    """What joint training leaves: the last row alone."""
    untested: list[float | None] = [None] * tasks
    return [*([untested] * (tasks - 1)), [level] * tasks]


def run_result(
    learner: str = "scale",
    stream: str = "digits",
    *,
    tasks: int = 4,
    level: float = 90.0,
    loss: float = 1.0,
    seeds: tuple[int, ...] = (0, 1, 2),
    part: str = "continual",
    order: object = "default",
    seconds: float = 10.0,
    environment: dict[str, Any] | None = None,
    **learner_settings: Any,
) -> RunResult:
    """A result of seeds half a point apart."""
    config = {
        "stream": {"name": stream, "tasks": None, "class_order": order, "part": part},
        "learner": {"name": learner, **learner_settings},
        "run": {"seed": seeds[0], "seeds": len(seeds), "batch_size": 10, "precision": "tf32"},
    }
    made = [
        SeedResult(
            stream=stream,
            learner=learner,
            seed=seed,
            config=config,
            tasks=[f"task-{number}" for number in range(tasks)],
            matrix=only_the_end(tasks, level) if learner == "joint" else matrix(tasks, level + seed / 2, loss),
            seconds_train=seconds + seed,
            seconds_eval=1.0,
        )
        for seed in seeds
    ]
    return RunResult(tuple(made), environment or ENVIRONMENT, 40.0)


def everything(directory: Path) -> None:
    """Results of every experiment on one stream, and a second stream of the paper's."""
    for learner, level, loss in (("finetune", 80.0, 9.0), ("er", 85.0, 3.0), ("ctn", 88.0, 2.0), ("joint", 91.0, 0.0)):
        run_result(learner, level=level, loss=loss).write(directory / learner)
    run_result(memory=50, **LAMBDAS, **COMPONENTS).write(directory / "scale")
    for memory in (100, 200):
        run_result(memory=memory, level=91.0 + memory / 100, **LAMBDAS, **COMPONENTS).write(
            directory / f"memory-{memory}"
        )
    for name in COMPONENTS:
        run_result(memory=50, level=80.0, **LAMBDAS, **{**COMPONENTS, name: False}).write(directory / f"without-{name}")
    for first in (1.0, 3.0):
        for third in (0.03, 0.3):
            if (first, third) != (1.0, 0.03):
                weights: dict[str, Any] = {"lambda1": first, "lambda2": first, "lambda3": third}
                run_result(memory=50, level=89.0, **weights, **COMPONENTS).write(directory / f"weights-{first}-{third}")
    run_result(stream="pmnist", tasks=20, level=82.0, loss=0.16).write(directory / "pmnist")


LAMBDAS: dict[str, Any] = {"lambda1": 1.0, "lambda2": 1.0, "lambda3": 0.03}
COMPONENTS: dict[str, Any] = {"adversary": True, "derpp": True, "generator": True}
