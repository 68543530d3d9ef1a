"""Writes one task's network as ONNX or `torch.export`, after comparing what was written with the learner."""

from __future__ import annotations

import io
import json
import logging
import re
import secrets
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.export import ExportedProgram

from scale_cl import files
from scale_cl.errors import ConfigError, ExportError, OutputInUseError, one_line
from scale_cl.export.export_task import Label, Subject
from scale_cl.learners import Learner

SUFFIXES = {"onnx": ".onnx", "torch": ".pt2"}
METADATA = "metadata.json"  # the extra file of a .pt2 file that holds the metadata
INPUT, OUTPUT = "input", "logits"
_ONNX_LIMIT = 2 << 30  # bytes of an ONNX file
SAMPLES = 64
TOLERANCE = 1e-4  # largest allowed difference of a logit, relative to the largest logit if that is above 1
Answer = Callable[[Tensor], Tensor]
"""The loaded model as a function: raw samples to logits [B, classes]."""


@dataclass(frozen=True)
class Exported:
    """An exported file, and how its logits compare with the learner's."""

    path: Path
    task: str
    classes: tuple[Label, ...]
    difference: float  # largest absolute difference of a logit
    samples: int  # number of samples compared
    size: int  # in bytes


def write(subject: Subject, path: Path, form: str, *, force: bool = False) -> Exported:
    """Export to a temporary file, load and compare it, and only then rename it to `path`."""
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
                folder.rmdir()  # fails unless it is empty
    return Exported(path, subject.task, subject.classes, checked.difference, checked.samples, len(data))


def check_free(path: Path, form: str, *, force: bool) -> None:
    """Raise an error if `path` cannot be written in this format, before any work is done."""
    if form not in SUFFIXES:
        raise ConfigError(f"unknown format {form!r}; formats are {', '.join(SUFFIXES)}")
    for other, suffix in SUFFIXES.items():
        if other != form and path.suffix == suffix:
            raise ConfigError(f"{path} has the suffix of the format {other}; a file of {form} ends in {SUFFIXES[form]}")
    if path.is_dir():
        raise OutputInUseError(f"{path} is a folder; name a file in it")
    if path.exists() and not force:
        raise OutputInUseError(f"{path} exists already; choose another, or have it replaced (--force, force=True)")


def require_onnx() -> None:
    """Raise ExportError if the packages that write and run ONNX are missing."""
    try:
        import onnx  # noqa: F401
        import onnxruntime  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise ExportError(f"export to ONNX needs the extra: pip install 'scale-cl[onnx]' ({error})") from None


def _program(subject: Subject) -> ExportedProgram:
    """The task's network as an exported program, for any batch size."""
    net = subject.net()
    example = torch.zeros(3, *subject.shape, dtype=subject.dtype)
    batch = torch.export.Dim("batch", min=1)
    try:
        with torch.no_grad(), _without_exporter_warnings():
            program = torch.export.export(net, (example,), dynamic_shapes=({0: batch},))
    except Exception as error:  # of any kind, since a custom backbone may do anything
        raise ExportError(f"torch.export cannot follow the network: {one_line(error)}") from error
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # contains paths of this machine
    return program


def _as_pt2(program: ExportedProgram, metadata: dict[str, Any]) -> bytes:
    content = io.BytesIO()
    with _without_exporter_warnings():
        torch.export.save(program, content, extra_files={METADATA: json.dumps(metadata)})
    return content.getvalue()


def _as_onnx(program: ExportedProgram, metadata: dict[str, Any]) -> bytes:
    if sum(t.nbytes for t in program.state_dict.values()) >= _ONNX_LIMIT:
        raise ExportError("the network is larger than 2 GB, more than an ONNX file holds; use the format torch")
    try:
        with torch.no_grad(), _without_exporter_warnings():
            made = torch.onnx.export(program, dynamo=True, verbose=False, input_names=[INPUT], output_names=[OUTPUT])
    except Exception as error:
        raise ExportError(f"the network has no form in ONNX: {one_line(error)}") from error
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
    """Name the free dimension `batch`, and remove the exporter's notes, which contain paths of this machine."""
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
def _without_exporter_warnings() -> Iterator[None]:
    """Ignore a deprecation warning that torch's exporter causes itself, and that it finds no torchvision."""
    log = logging.getLogger("torch.onnx._internal.exporter._registration")
    log.addFilter(_not_about_torchvision)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", category=FutureWarning, message=r"`isinstance\(treespec, LeafSpec\)`")
            yield
    finally:
        log.removeFilter(_not_about_torchvision)


