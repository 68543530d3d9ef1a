"""`scale-cl export`: writes the trained model of one task as a file that runs without this package."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scale_cl.cli import BackboneReference, LearnerReference, Seed, say

if TYPE_CHECKING:
    from collections.abc import Callable

    from scale_cl.export.export_task import Subject, Trained

ALL = "all"


def export(
    source: Annotated[
        Path,
        typer.Argument(metavar="DIR|FILE", help="The directory of a run, or a file written by a classifier's save()."),
    ],
    task: Annotated[
        str | None, typer.Option(metavar="NAME", help="Name of the task, or `all`; optional if there is only one task.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="PATH", help="File or folder to write to; by default TASK.onnx, or exported/ for `all`."),
    ] = None,
    form: Annotated[
        str,
        typer.Option("--format", metavar="onnx|torch", help="ONNX (.onnx, by the extra onnx) or torch.export (.pt2)."),
    ] = "onnx",
    seed: Seed = None,
    learner: LearnerReference = None,
    backbone: BackboneReference = None,
    force: Annotated[bool, typer.Option("--force", help="Replace existing files.")] = False,
) -> None:
    """Write a trained model as a file that runs without scale-cl.

    The format is ONNX, or torch.export's .pt2; a file holds the model of one task.

    The model takes a batch of raw samples and returns a logit per class; its metadata names the classes.

    The file is loaded and its logits are compared with the learner's before it is put in place.

    A finished run can be exported if it has kept its model: one on own images does, others with `--set
    run.keep_state=true`. An unfinished run always can. The data is not needed.
    """
    from scale_cl.errors import ConfigError
    from scale_cl.export import export_files
    from scale_cl.plugins import name_references

    if form not in export_files.SUFFIXES:
        raise ConfigError(f"--format is {form!r}; formats are {', '.join(export_files.SUFFIXES)}")
    name_references(learner=learner, backbone=backbone)
    names, subject_of, trained = _model(source, seed)
    if form == "onnx":
        export_files.require_onnx()
    if task is None and len(names) > 1:
        listed = ", ".join(names)
        raise ConfigError(f"there are several tasks ({listed}); say which one with --task NAME, or --task all")
    subjects = [subject_of(name) for name in (names if task is None or task == ALL else [task])]
    paths = _paths([subject.task for subject in subjects], out, export_files.SUFFIXES[form], together=task == ALL)
    for path in paths:
        export_files.check_free(path, form, force=force)
    for subject, path in zip(subjects, paths, strict=True):
        done = export_files.write(subject, path, form, force=force)
        say(
            f"wrote {done.path}: task {done.task}, {len(done.classes)} classes, {-(-done.size // 1000)} kB; logits are "
            f"the learner's within {done.difference:.1e} on {done.samples} samples"
        )
    if trained is not None:
        kept = trained.kept
        if kept.unfinished is not None and set(kept.in_midst) & {subject.task for subject in subjects}:
            say(kept.unfinished, err=True)
        if task == ALL and kept.unseen:
            say(f"no file for tasks that the run has not reached: {', '.join(kept.unseen)}", err=True)


def _model(source: Path, seed: int | None) -> tuple[list[str], Callable[[str], Subject], Trained | None]:
    """Names of the exportable tasks, a function that prepares one of them, and the state of the run."""
    from scale_cl.errors import ConfigError
    from scale_cl.estimator.saved_model import load_model
    from scale_cl.export.export_task import learner_of_run, subject_of
    from scale_cl.training.kept_model import preprocess

    if source.is_file():
        if seed is not None:
            raise ConfigError(f"{source} is a file, which has one seed: leave out --seed")
        classifier = load_model(source)
        told = preprocess(classifier.learner_.spec, classifier.images_)
        return classifier.tasks_, lambda task: replace(subject_of(classifier, task), preprocess=told), None
    trained = learner_of_run(source, seed=seed)
    return trained.learner.tasks, trained.subject, trained


def _paths(tasks: list[str], out: Path | None, suffix: str, *, together: bool) -> list[Path]:
    """One path per task; in a folder, files are named after the tasks."""
    from scale_cl.errors import OutputInUseError

    names: list[str] = []
    for task in tasks:
        name = re.sub(r"[^\w.-]+", "-", task).strip("-.") or "task"
        taken = [name, *(f"{name}-{n}" for n in range(2, len(tasks) + 2))]
        names.append(next(free for free in taken if free not in names))
    if together:
        folder = Path("exported") if out is None else out
        if folder.is_file():
            raise OutputInUseError(f"{folder} is a file; --task all needs a folder")
        return [folder / f"{name}{suffix}" for name in names]
    if out is not None and not out.is_dir():
        return [out]
    return [(out or Path()) / f"{names[0]}{suffix}"]
