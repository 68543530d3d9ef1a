"""`scale-cl learn`, `predict`, `evaluate` and `info`: what a trained model is used for, without Python."""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from scale_cl.cli import BackboneReference, LearnerReference, Seed, say
from scale_cl.cli.progress import bar
from scale_cl.cli.run import close, run_with_progress
from scale_cl.errors import is_utf8

if TYPE_CHECKING:
    from scale_cl.estimator.saved_model import ModelInfo, Prediction, Progress

Source = Annotated[
    Path, typer.Argument(metavar="RUN", help="The run's directory, or a file written by a classifier's save().")
]
_JSON_SUFFIXES, _CSV_SUFFIXES = (".jsonl", ".ndjson"), (".csv", ".txt", "")
_LINES = 10  # of progress, where there is no terminal


def learn(
    directory: Annotated[Path, typer.Argument(metavar="RUN", help="The directory of a finished run.")],
    stream: Annotated[
        str, typer.Option(metavar="NAME", help="The new tasks: folder:PATH, csv:FILE, or another stream.")
    ],
    assignments: Annotated[
        list[str] | None, typer.Option("--set", metavar="FIELD=VALUE", help="A setting of stream or run; repeatable.")
    ] = None,
    data: Annotated[Path | None, typer.Option(metavar="DIR", help="Where the data sets are.")] = None,
    learner: LearnerReference = None,
    backbone: BackboneReference = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Only the closing line.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Drop other tasks that it has begun to learn.")] = False,
) -> None:
    """Teach a finished run more tasks.

    Its model continues, and its earlier tasks are still tested.

    The earlier images are not needed; without them, the earlier tasks are not tested. Until all new tasks are learnt,
    the model of before stays in use. After a stop, repeat the command, or use `scale-cl resume`.
    """
    from scale_cl.plugins import name_references
    from scale_cl.training.kept_model import lesson, opened
    from scale_cl.training.run_directory import RunDirectory, RunRequest

    name_references(learner=learner, backbone=backbone)
    place = RunDirectory(directory)
    with opened(place):
        config = lesson(place, stream, assignments or (), force=force)
        result = run_with_progress(RunRequest(config, data, sys.argv[1:]), place, quiet=quiet, resume=True)
    close(result, directory, quiet=quiet)


def predict(
    source: Source,
    images: Annotated[
        list[Path],
        typer.Argument(metavar="IMAGES", help="Image files, folders, or CSV files with a column path."),
    ],
    task: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|infer", help="Task of the images; `infer`: the model finds it; optional if it knows one."
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="CSV, or JSON lines if it ends in .jsonl [CSV to stdout].")
    ] = None,
    probabilities: Annotated[bool, typer.Option("--probabilities", help="Add the probability of every class.")] = False,
    seed: Seed = None,
    learner: LearnerReference = None,
    backbone: BackboneReference = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
) -> None:
    """Predict the classes of images.

    There is one line per image, with the path, the task, the class and its probability.
    """
    from scale_cl import files
    from scale_cl.errors import OutputInUseError
    from scale_cl.estimator.saved_model import predict as predict_images
    from scale_cl.plugins import name_references

    name_references(learner=learner, backbone=backbone)
    if out is not None:
        _check_free(out, force=force)
    with _progress(quiet=quiet) as progress:
        said = predict_images(source, images, task=task, seed=seed, progress=progress)
    as_json = out is not None and out.suffix.lower() in _JSON_SUFFIXES
    text = (_as_json_lines if as_json else _as_csv)(said, probabilities=probabilities)
    if out is None and sys.stdout.isatty():
        say(text.rstrip("\n"))
        return
    data = text.encode("utf-8", "surrogateescape")  # a file's name keeps its bytes
    if out is None:
        typer.echo(data, nl=False)
        return
    try:
        files.write_bytes(out, data)
    except OSError as error:
        raise OutputInUseError(f"{out} cannot be written: {error.strerror or error}") from error
    if not quiet:
        say(f"wrote {out}: {len(said)} predictions", err=True)


def evaluate(
    source: Source,
    images: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="Images in TASK/CLASS/, or a CSV file with path, label, task.")
    ],
    task: Annotated[str | None, typer.Option(metavar="infer", help="`infer`: the model is not told the tasks.")] = None,
    seed: Seed = None,
    learner: LearnerReference = None,
    backbone: BackboneReference = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False,
) -> None:
    """Test a model on labelled images.

    Prints the accuracy per task, and their mean.
    """
    from scale_cl.estimator import saved_model
    from scale_cl.plugins import name_references

    name_references(learner=learner, backbone=backbone)
    with _progress(quiet=quiet) as progress:
        found = saved_model.evaluate(source, images, task=task, seed=seed, progress=progress)
    for one in found:
        say(f"task {one.task}: {one.accuracy:.1f} ({one.right} of {one.images} images)")
    if len(found) > 1:
        say(f"mean: {sum(one.accuracy for one in found) / len(found):.1f}")


