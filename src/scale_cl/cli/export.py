"""`scale-cl export`: writes the trained model of one task as a file that runs without this package."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from scale_cl.cli import say

if TYPE_CHECKING:
    from collections.abc import Callable

    from scale_cl.export.export_task import Subject
    from scale_cl.export.from_run import Trained

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
    seed: Annotated[int | None, typer.Option(metavar="S", help="Seed; needed if the run has several.")] = None,
    data: Annotated[Path | None, typer.Option(metavar="DIR", help="Data root of the run's stream.")] = None,
    stream: Annotated[str | None, typer.Option(help="Its stream, if module:function or file.py:function.")] = None,
    learner: Annotated[str | None, typer.Option(help="Its learner, if module:Class or file.py:Class.")] = None,
    backbone: Annotated[str | None, typer.Option(help="Its backbone, if module:function or file.py:function.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace existing files.")] = False,
) -> None:
    """Write the trained model of one task as a file that runs without scale-cl: ONNX, or torch.export's .pt2.

    The model takes a batch of raw samples and returns a logit per class; its metadata names the classes.

    The file is loaded and its logits are compared with the learner's before it is put in place.

    A finished run can be exported if it was run with `--set run.keep_state=true`; an unfinished run always can.
    """
    from scale_cl.errors import ConfigError
    from scale_cl.export import export_files
    from scale_cl.plugins import name_references

    if form not in export_files.SUFFIXES:
        raise ConfigError(f"--format is {form!r}; formats are {', '.join(export_files.SUFFIXES)}")
    if form == "onnx":
        export_files.require_onnx()
    named = {"scale_cl.streams": stream, "scale_cl.learners": learner, "scale_cl.backbones": backbone}
    name_references(named)
    names, subject_of, trained = _model(source, seed, data)
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
        if trained.unfinished is not None and set(trained.in_midst) & {subject.task for subject in subjects}:
            say(trained.unfinished, err=True)
        if task == ALL and trained.unseen:
            say(f"no file for tasks that the run has not reached: {', '.join(trained.unseen)}", err=True)


def _model(
    source: Path, seed: int | None, data: Path | None
) -> tuple[list[str], Callable[[str], Subject], Trained | None]:
    """Names of the exportable tasks, a function that prepares one of them, and the state of the run."""
    from scale_cl.errors import ConfigError
    from scale_cl.export.export_task import subject_of
    from scale_cl.export.from_run import learner_of_run

    if source.is_file():
        if seed is not None or data is not None:
            raise ConfigError(f"{source} is a file, which has one seed and needs no data: leave out --seed and --data")
        classifier = _classifier(source)
        return classifier.tasks_, lambda task: subject_of(classifier, task), None
    trained = learner_of_run(source, seed=seed, root=data)
    return trained.learner.tasks, trained.subject, trained


def _classifier(path: Path) -> Any:
    """The classifier in a file, as the class that wrote it."""
    from scale_cl import estimator
    from scale_cl.errors import CheckpointError, ConfigError
    from scale_cl.estimator import model_file

    content = model_file.read(path).content
    kind = content.get("class")
    if kind not in estimator.__all__:
        raise CheckpointError(f"{path} was written by {kind}: export it from Python, scale_cl.export.to_onnx")
    if content.get("own_backbone"):
        raise ConfigError(
            f"{path} was trained with a backbone of its own: load it in Python with {kind}.load(..., backbone=...) and "
            "export it with scale_cl.export.to_onnx"
        )
    if content.get("own_learner"):
        raise ConfigError(
            f"{path} was trained with the learner {content['own_learner']}: load it in Python with "
            f"{kind}.load(..., learner=...) and export it with scale_cl.export.to_onnx"
        )
    return getattr(estimator, kind).load(path)


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
