"""Short runs on digits for tests of experiments, and results that were never trained."""

from __future__ import annotations

from pathlib import Path

from scale_cl.experiments.planning import PlannedRun, task_count
from scale_cl.results import RunResult, SeedResult
from scale_cl.training.config import Config, resolve


def config(learner: str = "finetune", *, seed: int = 0, tasks: int = 1, stream: str = "digits") -> Config:
    options = {"run.seed": seed, "stream.tasks": tasks, "run.device": "cpu"}
    return resolve(stream=stream, learner=learner, options=options)


def planned(out: Path, config: Config, **keywords: bool) -> PlannedRun:
    folder = out / "main" / config.stream.name / config.learner_name / f"seed-{config.run.seed}"
    return PlannedRun("main", config, out, folder, **keywords)


def made_up(run: PlannedRun, *, acc: float = 50.0, alone: bool = False) -> RunResult:
    """Write a result for `run` as if it had been trained."""
    tasks = task_count(run.config)
    seeds = tuple(
        SeedResult(
            run.config.stream.name,
            run.config.learner_name,
            seed,
            run.config.as_dict(),
            [f"task {task}" for task in range(tasks)],
            [[acc if column <= row else None for column in range(tasks)] for row in range(tasks)],
            1.0,
            0.1,
        )
        for seed in run.config.seeds
    )
    result = RunResult(seeds, {"alone": alone, "device": "cpu"}, 1.0)
    result.write(run.folder)
    return result