def info(
    source: Source,
    seed: Seed = None,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON, with all settings.")] = False,
) -> None:
    """Say what a model has learnt, with what, and how well."""
    from scale_cl.estimator import saved_model

    found = saved_model.info(source, seed=seed)
    if as_json:
        typer.echo(json.dumps(asdict(found), indent=2, ensure_ascii=False))
        return
    for line in _lines(source, found):
        say(line)


def _check_free(out: Path, *, force: bool) -> None:
    """Refuse a file that cannot be written, before any work is done."""
    from scale_cl.errors import ConfigError, OutputInUseError

    if out.suffix.lower() not in (*_JSON_SUFFIXES, *_CSV_SUFFIXES):
        raise ConfigError(f"--out {out}: predictions are CSV or JSON lines; end the name in .csv or .jsonl")
    there = next((folder for folder in out.parents if folder.exists()), Path())
    if not there.is_dir():
        raise OutputInUseError(f"{out} cannot be written: {there} is not a folder")
    if out.is_dir():
        raise OutputInUseError(f"{out} is a folder; name a file in it")
    if out.exists() and not force:
        raise OutputInUseError(f"{out} exists already; choose another --out, or --force replaces it")


# ---- output ----------------------------------------------------------------------------------------------------------
def _lines(source: Path, found: ModelInfo) -> Iterator[str]:
    yield f"{source}: {found.learner}, seed {found.seed}, scenario {found.scenario}"
    streams = f" ({', '.join(f'{name}: {tasks}' for name, tasks in found.streams)})" if found.streams else ""
    yield f"learnt: {len(found.tasks)} task{'s' if len(found.tasks) > 1 else ''}{streams}"
    width = max(len(task.name) for task in found.tasks)
    for task in found.tasks:
        shown = ", ".join(task.classes[:6]) + (f" and {len(task.classes) - 6} more" if len(task.classes) > 6 else "")
        how_well = "" if task.accuracy is None else f"   accuracy {task.accuracy:.1f}"
        if task.accuracy_then is not None:
            how_well = (how_well or "   not tested any more") + f", right after learning it {task.accuracy_then:.1f}"
        yield f"  {task.name:{width}}   {shown}{how_well}"
    shape = " x ".join(map(str, found.input_shape))
    yield f"inputs: {found.preprocess or (f'{shape} values' if len(found.input_shape) == 1 else shape)}"
    changed = _changed_settings(found)
    if changed:
        yield f"settings: {changed} (--json: all)"
    many = "no samples" if not found.stored_samples else f"{found.stored_samples} samples"
    yield f"memory: {many} of the training data are in the file (scale-cl memory lists and deletes them)"
    yield f"file: {found.file}, {found.bytes / 1e6:.1f} MB"
    if found.learning is not None:
        yield f"it has begun to learn {found.learning} and not finished: scale-cl resume {source}"


def _changed_settings(found: ModelInfo) -> str:
    """Settings that differ from the defaults of the learner's class, if that is there."""
    from scale_cl.errors import ScaleClError
    from scale_cl.learners import registry
    from scale_cl.settings import as_dict

    try:
        usual = as_dict(registry.config_class(found.learner)())
    except ScaleClError:  # a class from outside, of which only the name is known
        usual = {}
    return ", ".join(f"{name}={value}" for name, value in found.settings.items() if usual.get(name) != value)


def _as_csv(said: Iterable[Prediction], *, probabilities: bool) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for number, one in enumerate(said):
        if number == 0:
            further = [f"p({label})" for label in one.probabilities] if probabilities else []
            writer.writerow(["path", "task", "label", "probability", *further])
        each = [f"{p:.6f}" for p in one.probabilities.values()] if probabilities else []
        writer.writerow([one.path, one.task or "", one.label, f"{one.probability:.6f}", *each])
    return text.getvalue()


def _as_json_lines(said: Iterable[Prediction], *, probabilities: bool) -> str:
    lines = []
    for one in said:
        content: dict[str, Any] = {"path": one.path, "task": one.task, "label": one.label}
        content["probability"] = round(one.probability, 6)
        if probabilities:
            content["probabilities"] = {str(label): round(p, 6) for label, p in one.probabilities.items()}
        lines.append(json.dumps(content, ensure_ascii=not is_utf8(one.path)) + "\n")
    return "".join(lines)


@contextmanager
def _progress(*, quiet: bool) -> Iterator[Progress | None]:
    """Shows on stderr how many images are done: a bar on a terminal, some lines elsewhere."""
    if quiet:
        yield None
        return
    with bar("images") as show:
        yield show or _show_line


def _show_line(done: int, count: int) -> None:
    from scale_cl.estimator.saved_model import AT_ONCE

    if done == count or done * _LINES // count > (done - AT_ONCE) * _LINES // count:
        print(f"{done} of {count} images", file=sys.stderr, flush=True)
