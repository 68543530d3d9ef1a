"""The command to repeat a run asks for the very same config."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

from scale_cl.experiments.definitions import chosen
from scale_cl.experiments.planning import PlannedRun, Request, plan, rerun_arguments, rerun_command
from scale_cl.training.config import Config, resolve
from scale_cl.training.run_directory import RunDirectory, RunRequest
from tests.experiments.small_runs import config, planned


def asked_for(run: PlannedRun) -> Config:
    """What `run` makes of the command's words."""
    words = rerun_arguments(run, None)
    assert words[0] == "run"
    options = dict(zip(words[1::2], words[2::2], strict=True))
    pairs = zip(words[1::2], words[2::2], strict=True)
    return resolve(
        stream=options["--stream"],
        learner=options["--learner"],
        preset=options.get("--preset"),
        assignments=[v for k, v in pairs if k == "--set"],
    )


def test_every_run_of_every_experiment_is_repeated_exactly(tmp_path: Path) -> None:
    for name in ("main", "memory", "ablation", "sensitivity", "matched"):
        preset = "paper" if name == "ablation" else None
        request = Request(tmp_path, ("digits",), seeds=(0, 3), tasks=2, device="cpu", threads=2, preset=preset)
        for run in plan(chosen(name), request, gpu=name == "memory").runs:
            assert asked_for(run) == run.config


def test_it_is_a_line_for_a_shell(tmp_path: Path) -> None:
    run = planned(tmp_path / "with space", config(seed=3, tasks=2))
    words = shlex.split(rerun_command(run, Path("my data")))
    assert words[:2] == ["scale-cl", "run"]
    assert words[-2:] == ["--data", "my data"]
    assert words[words.index("--out") + 1] == str(run.folder)


def test_what_must_run_alone_is_repeated_by_its_experiment(tmp_path: Path) -> None:
    run = replace(planned(tmp_path, config(seed=3, tasks=2)), alone=True, experiment="time")
    assert rerun_command(run, None) == (
        "scale-cl reproduce time --streams digits --learners finetune --seeds 3, --tasks 2 --device cpu "
        f"--out {tmp_path}"
    )


def test_a_run_that_has_begun_is_continued(tmp_path: Path) -> None:
    run = planned(tmp_path, config(tasks=2))
    RunDirectory(run.folder).begin(RunRequest(run.config), resume=False)
    assert rerun_command(run, None) == f"scale-cl resume {run.folder}"
    assert rerun_command(replace(run, alone=True), None).startswith("scale-cl reproduce ")


def test_a_run_of_a_method_from_outside_is_continued_by_naming_it_again(tmp_path: Path) -> None:
    given = resolve(stream="digits", learner="scale_cl.learners.er:Er", options={"stream.tasks": 2})
    run = planned(tmp_path, given)
    RunDirectory(run.folder).begin(RunRequest(run.config), resume=False)
    assert rerun_command(run, None) == f"scale-cl resume {run.folder} --learner scale_cl.learners.er:Er"
