"""Writing one task's network as ONNX or as a program of `torch.export`, checked before the file gets its name."""

from __future__ import annotations

import io
import json
import os
import re
import secrets
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.export import ExportedProgram

from scale_cl import files
from scale_cl.errors import ConfigError, ExportError, OutputInUseError
from scale_cl.export.checking import Answer, Checked, check
from scale_cl.export.export_task import FittedClassifier, Label, Subject, subject_of
from scale_cl.learners import Learner

SUFFIXES = {"onnx": ".onnx", "torch": ".pt2"}
METADATA = "metadata.json"  # of a .pt2 file, among its extra files
INPUT, OUTPUT = "input", "logits"
_ONNX_LIMIT = 2 << 30  # bytes of a single file


@dataclass(frozen=True)
class Exported:
    """A file that was written, and how its model compares with the learner."""

    path: Path
    task: str
    classes: tuple[Label, ...]
    difference: float  # the largest between a logit of the file's model and of the learner
    samples: int  # on which they were compared
    size: int  # bytes of the file


def to_onnx(
    model: Learner | FittedClassifier,
    path: str | os.PathLike[str],
    *,
    task: Any = None,
    classes: Iterable[Label] | None = None,
    force: bool = False,
) -> Exported:
    """Write the model of one task as ONNX: raw samples [batch, ...] in, logits [batch, classes] out.

    The samples are what the learner's `predict` takes: uint8 pixels, or float32 features. A classifier's are images
    [batch, C, H, W] (channels last if its layout is "NHWC"), or features, float64 where they are standardised.

    The file is run in onnxruntime and compared with the learner before it is put in place. Its metadata holds the task,
    the classes (a JSON list, in the order of the logits), the input's shape and type, and the version of this package.

    Args:
        model: a learner, or a fitted `ScaleClassifier` or `ContinualClassifier`.
        path: of the file.
        task: its name; may be left out while there is only one task.
        classes: names of the task's classes in the order of its labels; a classifier knows them itself.
        force: replace a file that is there.

    Examples:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from sklearn.datasets import load_iris
        >>> from scale_cl import ScaleClassifier
        >>> from scale_cl.export import to_onnx
        >>> X, y = load_iris(return_X_y=True)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     exported = to_onnx(ScaleClassifier().fit(X, y), Path(folder) / "iris.onnx")
        >>> exported.classes
        (0, 1, 2)
    """
    subject = subject_of(model, task, classes)
    return write(subject, Path(path), "onnx", force=force)


def to_torch_export(
    model: Learner | FittedClassifier,
    path: str | os.PathLike[str],
    *,
    task: Any = None,
    classes: Iterable[Label] | None = None,
    force: bool = False,
) -> Exported:
    """As `to_onnx`, but a program that `torch.export.load` reads (.pt2); metadata in its extra file metadata.json."""
    subject = subject_of(model, task, classes)
    return write(subject, Path(path), "torch", force=force)


def write(subject: Subject, path: Path, form: str, *, force: bool = False) -> Exported:
    """Export, write beside `path`, load and compare, and only then give the file its name."""
    check_free(path, form, force=force)
    if form == "onnx":
        require_onnx()
    data = (_as_onnx if form == "onnx" else _as_pt2)(_program(subject), subject.metadata())
    made = [folder for folder in path.parents if not folder.exists()]  # innermost first
    beside = path.with_name(f".{path.stem}.{secrets.token_hex(6)}{SUFFIXES[form]}")
    try:
        files.write_bytes(beside, data)
        checked = _checked(subject, beside, form)
        files.put_in_place(beside, path)
    except OSError as error:
        raise OutputInUseError(f"{path} cannot be written: {error.strerror or error}") from error
    finally:
        with suppress(OSError):
            beside.unlink()
        for folder in made:
            with suppress(OSError):
                folder.rmdir()  # only if nothing is in it
    return Exported(path, subject.task, subject.classes, checked.difference, checked.samples, len(data))


def check_free(path: Path, form: str, *, force: bool) -> None:
    """Say what is wrong with a path before anything is done."""
    if form not in SUFFIXES:
        raise ConfigError(f"unknown format {form!r}; formats are {', '.join(SUFFIXES)}")
    for other, suffix in SUFFIXES.items():
        if other != form and path.suffix == suffix:
            raise ConfigError(
                f"{path} ends as files of the format {other} do; a file of {form} ends in {SUFFIXES[form]}"
            )
    if path.is_dir():
        raise OutputInUseError(f"{path} is a folder; name a file in it")
    if path.exists() and not force:
        raise OutputInUseError(f"{path} exists already; choose another, or have it replaced (--force, force=True)")


