"""The command that repeats one run of an experiment by itself."""

from __future__ import annotations

import shlex
from pathlib import Path

from scale_cl.experiments.planning import PlannedRun
from scale_cl.training.config import DEFAULT_PRESET, Config, resolve
from scale_cl.training.run_directory import RunDirectory


def arguments(run: PlannedRun, root: Path | None) -> list[str]:
    """Arguments of `scale-cl` that do this run: `run`, or `reproduce` where more than a result is wanted of it."""
    words = _reproduce(run) if run.alone else _run(run)
    return words if root is None else [*words, "--data", str(root)]


def command(run: PlannedRun, root: Path | None) -> str:
    """A line for a shell that does this run, or continues it if it has left a checkpoint."""
    unfinished = not run.alone and RunDirectory(run.folder).unfinished
    return shlex.join(["scale-cl", *(["resume", str(run.folder)] if unfinished else arguments(run, root))])


def _run(run: PlannedRun) -> list[str]:
    words = ["run", "--stream", run.config.stream.name, "--learner", run.config.learner_name]
    return [*words, *_preset(run.config), *_settings(run.config), "--out", str(run.folder)]


def _reproduce(run: PlannedRun) -> list[str]:
    """What is done already is skipped, so that naming the stream, learner and seeds is enough."""
    config = run.config
    words = ["reproduce", run.experiment, "--streams", config.stream.name, "--learners", config.learner_name]
    words += ["--seeds", "".join(f"{seed}," for seed in config.seeds)]
    if config.stream.tasks is not None:
        words += ["--tasks", str(config.stream.tasks)]
    if config.run.device != "auto":
        words += ["--device", config.run.device]
    return [*words, *_preset(config), "--out", str(run.out)]


def _preset(config: Config) -> list[str]:
    return [] if config.preset == DEFAULT_PRESET else ["--preset", config.preset]


def _settings(config: Config) -> list[str]:
    """Every setting that differs from what a run of this preset would take by default."""
    usual = resolve(stream=config.stream.name, learner=config.learner_name, preset=config.preset).as_dict()
    words = []
    for section, values in config.as_dict().items():
        for name, value in values.items():
            if value != usual[section][name]:
                words += ["--set", f"{section}.{name}={_text(value)}"]
    return words


def _text(value: object) -> str:
    if isinstance(value, list | tuple):
        return ",".join(_text(member) for member in value)
    return "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
