"""Short runs on digits for tests of experiments, and results that were never trained."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from scale_cl.experiments.planning import PlannedRun, task_count
from scale_cl.results import RunResult, SeedResult
from scale_cl.training import checkpoint
from scale_cl.training.config import Config, resolve
from scale_cl.training.run_directory import RunDirectory


def config(learner: str = "finetune", *, seed: int = 0, tasks: int = 1, stream: str = "digits") -> Config:
    options = {"run.seed": seed, "stream.tasks": tasks, "run.device": "cpu"}
    return resolve(stream=stream, learner=learner, options=options)


def planned(out: Path, config: Config, **keywords: Any) -> PlannedRun:
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


MARK = 12.34  # an accuracy that no test of 500 samples gives


def mark_checkpoint(folder: Path) -> None:
    """Change the first accuracy in the checkpoints of a killed run: a run that continues from them has it too."""
    kept = RunDirectory(folder).checkpoints_of(0)
    for path in checkpoint.found(kept):
        saved = checkpoint.read(path)
        assert saved.position.stage >= 1
        checkpoint.write(kept, replace(saved, matrix=marked(saved.matrix)))


def marked(matrix: list[list[float | None]]) -> Any:
    """The matrix of a run that continued from a marked checkpoint."""
    return [[MARK, *matrix[0][1:]], *matrix[1:]]