def require_onnx() -> None:
    """The packages that write ONNX and run it, or one line that says how to get them."""
    try:
        import onnx  # noqa: F401
        import onnxruntime  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise ExportError(f"export to ONNX needs the extra: pip install 'scale-cl[onnx]' ({error})") from None


# ---- programs and bytes ----------------------------------------------------------------------------------------------


def _program(subject: Subject) -> ExportedProgram:
    """The task's network as a graph, for any batch size."""
    net = subject.net()
    example = torch.zeros(3, *subject.shape, dtype=subject.dtype)
    batch = torch.export.Dim("batch", min=1)
    try:
        with torch.no_grad(), _without_its_noise():
            program = torch.export.export(net, (example,), dynamic_shapes=({0: batch},))
    except Exception as error:  # of many kinds: a backbone of somebody's own may do anything
        raise ExportError(f"torch.export cannot follow the network: {_one_line(error)}") from error
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # paths of this machine
    return program


def _as_pt2(program: ExportedProgram, metadata: dict[str, Any]) -> bytes:
    content = io.BytesIO()
    with _without_its_noise():
        torch.export.save(program, content, extra_files={METADATA: json.dumps(metadata)})
    return content.getvalue()


def _as_onnx(program: ExportedProgram, metadata: dict[str, Any]) -> bytes:
    if sum(t.nbytes for t in program.state_dict.values()) >= _ONNX_LIMIT:
        raise ExportError("the network is larger than 2 GB, more than an ONNX file holds; use the format torch")
    try:
        with torch.no_grad(), _without_its_noise():
            made = torch.onnx.export(program, dynamo=True, verbose=False, input_names=[INPUT], output_names=[OUTPUT])
    except Exception as error:
        raise ExportError(f"the network has no form in ONNX: {_one_line(error)}") from error
    assert made is not None
    proto: Any = made.model_proto
    _tidy(proto)
    proto.doc_string = f"task {metadata['task']}, exported by scale-cl {metadata['scale_cl']}"
    for key, value in metadata.items():
        entry = proto.metadata_props.add()
        entry.key, entry.value = key, value if isinstance(value, str) else json.dumps(value)
    data: bytes = proto.SerializeToString()
    return data


def _tidy(proto: Any) -> None:
    """Call the free dimension by its name, and leave out the exporter's notes, with paths of this machine in them."""
    graph = proto.graph
    free = re.compile(rf"\b{re.escape(graph.input[0].type.tensor_type.shape.dim[0].dim_param)}\b")
    for value in (*graph.input, *graph.output, *graph.value_info):
        del value.metadata_props[:]
        for dimension in value.type.tensor_type.shape.dim:
            if dimension.HasField("dim_param"):
                dimension.dim_param = free.sub("batch", dimension.dim_param)
    for part in (*graph.node, *graph.initializer, graph):
        del part.metadata_props[:]


@contextmanager
def _without_its_noise() -> Iterator[None]:
    """Hide what the exporter warns itself of."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=FutureWarning, message=r"`isinstance\(treespec, LeafSpec\)`")
        yield


def _one_line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


# ---- loaded again ----------------------------------------------------------------------------------------------------


def _checked(subject: Subject, path: Path, form: str) -> Checked:
    load: Callable[[Path], Answer] = _onnx_answer if form == "onnx" else _pt2_answer
    try:
        return check(subject, load(path))
    except (ExportError, OSError):
        raise
    except Exception as error:
        raise ExportError(f"the exported model does not run: {_one_line(error)}") from error


def _onnx_answer(path: Path) -> Answer:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])

    def answer(x: Tensor) -> Tensor:
        return torch.from_numpy(session.run([OUTPUT], {INPUT: x.numpy()})[0])

    return answer


def _pt2_answer(path: Path) -> Answer:
    with _without_its_noise():
        net = torch.export.load(path).module()  # what was written a moment ago: no file of anybody else's

    def answer(x: Tensor) -> Tensor:
        with torch.no_grad():
            logits: Tensor = net(x)
        return logits

    return answer