def _not_about_torchvision(record: logging.LogRecord) -> bool:
    return "torchvision" not in record.getMessage()


def _checked(subject: Subject, path: Path, form: str) -> Checked:
    load: Callable[[Path], Answer] = _onnx_answer if form == "onnx" else _pt2_answer
    try:
        return check(subject, load(path))
    except (ExportError, OSError):
        raise
    except Exception as error:
        raise ExportError(f"the exported model does not run: {one_line(error)}") from error


def _onnx_answer(path: Path) -> Answer:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])

    def answer(x: Tensor) -> Tensor:
        return torch.from_numpy(session.run([OUTPUT], {INPUT: x.numpy()})[0])

    return answer


def _pt2_answer(path: Path) -> Answer:
    with _without_exporter_warnings():
        net = torch.export.load(path).module()  # the file that was just written, never someone else's

    def answer(x: Tensor) -> Tensor:
        with torch.no_grad():
            logits: Tensor = net(x)
        return logits

    return answer


@dataclass(frozen=True)
class Checked:
    """How well an exported model agrees with the learner."""

    samples: int
    difference: float  # largest absolute difference of a logit


def check(subject: Subject, answer: Answer) -> Checked:
    """Compare logits and predicted classes at several batch sizes; ExportError if they do not agree."""
    raw = subject.raw(_samples_for(subject))
    own = subject.learner.predict(subject.taken(raw), subject.task)
    tolerance = TOLERANCE * max(1.0, float(own.abs().max()))
    worst = 0.0
    for size in (SAMPLES, SAMPLES // 3, 1):
        few = slice(0, 4 if size == 1 else None)
        given = torch.cat([answer(part) for part in raw[few].split(size)])
        wanted = own[few]
        if given.shape != wanted.shape:
            raise _disagrees(subject, f"it gives logits {list(given.shape)}, expected {list(wanted.shape)}")
        difference = float((given - wanted).abs().max())
        if not difference <= tolerance:  # also true for NaN
            raise _disagrees(subject, f"logits differ by {difference:.2g}, at most {tolerance:.2g} is allowed")
        if changed := _changed(given, wanted, tolerance):
            raise _disagrees(subject, f"it gives {changed} of {len(wanted)} samples another class")
        worst = max(worst, difference)
    return Checked(len(raw), worst)


def _disagrees(subject: Subject, how: str) -> ExportError:
    kind = type(subject.learner)
    own = f"; {kind.__name__} has `scores` of its own, which `for_task` of the network that predicts must compute"
    return ExportError(
        f"the exported model does not agree with the learner on task {subject.task!r}: {how}; nothing is left of it"
        + (own if kind.scores is not Learner.scores else "")
    )


def _samples_for(subject: Subject) -> Tensor:
    """Samples for the comparison: those that the learner's memories keep of the task, and random ones."""
    learner, number = subject.learner, subject.learner.tasks.index(subject.task)
    kept = [memory.x[memory.rows_of(number)[:SAMPLES]] for memory in learner.engine.owned.memories.values()]
    return torch.cat([*kept, _random(subject, SAMPLES)])[:SAMPLES]


def _random(subject: Subject, n: int) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    spec, inputs = subject.learner.spec, subject.learner.net.inputs
    if spec.pixel_max is not None:
        most = int(min(spec.pixel_max, 255))
        return torch.randint(0, most + 1, (n, *spec.shape), generator=generator, dtype=torch.uint8)
    x = torch.randn(n, *spec.shape, generator=generator)
    if inputs.standardise:
        mean, deviation = (t.float() for t in inputs.statistics())
        x = mean + x * torch.where(torch.isfinite(deviation), deviation, 0.0)
    return x


def _changed(given: Tensor, wanted: Tensor, tolerance: float) -> int:
    """The number of samples with another class, except where the learner's logits of both are within the tolerance."""
    ours, theirs = wanted.argmax(1), given.argmax(1)
    margin = wanted.gather(1, ours[:, None]) - wanted.gather(1, theirs[:, None])
    return int((margin.squeeze(1) > tolerance).sum())
